"""Virtual time: what is due next, in order. Nothing here sleeps."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count


class Clock:
    """Seconds since the start. `clock()` is now."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    def __call__(self) -> float:
        return self.now

    @property
    def next_at(self) -> float | None:
        return self._due[0][0] if self._due else None

    def after(self, seconds: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._due, (self.now + seconds, next(self._order), happen))

    def run_due(self) -> None:
        """What is due now, also what becomes due meanwhile; of one instant, in the order it was asked for."""
        while self._due and self._due[0][0] <= self.now:
            heapq.heappop(self._due)[2]()
