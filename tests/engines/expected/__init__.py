"""What every capture is expected to show: one module per engine folder, gathered here.

A module defines, by capture key, any of:

- `PROBES`: probe name -> the reading it takes from this capture (`NOTHING` = none). Every probe of
  every recipe that is not named must read nothing.
- `DETECTED`: the kind that detection must name, or a piece of the reason why it names none.
- `UNKNOWN`: the signals that stay unknown although the engine was asked; docs/SUPPORT.md says so too.
- `LATE`: what of `meta.yaml`'s truth the engine itself does not show at this moment:
  truth field -> (what is read instead, why).
- `NOT_REPLAYED`: folders that hold no snapshot of a running engine's paths: why.
- `LOG`: probe name -> the distinct readings it takes from `<engine>/<version>/engine.log`, in order.

Keys go from general to special, a later one overrides an earlier one (for `PROBES`, `LATE` and `LOG`
probe by probe, for the others as a whole): `engine`, `engine/*/state`, `engine/version`,
`engine/version/state`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, TypeVar

from engines.signals import Reading, Signal

NOTHING: Reading | None = None

T = TypeVar("T")


def keys(capture: str) -> list[str]:
    """The keys that apply to a capture, general ones first."""
    engine, version, state = capture.split("/")
    return [engine, f"{engine}/*/{state}", f"{engine}/{version}", f"{engine}/{version}/{state}"]


@dataclass
class Expected:
    probes: dict[str, Mapping[str, Reading | None]] = field(default_factory=dict)
    detected: dict[str, str] = field(default_factory=dict)
    unknown: dict[str, frozenset[Signal]] = field(default_factory=dict)
    late: dict[str, Mapping[str, tuple[Any, str]]] = field(default_factory=dict)
    not_replayed: dict[str, str] = field(default_factory=dict)
    log: dict[str, Mapping[str, list[Reading]]] = field(default_factory=dict)

    def probes_of(self, capture: str) -> dict[str, Reading]:
        merged: dict[str, Reading | None] = {}
        for key in keys(capture):
            merged.update(self.probes.get(key, {}))
        return {name: reading for name, reading in merged.items() if reading is not None}

    def late_of(self, capture: str) -> dict[str, tuple[Any, str]]:
        merged: dict[str, tuple[Any, str]] = {}
        for key in keys(capture):
            merged.update(self.late.get(key, {}))
        return merged

    def log_of(self, engine_version: str) -> dict[str, list[Reading]]:
        merged: dict[str, list[Reading]] = {}
        for key in keys(f"{engine_version}/engine.log"):
            merged.update(self.log.get(key, {}))
        return merged


def special(table: Mapping[str, T], capture: str) -> T | None:
    """The entry of the most special key that applies."""
    found = [table[key] for key in keys(capture) if key in table]
    return found[-1] if found else None


def _gather() -> Expected:
    gathered = Expected()
    for module in iter_modules(__path__):
        tables = vars(import_module(f"{__name__}.{module.name}"))
        gathered.probes.update(tables.get("PROBES", {}))
        gathered.detected.update(tables.get("DETECTED", {}))
        gathered.unknown.update(tables.get("UNKNOWN", {}))
        gathered.late.update(tables.get("LATE", {}))
        gathered.not_replayed.update(tables.get("NOT_REPLAYED", {}))
        gathered.log.update(tables.get("LOG", {}))
    return gathered


EXPECTED = _gather()
