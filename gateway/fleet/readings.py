"""The last reading of each signal of one backend, and how old it may be."""

from __future__ import annotations

import math

from engines.plan import Round
from engines.signals import (
    LOAD_FIELDS,
    LOAD_SIGNALS,
    WHOLE_BACKEND,
    ModelInfo,
    Residency,
    Signal,
    Snapshot,
    Value,
)

FULL_INTERVAL_S = 5.0
STALE_AFTER_ROUNDS = 3


class Readings:
    """Each signal with the round that read it.

    What a round read outlives it by three of the signal's intervals at most. What a log line said holds until
    a newer line or the end of the log, and only for signals that no round knows.
    """

    def __init__(self, load_interval_s: float = 1.0) -> None:
        self.load_interval_s = load_interval_s
        self.changes = 0  # grows with each
        self._seen: dict[Signal, tuple[float, Snapshot]] = {}
        self._heard: dict[tuple[Signal, str], tuple[float, Value | None]] = {}

    def add(self, snapshot: Snapshot, now: float) -> None:
        self.changes += 1
        for signal in snapshot.source:
            self._seen[signal] = (now, snapshot)

    def fail(self, round_: Round, names: dict[str, Signal]) -> None:
        """Probes that an idle engine did not answer: their signals are unknown at once."""
        self.changes += 1
        for name in () if round_.busy else round_.failed:
            if name in names and names[name] not in round_.snapshot.source:
                self._seen.pop(names[name], None)

    def hear(self, snapshot: Snapshot, now: float) -> None:
        """What one log line said, of the models that it names."""
        self.changes += 1
        for signal in snapshot.source:
            if signal is Signal.RESIDENCY:
                for model, info in (snapshot.models or {}).items():
                    self._heard[signal, model] = now, info.state
            elif signal in LOAD_FIELDS:
                for model, load in snapshot.load.items():
                    self._heard[signal, model] = now, getattr(load, LOAD_FIELDS[signal])

    def log_ended(self) -> None:
        self.changes += 1
        self._heard.clear()

    def fresh_until(self, now: float) -> float:
        """Until then, and without a change, all answers stay what they are now. The loop's clock."""
        ends = [at + self._lasts(s) for s, (at, _) in self._seen.items() if at + self._lasts(s) >= now]
        return min(ends, default=math.inf)

    def load(self, signal: Signal, served: str, now: float) -> tuple[float | None, float | None]:
        """The value for the model, else for the whole backend; and when it was read."""
        if (seen := self._at(signal, now)) is not None:
            at, snapshot = seen
            load = snapshot.load.get(served) or snapshot.load.get(WHOLE_BACKEND)
            value = getattr(load, LOAD_FIELDS[signal]) if load else None
            return value, None if value is None else at
        for model in (served, WHOLE_BACKEND):
            at, said = self._heard.get((signal, model), (now, None))
            if isinstance(said, int | float):
                return said, at
        return None, None

    def residency(self, served: str, now: float) -> Residency | None:
        if self._at(Signal.RESIDENCY, now) is not None:
            return self._info(Signal.RESIDENCY, served, now).state
        _, said = self._heard.get((Signal.RESIDENCY, served), (now, None))
        return said if isinstance(said, Residency) else None

    def size_bytes(self, served: str, now: float) -> int | None:
        return self._info(Signal.SIZE_BYTES, served, now).size_bytes

    def vram_bytes(self, served: str, now: float) -> int | None:
        return self._info(Signal.VRAM_BYTES, served, now).vram_bytes

    def _at(self, signal: Signal, now: float) -> tuple[float, Snapshot] | None:
        seen = self._seen.get(signal)
        return None if seen is None or now > seen[0] + self._lasts(signal) else seen

    def _lasts(self, signal: Signal) -> float:
        return STALE_AFTER_ROUNDS * (self.load_interval_s if signal in LOAD_SIGNALS else FULL_INTERVAL_S)

    def _info(self, signal: Signal, served: str, now: float) -> ModelInfo:
        seen = self._at(signal, now)
        return (seen[1].models or {}).get(served, ModelInfo()) if seen else ModelInfo()
