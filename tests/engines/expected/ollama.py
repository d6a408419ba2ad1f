"""Ollama: names, sizes and what is in memory; nothing of its load."""

from __future__ import annotations

from engines.signals import Reading, Residency, Signal
from tests.engines.expected import NOTHING

A, B, C, EMBED = "smollm2:135m", "smollm2-b:latest", "smollm2-c:latest", "smollm2-embed:latest"
SIZES = {
    "v0.24.0": {A: 98363007, B: 98363025, C: 98363040, EMBED: 98363071},
    "v0.32.15": {A: 98362745, B: 98362763, C: 98362778, EMBED: 98362809},
}


def listed(*names: str) -> dict[str, Reading | None]:
    return {"ollama-tags": dict.fromkeys(names), "openai-models": dict.fromkeys(names)}


def sizes(version: str, *names: str) -> dict[str, Reading | None]:
    return {"ollama-tags-size": {name: SIZES[version][name] for name in names}}


def loaded(*names: str) -> dict[str, Reading | None]:
    """None of these hosts has a GPU: 0 bytes of VRAM is the truth."""
    return {"ollama-ps": dict.fromkeys(names, Residency.LOADED), "ollama-ps-vram": dict.fromkeys(names, 0)}


NOTHING_LOADED: dict[str, Reading | None] = {"ollama-ps": {}, "ollama-ps-vram": NOTHING}
EMPTY = ("fresh", "cold-expired", "cold-unloaded", "loading", "loading-held", "queue-full")

PROBES: dict[str, dict[str, Reading | None]] = {
    "ollama": {**listed(A, B, C), **loaded(A)},
    "ollama/v0.24.0": {"ollama-version": {"": "0.24.0"}, **sizes("v0.24.0", A, B, C)},
    "ollama/v0.32.15": {"ollama-version": {"": "0.32.15"}, **sizes("v0.32.15", A, B, C)},
    **{f"ollama/*/{state}": NOTHING_LOADED for state in EMPTY},
    "ollama/*/two-loaded": loaded(A, B),
    "ollama/*/two-loaded-busy": loaded(A, B),
    "ollama/*/two-names-one-blob": loaded(C),
    "ollama/*/embedding-model": {**listed(A, B, C, EMBED), **loaded(EMBED)},
    "ollama/v0.24.0/embedding-model": sizes("v0.24.0", A, B, C, EMBED),
    "ollama/v0.32.15/embedding-model": sizes("v0.32.15", A, B, C, EMBED),
}

DETECTED: dict[str, str] = {"ollama": "ollama"}

NOT_SHOWN = frozenset({Signal.RUNNING, Signal.WAITING, Signal.CAPACITY, Signal.KV_USAGE})
UNKNOWN = {
    "ollama": NOT_SHOWN,  # the capacity is in the log only, and a folder is replayed without it
    **{f"ollama/*/{state}": NOT_SHOWN | {Signal.VRAM_BYTES} for state in EMPTY},  # nothing is loaded
}

LOADS_UNSEEN = {
    "loading": (0, "/api/ps lists a model only when it is loaded, so a loading one reads as cold")
}
LATE = {f"ollama/*/{state}": LOADS_UNSEEN for state in ("loading", "loading-held", "queue-full")}

NOT_REPLAYED = {
    "ollama/*/context-shift": "reply bodies only",
    "ollama/*/killed-runner": "reply bodies only",
    "ollama/*/killed-sigkill": "reply bodies only",
    "ollama/*/killed-sigterm": "reply bodies only",
    "ollama/*/streams": "reply bodies only",
}

LOG: dict[str, dict[str, list[Reading]]] = {"ollama": {"ollama-log-num-parallel": [{"": 2}]}}
