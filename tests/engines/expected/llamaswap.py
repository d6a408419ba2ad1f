"""llama-swap: what is in memory, and nothing of the load."""

from __future__ import annotations

from engines.signals import Reading, Residency, Signal
from tests.engines.expected import NOTHING

Row = dict[str, Reading | None]

# `hidden` is served too, and in no list
LISTED: Reading = dict.fromkeys(
    [
        "bad-exit",
        "bad-hang",
        "bad-missing",
        "echo",
        "smollm2-a",
        "smollm2-b",
        "smollm2-co1",
        "smollm2-co2",
        "smollm2-limit2",
        "smollm2-renamed",
        "smollm2-slow",
        "smollm2-slow-say",
        "smollm2-ttl",
    ]
)


def _in_memory(model: str, state: Residency = Residency.LOADED) -> Row:
    return {"llamaswap-residency": {model: state}, "llamaswap-capacity": {model: 2}}


NONE: Row = {"llamaswap-residency": {}, "llamaswap-capacity": NOTHING}

PROBES: dict[str, Row] = {
    "llama-swap": {"openai-models": LISTED, **_in_memory("smollm2-a")},
    "llama-swap/*/fresh": NONE,
    "llama-swap/*/failed-start": NONE,
    "llama-swap/*/ttl-expired": NONE,
    "llama-swap/*/upstream-killed": NONE,
    "llama-swap/*/swapped": _in_memory("smollm2-b"),
    "llama-swap/*/loading": _in_memory("smollm2-slow", Residency.LOADING),
    "llama-swap/*/loading-left": _in_memory("smollm2-slow", Residency.LOADING),
    "llama-swap/*/loading-say": _in_memory("smollm2-slow-say", Residency.LOADING),
    "llama-swap/*/two-loaded": {
        "llamaswap-residency": dict.fromkeys(["echo", "smollm2-co1", "smollm2-co2"], Residency.LOADED),
        "llamaswap-capacity": {"echo": None, "smollm2-co1": 2, "smollm2-co2": 2},
    },
    "llama-swap/v250": {"llamaswap-version": {"": "v250"}},
    "llama-swap/v250-5-g0bdb37": {"llamaswap-version": {"": "v250-5-g0bdb37"}},
    **{
        f"llama-swap/{version}/api-key": {**NONE, "llamaswap-residency": NOTHING, "openai-models": NOTHING}
        | {"llamaswap-version": NOTHING}
        for version in ("v250", "v250-5-g0bdb37")
    },
}

DETECTED: dict[str, str] = {
    "llama-swap": "llama-swap",
    "llama-swap/*/api-key": "api_key",
}

_NEVER = frozenset({Signal.VRAM_BYTES, Signal.SIZE_BYTES, Signal.RUNNING, Signal.WAITING, Signal.KV_USAGE})

UNKNOWN: dict[str, frozenset[Signal]] = {
    "llama-swap": _NEVER,
    "llama-swap/*/api-key": frozenset(Signal),
    # the places of a model are read from its process's command line, so only while it is in memory
    **{
        f"llama-swap/*/{state}": _NEVER | {Signal.CAPACITY}
        for state in ("fresh", "failed-start", "ttl-expired", "upstream-killed")
    },
}

NOT_REPLAYED = {
    "llama-swap/*/streams": "reply bodies only",
    "llama-swap/*/limit": "only the refusal of one request too many",
}
