"""Whatever arrives, ends, leaves, fails and is reloaded, in any order: what must hold after each step."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway.routing.lease import NoneUp, QueueFull
from gateway.routing.memory import MAX_PATIENCE_S
from gateway.routing.ticket import Ticket
from tests.gateway.routing.doubles import GIB, Bench, TestBackend, TestConfig, TestTarget, target

Waiting = Ticket[TestTarget]
LIMIT = 12


class Requests(RuleBasedStateMachine):
    """`one` holds one model of two, its memory unknown; `big` two small ones of three, its memory known;
    `plain` has one model and does not report residency. The engines obey: a load pushes out the oldest idle."""

    def __init__(self) -> None:
        super().__init__()
        one, plain = TestBackend("one"), TestBackend("plain")
        big = TestBackend("big", TestConfig(10.0))
        self.targets = [
            target("x", one, warm=False, capacity=1),
            target("y", one, warm=False, capacity=None),
            target("x", big, warm=False, capacity=2, size_bytes=4 * GIB),
            target("y", big, warm=False, capacity=1, size_bytes=5 * GIB),
            target("z", big, warm=False, capacity=1, size_bytes=8 * GIB),
            target("x", plain, warm=None, capacity=1),
        ]
        self.room = {"one": 1, "big": 10 * GIB}
        self.bench = Bench(*self.targets, queue_limit=LIMIT)
        self.loaded: dict[str, list[TestTarget]] = {"one": [], "big": []}
        self.waiting: list[Waiting] = []
        self.running: list[Waiting] = []
        self.settled: Counter[Waiting] = Counter()
        self.failed = 0

    def size(self, t: TestTarget) -> int:
        return t.seen.size_bytes or 1

    def in_use(self, t: TestTarget) -> int:
        return sum(r.lease is not None and r.lease.target is t for r in self.running)

    def start(self, ticket: Waiting) -> None:
        """The engine gets the request."""
        self.running.append(ticket)
        assert ticket.lease is not None
        t = ticket.lease.target
        if t.backend.url == "plain" or t in (loaded := self.loaded[t.backend.url]):
            return
        while sum(map(self.size, [*loaded, t])) > self.room[t.backend.url]:
            idle = [other for other in loaded if not self.in_use(other)]
            assert idle, f"loading {t} pushes out a model in use"
            loaded.remove(idle[0])
        loaded.append(t)

    @rule(
        model=st.sampled_from("xxyyz"), key=st.sampled_from("abc"), weight=st.integers(1, 3),
        tokens=st.sampled_from([0, 100, 20_000]), retry=st.booleans(), tried=st.integers(0, 5),
        cached=st.dictionaries(st.integers(0, 5), st.sampled_from([1, 90, 15_000, 30_000]), max_size=2),
    )  # fmt: skip
    def arrive(
        self, model: str, key: str, weight: int, tokens: int, retry: bool, tried: int, cached: dict[int, int]
    ) -> None:
        exclude = frozenset({self.targets[tried].id}) if retry else frozenset()
        matched = {self.targets[n].id: held for n, held in cached.items()}
        try:
            ticket = self.bench.ask(
                model, key, tokens=tokens, weight=weight, exclude=exclude, retry=retry, matched=matched
            )
        except QueueFull as full:
            assert self.bench.scheduler.waiting >= LIMIT
            assert full.retry_after_s > 0
        except NoneUp:
            assert all(t.id in exclude for t in self.bench.fleet.targets_of(model))
        else:
            if ticket.lease is not None:
                self.start(ticket)
            else:
                self.waiting.append(ticket)
                ticket.on_settled = lambda: self.settle(ticket)

    def settle(self, ticket: Waiting) -> None:
        self.settled[ticket] += 1
        assert self.settled[ticket] == 1, "granted twice"
        self.waiting.remove(ticket)
        if ticket.lease is not None:
            self.start(ticket)
        else:
            self.failed += 1

    @rule(n=st.integers(0, 50), twice=st.booleans())
    def end(self, n: int, twice: bool) -> None:
        if self.running:
            ticket = self.running.pop(n % len(self.running))
            assert ticket.lease is not None
            ticket.lease.release()
            if twice:
                ticket.lease.release()

    @rule(n=st.integers(0, 50))
    def leave(self, n: int) -> None:
        if self.waiting:
            self.bench.scheduler.leave(self.waiting.pop(n % len(self.waiting)))

    @rule(n=st.integers(0, 50))
    def leave_once_granted(self, n: int) -> None:
        if self.running:
            self.bench.scheduler.leave(self.running.pop(n % len(self.running)))

    @rule(url=st.sampled_from(["one", "big", "plain"]))
    def fail_or_return(self, url: str) -> None:
        backend = next(t.backend for t in self.targets if t.backend.url == url)
        backend.up = not backend.up
        self.bench.scheduler.kick()

    @rule(n=st.integers(0, 5))
    def unload(self, n: int) -> None:
        """Its time limit is over."""
        t = self.targets[n]
        if not self.in_use(t) and t in self.loaded.get(t.backend.url, []):
            self.loaded[t.backend.url].remove(t)

    @rule(seconds=st.floats(0.1, 20), bypass=st.integers(0, 2))
    def round(self, seconds: float, bypass: int) -> None:
        """The engines are read; some requests there are not ours."""
        self.bench.clock.now += seconds
        for t in self.targets:
            warm = None if t.backend.url == "plain" else t in self.loaded[t.backend.url]
            running = self.in_use(t) + bypass if t.seen.capacity else None
            t.seen = replace(t.seen, warm=warm, running=running, load_at=self.bench.clock.now)
        self.bench.scheduler.kick()

    @invariant()
    def places_taken_are_places_held(self) -> None:
        for t in self.targets:
            assert self.bench.scheduler.in_flight(t) == self.in_use(t) <= (t.seen.capacity or 2)

    @invariant()
    def no_waiter_is_lost(self) -> None:
        assert self.bench.scheduler.waiting == len(self.waiting) <= 2 * LIMIT + 99
        by_key = Counter(t.ask.key for t in self.waiting)
        assert self.bench.scheduler.waiting_by_key() == by_key
        assert all(t.lease is None and t.error is None for t in self.waiting)

    @invariant()
    def no_loaded_place_is_left_idle(self) -> None:
        """Only one with a cached prefix elsewhere may wait for that. An engine at a prompt is not idle."""
        scheduler, now = self.bench.scheduler, self.bench.clock.now
        for ask in (w.ask for w in self.waiting if not w.ask.matched):
            for t in self.bench.fleet.targets_of(ask.model):
                seen = scheduler._candidate(t, now, 0)
                assert seen.free <= 0 or seen.cold or seen.prefilling_s or t.id in ask.exclude

    def teardown(self) -> None:
        """Everything that waits is served once engines are up and requests end: nobody starves."""
        for t in self.targets:
            t.backend.up = True
        for _ in range(40 + 4 * len(self.waiting)):
            self.round(MAX_PATIENCE_S / 4, 0)
            while self.running:
                self.end(0, False)
        assert not self.waiting, "starved"
        self.places_taken_are_places_held()
        assert not any(room.claims for room in self.bench.scheduler._rooms.values())
        assert not self.bench.scheduler._busy
        assert not +self.bench.scheduler._waiting


TestRequests = Requests.TestCase
TestRequests.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
