"""The fixed vocabulary of engine state. `None` is unknown, everywhere, and never 0."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Signal(StrEnum):
    """One piece of engine state that Pharos routes on."""

    VERSION = "version"  # of the engine, per backend
    MODELS = "models"  # which models the backend lists
    RESIDENCY = "residency"  # per model: loaded, loading or cold
    VRAM_BYTES = "vram_bytes"  # per model
    SIZE_BYTES = "size_bytes"  # per model: what a cold load will need
    RUNNING = "running"  # requests being worked on, per model or "" = whole backend
    WAITING = "waiting"  # requests queued inside the engine
    CAPACITY = "capacity"  # requests it works on at a time
    KV_USAGE = "kv_usage"  # 0..1 of the KV cache


class Residency(StrEnum):
    LOADED = "loaded"
    LOADING = "loading"
    COLD = "cold"


Value = str | int | float | Residency

WHOLE_BACKEND = ""
"""The key of a reading that names no model."""

Reading = Mapping[str, Value | None]
"""What one probe read, by model (or `WHOLE_BACKEND`).

VERSION has one entry. MODELS has one entry per listed model, its value is of no account. A key
whose value is None was named by the engine without a value that can be believed.
"""

LOAD_SIGNALS = frozenset({Signal.RUNNING, Signal.WAITING, Signal.KV_USAGE})
"""Change with every request, so they are read in each round; the rest in every full round."""

MODEL_FIELDS = {
    Signal.RESIDENCY: "state",
    Signal.VRAM_BYTES: "vram_bytes",
    Signal.SIZE_BYTES: "size_bytes",
}
LOAD_FIELDS = {
    Signal.RUNNING: "running",
    Signal.WAITING: "waiting",
    Signal.CAPACITY: "capacity",
    Signal.KV_USAGE: "kv_usage",
}


@dataclass(frozen=True, slots=True)
class ModelInfo:
    state: Residency | None = None
    vram_bytes: int | None = None
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Load:
    running: int | None = None
    waiting: int | None = None
    capacity: int | None = None
    kv_usage: float | None = None  # 0..1


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The signals of one backend as one round read them. `models` is None when no probe knew the list."""

    version: str | None = None
    models: Mapping[str, ModelInfo] | None = None
    load: Mapping[str, Load] = field(default_factory=dict)
    source: Mapping[Signal, str] = field(default_factory=dict)  # signal -> name of the probe that filled it

    @property
    def unknown(self) -> tuple[Signal, ...]:
        return tuple(s for s in Signal if s not in self.source)
