"""A fleet and a clock for tests of the scheduler: plain values, nothing runs by itself."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.routing.lease import NO_MATCHES, Ask, Lease
from gateway.routing.policy import Policy, cost
from gateway.routing.ports import Stats, View
from gateway.routing.scheduler import Scheduler
from gateway.routing.ticket import Ticket

GIB = 2**30


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass(frozen=True, slots=True)
class TestView:
    __test__ = False
    warm: bool | None = True
    loading: bool = False
    running: int | None = None
    waiting: int | None = None
    load_at: float | None = None
    capacity: int | None = 1
    kv_usage: float | None = None
    size_bytes: int | None = None
    vram_bytes: int | None = None


@dataclass
class TestStats:
    __test__ = False
    prefill_s_per_token: float | None = 0.001
    load_s: float | None = 4.0
    service_s: float | None = 1.0


@dataclass(frozen=True)
class TestConfig:
    __test__ = False
    memory_gb: float | None = None


@dataclass(eq=False)
class TestBackend:
    __test__ = False
    url: str
    config: TestConfig = field(default_factory=TestConfig)
    up: bool = True


_ids = itertools.count(1)


@dataclass(eq=False)
class TestTarget:
    __test__ = False
    backend: TestBackend
    model: str
    seen: TestView = field(default_factory=TestView)
    stats: TestStats = field(default_factory=TestStats)
    id: int = field(default_factory=lambda: next(_ids))

    def __repr__(self) -> str:
        return f"{self.model}@{self.backend.url}"

    @property
    def key(self) -> str:
        return f"{self.backend.url} {self.model}"

    def view(self, now: float) -> TestView:
        return self.seen


def _fits_the_port(view: TestView, stats: TestStats) -> tuple[View, Stats]:
    return view, stats


class TestFleet:
    __test__ = False

    def __init__(self, *targets: TestTarget) -> None:
        self.targets = list(targets)

    def targets_of(self, model: str) -> list[TestTarget]:
        return [t for t in self.targets if t.model == model and t.backend.up]

    def lists(self, model: str) -> bool:
        return any(t.model == model for t in self.targets)


def target(model: str = "m", backend: TestBackend | str = "a", **seen: object) -> TestTarget:
    where = backend if isinstance(backend, TestBackend) else TestBackend(backend)
    return TestTarget(where, model, TestView(**seen))  # type: ignore[arg-type]


class Bench:
    """A scheduler over a test fleet, and short words for what requests do."""

    def __init__(self, *targets: TestTarget, policy: Policy = cost, queue_limit: int = 1000) -> None:
        self.clock = Clock()
        self.fleet = TestFleet(*targets)
        seeds = itertools.count()
        self.scheduler: Scheduler[TestTarget] = Scheduler(
            self.fleet, policy, self.clock, queue_limit=queue_limit, seed=lambda: next(seeds)
        )

    def ask(
        self, model: str = "m", key: str = "k", *, tokens: int = 100, weight: int = 1,
        exclude: frozenset[int] = frozenset(), retry: bool = False, matched: Mapping[int, int] = NO_MATCHES,
    ) -> Ticket[TestTarget]:  # fmt: skip
        return self.scheduler.enter(Ask(key, model, tokens, weight, exclude, retry, matched))

    def lease(self, model: str = "m", key: str = "k") -> Lease[TestTarget]:
        return granted(self.ask(model, key))

    def later(self, seconds: float) -> None:
        self.clock.now += seconds
        self.scheduler.kick()


def granted(ticket: Ticket[TestTarget]) -> Lease[TestTarget]:
    assert ticket.lease is not None, "it still waits"
    return ticket.lease


def waits(ticket: Ticket[TestTarget]) -> bool:
    return ticket.lease is None and ticket.error is None
