"""llama.cpp: four builds, two of them packaged (their number in build_info means nothing)."""

from __future__ import annotations

from engines.signals import Reading, Residency, Signal
from tests.engines.expected import NOTHING

Row = dict[str, Reading | None]

SIZE = 96576768
BUILDS = {
    "b9093": "b9093-unknown",
    "b10092": "b1-3ce7da2",
    "b10434": "b1-7e4c0a9",
    "b11434": "b11434-unknown",
}


def _load(running: int, waiting: int = 0) -> Row:
    return {
        "llamacpp-running": {"": running},
        "llamacpp-slots-running": {"": running},
        "llamacpp-waiting": {"": waiting},
    }


NO_METRICS: Row = {"llamacpp-running": NOTHING, "llamacpp-waiting": NOTHING}
NO_SLOTS: Row = {"llamacpp-slots-running": NOTHING}
TWO_SLOTS: Row = {"llamacpp-capacity": {"": 2}}
NO_PROPS: Row = {
    "llamacpp-version": NOTHING,
    "llamacpp-residency": NOTHING,
    "llamacpp-capacity": NOTHING,
}
NO_LIST: Row = {"openai-models": NOTHING, "llamacpp-size": NOTHING}


def _router(state: Residency) -> Row:
    """smollm2 in this state, smollm2-b cold; both would get two slots."""
    return {
        **NO_METRICS,
        **NO_SLOTS,
        "llamacpp-residency": NOTHING,
        "llamacpp-capacity": NOTHING,
        "openai-models": {"smollm2": None, "smollm2-b": None},
        "llamacpp-router-residency": {"smollm2": state, "smollm2-b": Residency.COLD},
        "llamacpp-router-capacity": {"smollm2": 2, "smollm2-b": 2},
        "llamacpp-size": {"smollm2": SIZE, "smollm2-b": None} if state is Residency.LOADED else NOTHING,
    }


PROBES: dict[str, Row] = {
    "llamacpp": {
        "openai-models": {"smollm2": None},
        "llamacpp-residency": {"": Residency.LOADED},
        "llamacpp-size": {"smollm2": SIZE},
        "llamacpp-capacity": {"": 4},
        **_load(0),
    },
    "llamacpp/*/busy": _load(3),
    "llamacpp/*/full": _load(4),
    "llamacpp/*/saturated": _load(4, 5),
    "llamacpp/*/prefill": _load(2),
    "llamacpp/*/defaults": NO_METRICS,
    "llamacpp/*/embeddings-mode": TWO_SLOTS,
    "llamacpp/*/sleeping": TWO_SLOTS,  # paths.tsv was taken after /metrics had woken it; see per-path/
    "llamacpp/*/with-props": TWO_SLOTS,
    "llamacpp/*/no-metrics": {**TWO_SLOTS, **NO_METRICS},
    "llamacpp/*/no-metrics-busy": {**TWO_SLOTS, **_load(1), **NO_METRICS},
    "llamacpp/*/no-slots": {**TWO_SLOTS, **NO_SLOTS},
    "llamacpp/*/no-slots-busy": {**TWO_SLOTS, **_load(1), **NO_SLOTS},
    "llamacpp/*/loading": {**NO_METRICS, **NO_SLOTS, **NO_PROPS, **NO_LIST},
    "llamacpp/*/api-key": {**NO_METRICS, **NO_SLOTS, **NO_PROPS},
    "llamacpp/*/router-cold": _router(Residency.COLD),
    "llamacpp/*/router-unloaded": _router(Residency.COLD),
    "llamacpp/*/router-loading": _router(Residency.LOADING),
    "llamacpp/*/router-loaded": _router(Residency.LOADED),
    "llamacpp/*/router-loaded-busy": _router(Residency.LOADED),
    **{f"llamacpp/{b}": {"llamacpp-version": {"": build}} for b, build in BUILDS.items()},
    **{f"llamacpp/{b}/{s}": {"llamacpp-version": NOTHING} for b in BUILDS for s in ("loading", "api-key")},
    "llamacpp/b11434/api-key": {"llamacpp-version": NOTHING, **NO_LIST},  # its list wants the key too
}

DETECTED: dict[str, str] = {
    "llamacpp": "llamacpp",
    "llamacpp/*/loading": "still loading",
    "llamacpp/*/api-key": "api_key",
}

_NEVER = frozenset({Signal.VRAM_BYTES, Signal.KV_USAGE})
_ROUTER = _NEVER | {Signal.RUNNING, Signal.WAITING}
_KEY = frozenset(Signal) - {Signal.MODELS, Signal.SIZE_BYTES}

UNKNOWN: dict[str, frozenset[Signal]] = {
    "llamacpp": _NEVER,
    "llamacpp/*/defaults": _NEVER | {Signal.WAITING},
    "llamacpp/*/no-metrics": _NEVER | {Signal.WAITING},
    "llamacpp/*/no-metrics-busy": _NEVER | {Signal.WAITING},
    "llamacpp/*/loading": frozenset(Signal),
    "llamacpp/*/api-key": _KEY,
    "llamacpp/b11434/api-key": frozenset(Signal),
    "llamacpp/*/router-cold": _ROUTER | {Signal.SIZE_BYTES},
    "llamacpp/*/router-unloaded": _ROUTER | {Signal.SIZE_BYTES},
    "llamacpp/*/router-loading": _ROUTER | {Signal.SIZE_BYTES},
    "llamacpp/*/router-loaded": _ROUTER,
    "llamacpp/*/router-loaded-busy": _ROUTER,
}

NOT_REPLAYED = {
    "llamacpp/*/streams": "reply bodies only",
    "llamacpp/*/router-streams": "reply bodies only",
    "llamacpp/*/killed-sigkill": "the engine is gone: what its clients got",
    "llamacpp/*/killed-sigterm": "the engine is gone: what its clients got",
}
