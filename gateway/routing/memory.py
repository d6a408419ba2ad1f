"""Models that share one memory: which may be loaded now, and whose turn it is. Pure; takes the clock.

A `Room` is the memory behind one backend address, and holds our count of requests in flight for each model
in it. The rules:

- A load never pushes out a model with requests in flight. Where sizes and memory are known they say what
  fits; where they are not, only models that were seen loaded side by side do. (Engines that swap by
  themselves differ: some wait, some cut the running stream, as llama.cpp's router does up to b10092.)
- While the loaded model has waiters, they are served first: a batch. One that cannot be loaded *claims* the
  room. Once its patience is over, nothing new is granted to the models in its way; they run out, and it is
  loaded. Its own batch then starts: the patience of all other claims starts anew when that load should end.
- Of several claims that are due, the model that was served here longest ago goes first.

Thus each model waits at most one patience, one run-out and one load for each model it contends with (no
starvation), and among busy models there is at most one swap a patience (no thrash). A model pushed out a
moment ago also waits, while others are idle, until the load that pushed it out has paid off: two clients in
turn would otherwise swap with every request.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

RESIDENCY_LAG_S = 15.0
"""How old a reading of residency can be before it is stale: until then it may precede our last load."""
MIN_PATIENCE_S = 2.0
"""Below this a swap would cost more in stalls than any fairness gained by it."""
LULL_S = 2.0
"""A client that goes on asks again sooner; one that thinks for longer would let the memory lie idle."""
MAX_PATIENCE_S = 60.0
"""Nobody waits longer for another model's batch, however slow the loads: clients give up after minutes."""
KEPT_SETS = 16
"""Sets of models seen side by side that are remembered for a room."""


def patience_s(load_s: float, service_s: float) -> float:
    """How long a model waits for a busy one, from the longer load and service of the two. Seconds.

    A stay longer than a load keeps loading to less than half of the time; one request more, so that each
    batch has at least one.
    """
    return min(max(load_s + service_s, MIN_PATIENCE_S), MAX_PATIENCE_S)


@dataclass(slots=True)
class Claim:
    """A model that waits for this memory."""

    model: str
    patience_s: float
    since: float  # when its wait began, or the end of the last load here: expected, or sooner when seen


@dataclass(slots=True)
class _Load:
    """The last load that we started here."""

    target: int
    at: float
    expected_s: float
    paid_off: float | None = None  # clock; None: its first request still runs


class Room:
    """Target ids in, answers out. `memory_bytes` is refreshed by the caller; None is unknown."""

    def __init__(self, memory_bytes: int | None = None) -> None:
        self.memory_bytes = memory_bytes
        self.in_flight: dict[int, int] = {}  # ours; no entry is 0
        self.claims: dict[int, Claim] = {}
        self.resident: tuple[int, str] | None = None  # granted last: target, model
        self.ended_at: dict[int, float] = {}  # clock of the last release
        self._sizes: dict[int, int] = {}
        self._served_at: dict[int, float] = {}
        self._load: _Load | None = None
        self._ready_at = float("-inf")  # when that load should end: patience runs against service, not a load
        self._together: list[frozenset[int]] = []

    @property
    def idle(self) -> bool:
        return not self.in_flight and not self.claims

    def know_size(self, target: int, size_bytes: int | None) -> None:
        if size_bytes is not None:
            self._sizes[target] = size_bytes

    def warm(self, target: int, reported: bool | None, now: float) -> bool | None:
        """Residency as reported, unless our last load of another model may have ended it since that report.

        Which of the others a load pushes out is the engine's choice: only where all fit is it none.
        """
        load = self._load
        if reported is False or load is None or load.target == target or target in self.in_flight:
            return reported
        if (reported is True and now - load.at >= RESIDENCY_LAG_S) or self.fit({target, *self._served_at}):
            return reported
        return False

    def fit(self, targets: Iterable[int]) -> bool | None:
        """Do these models fit side by side? None: unknown."""
        wanted = frozenset(targets)
        if len(wanted) < 2 or any(wanted <= seen for seen in self._together):
            return True
        if self.memory_bytes is None or any(t not in self._sizes for t in wanted):
            return None
        return sum(self._sizes[t] for t in wanted) <= self.memory_bytes

    def displaces(self, target: int) -> bool:
        """May a load of it push out a model that was served here? Also where that is not known."""
        return not self.fit({target, *self._served_at})

    def may_load(self, target: int, now: float, resident_wanted: bool) -> bool:
        """May a load of it start? `resident_wanted`: requests wait for the model that was granted last."""
        if self.held(target, now) or not self.fit({target, *self.in_flight}):
            return False
        if self.resident is None or self.resident[0] == target or self.due(now) == target:
            return True
        if self.fit((target, self.resident[0])):
            return True
        return not resident_wanted and not self._pays_off(target, now)

    def held(self, target: int, now: float) -> bool:
        """No new grants: it stands in the way of one whose patience is over."""
        due = self.due(now) if self.claims else None
        return due is not None and due != target and not self.fit({target, due, *self.in_flight})

    def claim(self, target: int, model: str, patience: float, now: float) -> None:
        if target not in self.claims:
            self.claims[target] = Claim(model, patience, max(now, self._ready_at))

    def due(self, now: float) -> int | None:
        """The claim whose turn it is: of those out of patience the one served longest ago."""
        out = [t for t, c in self.claims.items() if now - c.since >= c.patience_s]
        if not out:
            return None
        return min(out, key=lambda t: (self._served_at.get(t, float("-inf")), self.claims[t].since))

    def take(self, target: int, model: str, *, load_s: float | None, now: float) -> None:
        """A request is sent. `load_s`: what the load that it starts should take; None: it starts none."""
        self.in_flight[target] = self.in_flight.get(target, 0) + 1
        self.claims.pop(target, None)
        if load_s is not None:
            self._load = _Load(target, now, load_s)
            self._ready_at = now + min(load_s, MAX_PATIENCE_S)
            # It was unloaded since, by its time limit or by one of these: to be seen anew.
            self._together = [seen for seen in self._together if target not in seen]
            for claim in self.claims.values():
                claim.since = self._ready_at
        self.resident = target, model
        self._served_at[target] = now

    def give(self, target: int, now: float) -> None:
        left = self.in_flight[target] - 1
        if left:
            self.in_flight[target] = left
        else:
            del self.in_flight[target]
        self._served_at[target] = self.ended_at[target] = now
        load = self._load
        if load is not None and load.target == target and load.paid_off is None:
            # A load that failed at once has earned no stay.
            load.paid_off = now + min(load.expected_s, now - load.at, MAX_PATIENCE_S)
            self._ready_at = min(self._ready_at, now)  # it took less than was guessed
            for claim in self.claims.values():
                claim.since = min(claim.since, now)

    def saw_loaded(self, targets: Iterable[int]) -> None:
        """The engine reported these loaded at one time, and none can have been pushed out since."""
        seen = frozenset(targets)
        if len(seen) > 1 and not any(seen <= known for known in self._together):
            kept = [known for known in self._together if not known < seen]
            self._together = [*kept[-(KEPT_SETS - 1) :], seen]

    def _pays_off(self, target: int, now: float) -> bool:
        """It was served here before, and the load that pushed it out has not paid off yet.

        A load whose model nobody has asked for in a while is waited for no longer.
        """
        load = self._load
        if load is None or load.target == target or target not in self._served_at:
            return False
        if load.paid_off is None:
            return True
        return now < min(load.paid_off, self.ended_at.get(load.target, now) + LULL_S)
