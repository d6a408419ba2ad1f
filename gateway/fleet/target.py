"""A model on a backend, and what its signals say as of now."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from engines.signals import Residency, Signal
from gateway.fleet.stats import Stats

if TYPE_CHECKING:
    from gateway.fleet.backend import Backend

_ids = itertools.count(1)


@dataclass(frozen=True, slots=True)
class TargetView:
    """Signals of one target. None: unknown, or older than three of its intervals."""

    warm: bool | None = None  # False: known cold
    loading: bool = False
    running: int | None = None
    waiting: int | None = None
    load_at: float | None = None  # clock of the older of the two reads above
    capacity: int | None = None
    kv_usage: float | None = None
    size_bytes: int | None = None
    vram_bytes: int | None = None


@dataclass(eq=False, slots=True)
class Target:
    """Lives as long as its backend is known, also while it is down or unlisted. Its id is never reused."""

    backend: Backend
    model: str  # the name clients use
    served: str  # the engine's name
    stats: Stats = field(default_factory=Stats)
    generation: int = 0  # what the engine had cached is gone with each step
    last_end: float | None = None  # of a successful reply
    id: int = field(default_factory=lambda: next(_ids))
    _view: TargetView = field(default_factory=TargetView)
    _made_of: tuple[object, ...] = ()  # what that view depends on, besides the clock
    _until: float = float("-inf")

    def __repr__(self) -> str:
        return f"<Target {self.id} {self.key}>"

    @property
    def key(self) -> str:
        """The same in every run and on every instance."""
        return f"{self.backend.url} {self.model}"

    @property
    def up(self) -> bool:
        return self.backend.up and self.backend.models.get(self.model) == self.served

    def replied(self, now: float) -> None:
        """A successful reply ended: the model is loaded until the next full round says otherwise."""
        self.last_end = now

    def view(self, now: float) -> TargetView:
        known = self.backend.readings
        made_of = (known.changes, self.last_end, self.backend.config)
        if now > self._until or made_of != self._made_of:
            self._view, self._made_of, self._until = self._look(now), made_of, known.fresh_until(now)
        return self._view

    def _look(self, now: float) -> TargetView:
        known = self.backend.readings
        running, running_at = known.load(Signal.RUNNING, self.served, now)
        waiting, waiting_at = known.load(Signal.WAITING, self.served, now)
        capacity, _ = known.load(Signal.CAPACITY, self.served, now)
        kv_usage, _ = known.load(Signal.KV_USAGE, self.served, now)
        state = known.residency(self.served, now)
        ats = [at for at in (running_at, waiting_at) if at is not None]
        return TargetView(
            warm=True if self._replied_since_full_round() else _warm(state),
            loading=state is Residency.LOADING,
            running=None if running is None else int(running),
            waiting=None if waiting is None else int(waiting),
            load_at=min(ats, default=None),
            capacity=self.backend.config.capacity if capacity is None else int(capacity),
            kv_usage=kv_usage,
            size_bytes=known.size_bytes(self.served, now),
            vram_bytes=known.vram_bytes(self.served, now),
        )

    def _replied_since_full_round(self) -> bool:
        full = self.backend.view
        return self.last_end is not None and (full is None or self.last_end > full.at)


def _warm(state: Residency | None) -> bool | None:
    return None if state is None else state is Residency.LOADED
