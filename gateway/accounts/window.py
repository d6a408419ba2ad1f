"""Requests of the last minute, by key.

How this works. What this process let in is known to the second: requests within one second share a step, and
a step leaves the window a minute after its last request. So in no 60 s does a key get more than its quota,
and nobody is told to wait for longer than a minute.

What other processes let in comes as cells by minute, of which each process writes its own. Of the minute
before this one as much counts as a window of 60 s still covers, as if its requests had come evenly. Cells
are merged by the larger of each field, like usage. Minutes are numbered as if the loop's clock, which never
steps, had run since the epoch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgspec

WINDOW_S = 60.0
STEP_S = 1.0
SLACK = 1e-6  # who comes when told to must not be turned away by an error of rounding


class MinuteCell(msgspec.Struct, frozen=True, gc=False):
    """Requests of one minute since the epoch, as they travel. Both counts only grow."""

    origin: int
    minute: int
    key: str
    admitted: int
    refunded: int


@dataclass(slots=True)
class Step:
    """Requests let in within `STEP_S` of the first."""

    first: float
    last: float
    count: int


@dataclass(frozen=True, slots=True)
class Place:
    """One request in the window, to be given back with."""

    key: str
    minute: int
    step: Step


@dataclass(slots=True)
class _Own:
    """What this process let in for one key: none of it has left the window."""

    steps: deque[Step] = field(default_factory=deque)
    count: int = 0

    def until(self, now: float) -> None:
        while self.steps and self.steps[0].last + WINDOW_S <= now + SLACK:
            self.count -= self.steps.popleft().count


class Windows:
    def __init__(self, origin: int, clock: Callable[[], float]) -> None:
        """`clock`: seconds since the epoch that never step."""
        self.origin, self.clock = origin, clock
        self._own: dict[str, _Own] = {}
        # key -> (minute, origin) -> (admitted, refunded); this process's too, for others to read
        self._cells: dict[str, dict[tuple[int, int], tuple[int, int]]] = {}
        self._swept = 0

    def admit(self, key: str) -> Place:
        """Count one request. Whether there is room for it has been asked before."""
        now = self.clock()
        minute = int(now // WINDOW_S)
        self._sweep(now, minute)
        own = self._own.setdefault(key, _Own())
        if not own.steps or now - own.steps[-1].first >= STEP_S:
            own.steps.append(Step(now, now, 0))
        step = own.steps[-1]
        step.last = now
        step.count += 1
        own.count += 1
        self._bump(key, minute, 1, 0)
        return Place(key, minute, step)

    def refund(self, place: Place) -> None:
        """As if the request had not come. Once for each place."""
        own = self._own.get(place.key)
        if own is not None and any(step is place.step for step in own.steps):
            place.step.count -= 1
            own.count -= 1
        if (place.minute, self.origin) in self._cells.get(place.key, {}):
            self._bump(place.key, place.minute, 0, 1)

    def used(self, key: str) -> float:
        """Requests in the window that ends now."""
        now = self.clock()
        own = self._own_now(key, now)
        return (own.count if own is not None else 0) + self._others(key, now)

    def wait_s(self, key: str, rpm: int) -> float:
        """Seconds until the window has room for one more, if nothing else comes. 0: it has."""
        now = self.clock()
        own = self._own_now(key, now)
        count, free_at = (own.count if own is not None else 0), now
        if count + self._others(key, now) <= rpm - 1 + SLACK:
            return 0.0
        waits = [self._others_at_most(key, rpm - 1 - count, now)]
        for step in own.steps if own is not None else ():
            count, free_at = count - step.count, step.last + WINDOW_S
            waits.append(max(free_at, self._others_at_most(key, rpm - 1 - count, now)))
        return max(SLACK, min(waits) - now)

    def reset_s(self, key: str) -> float:
        """Seconds until the window is empty, if nothing comes."""
        now = self.clock()
        own = self._own_now(key, now)
        last = own.steps[-1].last + WINDOW_S if own is not None and own.steps else now
        return max(last, self._others_at_most(key, 0, now)) - now

    # -- what others let in --------------------------------------------------------------------

    def export(self) -> list[MinuteCell]:
        """The cells that can still be in somebody's window."""
        now = self.clock()
        self._sweep(now, int(now // WINDOW_S))
        return [
            MinuteCell(origin, minute, key, *counts)
            for key, cells in self._cells.items()
            for (minute, origin), counts in cells.items()
        ]

    def merge(self, cells: Iterable[MinuteCell]) -> None:
        oldest = int(self.clock() // WINDOW_S) - 1
        for c in cells:
            if c.minute >= oldest:
                known = self._cells.setdefault(c.key, {})
                admitted, refunded = known.get((c.minute, c.origin), (0, 0))
                known[c.minute, c.origin] = max(admitted, c.admitted), max(refunded, c.refunded)

    def _others(self, key: str, now: float) -> float:
        minute = int(now // WINDOW_S)
        before, this = self._theirs(key, minute - 1), self._theirs(key, minute)
        return before * (minute + 1 - now / WINDOW_S) + this

    def _others_at_most(self, key: str, most: float, now: float) -> float:
        """When they will be, as time passes: never before now; never, if even none were too many."""
        minute = int(now // WINDOW_S)
        before, this = self._theirs(key, minute - 1), self._theirs(key, minute)
        if most < 0:
            return float("inf")
        if this <= most:
            at = minute + 1 - (most - this) / before if before else minute
        else:
            at = minute + 2 - most / this
        return max(now, at * WINDOW_S)

    def _theirs(self, key: str, minute: int) -> int:
        cells = self._cells.get(key)
        if cells is None:
            return 0
        return sum(max(0, a - r) for (m, o), (a, r) in cells.items() if m == minute and o != self.origin)

    # -- upkeep --------------------------------------------------------------------------------

    def _own_now(self, key: str, now: float) -> _Own | None:
        own = self._own.get(key)
        if own is not None:
            own.until(now)
        return own

    def _bump(self, key: str, minute: int, admitted: int, refunded: int) -> None:
        cells = self._cells.setdefault(key, {})
        a, r = cells.get((minute, self.origin), (0, 0))
        cells[minute, self.origin] = a + admitted, r + refunded

    def _sweep(self, now: float, minute: int) -> None:
        if minute == self._swept:
            return
        self._swept = minute
        for key in list(self._own):
            own = self._own_now(key, now)
            if own is not None and not own.steps:
                del self._own[key]
        for key, cells in list(self._cells.items()):
            left = {at: counts for at, counts in cells.items() if at[0] >= minute - 1}
            if left:
                self._cells[key] = left
            else:
                del self._cells[key]
