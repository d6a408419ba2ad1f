"""Models that do not fit together, on virtual time: who is served, and how often they swap."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.routing.memory import MAX_PATIENCE_S, MIN_PATIENCE_S, Room, patience_s
from tests.gateway.routing.doubles import Bench, TestBackend, TestStats, target


class Box:
    """One engine whose memory holds one model. It obeys: a request for another model loads that one.

    Residency is reported every 5 s, as by a full round; every second the scheduler is kicked.
    """

    def __init__(self, *models: str, load_s: float = 4.0, service_s: float = 1.0, capacity: int = 1) -> None:
        backend = TestBackend("box")
        self.targets = {m: target(m, backend, capacity=capacity, warm=False) for m in models}
        for t in self.targets.values():
            t.stats = TestStats(load_s=load_s, service_s=service_s)
        self.load_s, self.service_s = load_s, service_s
        self.bench = Bench(*self.targets.values())
        self.resident: str | None = None
        self.ready_at = 0.0
        self.swaps: list[float] = []
        self.served: Counter[str] = Counter()
        self.waits: dict[str, list[float]] = {m: [] for m in models}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._running: Counter[str] = Counter()
        self._rounds = itertools.count()
        self.at(0, self._round)

    def at(self, delay_s: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.bench.clock.now + delay_s, next(self._order), what))

    def run(self, seconds: float) -> None:
        end = self.bench.clock.now + seconds
        while self._events and self._events[0][0] <= end:
            self.bench.clock.now, _, what = heapq.heappop(self._events)
            what()
        self.bench.clock.now = end

    def client(self, model: str, key: str, *, think_s: float = 0.0, times: int | None = None) -> None:
        """Asks again as soon as it was answered and has thought."""
        if times == 0:
            return
        ticket = self.bench.ask(model, key)

        def granted() -> None:
            assert ticket.lease is not None
            lease = ticket.lease
            self._start(model)
            self.waits[model].append(lease.waited_s)

            def end() -> None:
                self._running[model] -= 1
                self.served[model] += 1
                lease.release()
                left = None if times is None else times - 1
                self.at(think_s, lambda: self.client(model, key, think_s=think_s, times=left))

            self.at(max(self.ready_at - self.bench.clock.now, 0.0) + self.service_s, end)

        if ticket.lease is not None:
            granted()
        else:
            ticket.on_settled = granted

    def _start(self, model: str) -> None:
        now = self.bench.clock.now
        if self.resident != model:
            assert not any(n for m, n in self._running.items() if m != model), "it pushes out a model in use"
            self.resident, self.ready_at = model, now + self.load_s
            self.swaps.append(now)
        self._running[model] += 1

    def _round(self) -> None:
        if next(self._rounds) % 5 == 0:
            for model, t in self.targets.items():
                t.seen = replace(t.seen, warm=model == self.resident)
        self.bench.scheduler.kick()
        self.at(1, self._round)


def test_a_model_is_served_within_its_patience_though_five_clients_keep_another_busy() -> None:
    box = Box("a", "b")
    for i in range(5):
        box.client("a", f"a{i}")
    box.run(60)
    box.client("b", "b", times=1)
    box.run(60)
    assert box.waits["b"][0] <= patience_s(4.0, 1.0) + 1 + 1  # a round, and the request that runs
    assert box.served["b"] == 1
    assert len(box.swaps) == 3  # a, b, and back


def test_a_model_that_was_never_loaded_is_taken_to_load_like_its_neighbour() -> None:
    box = Box("a", "b", load_s=1.0)
    box.targets["b"].stats = TestStats(load_s=None, service_s=None)
    box.client("a", "a")
    box.client("a", "a too")
    box.run(30)
    box.client("b", "b", times=1)
    box.run(30)
    assert box.waits["b"][0] <= patience_s(1.0, 1.0) + 1 + 1


def test_two_busy_models_share_the_memory_and_swap_once_a_patience() -> None:
    box = Box("a", "b")
    for i in range(5):
        box.client("a", f"a{i}")
        box.client("b", f"b{i}")
    box.run(600)
    assert len(box.swaps) <= 600 / (4.0 + patience_s(4.0, 1.0)) + 1
    assert min(box.served.values()) > 0.4 * box.served.total()


def test_three_busy_models_each_get_their_turn() -> None:
    box = Box("a", "b", "c")
    for i in range(4):
        for model in "abc":
            box.client(model, f"{model}{i}")
    box.run(900)
    assert min(box.served.values()) > 0.25 * box.served.total()


def test_one_key_with_both_models_does_not_swap_with_every_request() -> None:
    box = Box("a", "b")
    for model in "ab" * 6:
        box.client(model, "one key", times=1)
    box.run(120)
    assert box.served == {"a": 6, "b": 6}
    assert len(box.swaps) <= 4


def test_two_clients_in_turn_swap_no_more_often_than_a_load_pays_off() -> None:
    box = Box("a", "b", load_s=5.0, service_s=1.0)
    box.client("a", "a", think_s=0.5)
    box.client("b", "b", think_s=0.5)
    box.run(600)
    gaps = [later - sooner for sooner, later in itertools.pairwise(box.swaps[1:])]
    assert min(gaps) >= 2 * 5.0
    assert min(box.served.values()) > 0.4 * box.served.total()


def test_a_model_that_nobody_asks_for_any_more_makes_way_before_its_load_has_paid_off() -> None:
    box = Box("a", "b", load_s=10.0, service_s=1.0)
    box.client("a", "a", times=1)
    box.run(30)
    box.client("b", "b", times=1)
    box.run(11.0)
    box.client("a", "c", times=1)
    box.run(30)
    assert box.waits["a"][-1] <= 3.0


def test_an_idle_model_makes_way_at_once_for_one_that_is_new() -> None:
    box = Box("a", "b")
    box.client("a", "a", times=1)
    box.run(10)
    box.client("b", "b", times=1)
    assert box.waits["b"] == [0.0]


def test_a_claim_ends_with_its_last_waiter() -> None:
    box = Box("a", "b")
    box.client("a", "a")
    box.run(20)
    ticket = box.bench.ask("b")
    box.bench.scheduler.leave(ticket)
    before = box.served["a"]
    box.run(60)
    assert box.served["a"] - before >= 59
    assert len(box.swaps) == 1


@settings(max_examples=40, deadline=None)
@given(
    load_s=st.floats(0.5, 40), service_s=st.floats(0.1, 10), capacity=st.integers(1, 3),
    clients=st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 20)), min_size=2, max_size=9),
)  # fmt: skip
def test_neither_thrash_nor_starvation(
    load_s: float, service_s: float, capacity: int, clients: list[tuple[str, float]]
) -> None:
    box = Box("a", "b", "c", load_s=load_s, service_s=service_s, capacity=capacity)
    for i, (model, think_s) in enumerate(clients):
        box.client(model, f"key {i}", think_s=think_s)
    box.run(1000)
    turn = load_s + patience_s(load_s, service_s) + 1 + service_s
    for model, waits in box.waits.items():
        own = sum(m == model for m, _ in clients)
        # In the worst case its batch is one request a turn, and all of its model's clients are before it.
        assert max(waits, default=0.0) <= 3 * turn * (own + 1)
        assert not own or box.served[model] > 0
    assert len(box.swaps) <= 3 + 1000 / load_s


# The room by itself


@pytest.mark.parametrize(
    ("load_s", "service_s", "expected"), [(4, 1, 5), (0.1, 0.1, MIN_PATIENCE_S), (300, 60, MAX_PATIENCE_S)]
)
def test_patience_follows_load_and_service_within_bounds(
    load_s: float, service_s: float, expected: float
) -> None:
    assert patience_s(load_s, service_s) == expected


def test_a_report_of_residency_older_than_our_last_load_is_not_believed() -> None:
    room = Room()
    room.take(1, "a", load_s=None, now=0)
    room.give(1, now=1)
    room.take(2, "b", load_s=5.0, now=10)
    assert room.warm(1, True, now=11) is False
    assert room.warm(1, None, now=99) is False  # a stale report is no news
    assert room.warm(1, True, now=25) is True
    assert room.warm(2, True, now=11) is True


def test_what_was_seen_side_by_side_is_forgotten_when_one_must_be_loaded_again() -> None:
    room = Room()
    room.saw_loaded([1, 2])
    assert room.fit([1, 2]) is True
    room.take(2, "b", load_s=5.0, now=0)
    assert room.fit([1, 2]) is None


def test_of_due_claims_the_model_served_longest_ago_goes_first() -> None:
    room = Room()
    room.take(2, "b", load_s=None, now=0)
    room.give(2, now=1)
    room.take(1, "a", load_s=None, now=5)
    room.claim(2, "b", 5.0, now=6)
    room.claim(3, "c", 5.0, now=7)
    assert (room.due(10), room.due(11), room.due(12)) == (None, 2, 3)


def test_a_model_just_loaded_has_its_batch_before_a_third_that_waited_as_long() -> None:
    room = Room()
    room.take(1, "a", load_s=None, now=0)
    room.claim(2, "b", 5.0, now=0)
    room.claim(3, "c", 5.0, now=0)
    room.give(1, now=6)
    room.take(2, "b", load_s=4.0, now=6)
    assert (room.due(14.9), room.due(15)) == (None, 3)  # 4 s of load, then c's patience


def test_patience_runs_from_the_first_answer_when_the_load_took_less_than_was_guessed() -> None:
    room = Room()
    room.take(1, "a", load_s=10.0, now=0)
    room.claim(2, "b", 5.0, now=1)
    room.give(1, now=3)
    room.claim(3, "c", 5.0, now=4)
    assert (room.due(7.9), room.due(8)) == (None, 2)
    assert room.claims[3].since == 4


def test_all_models_in_the_way_are_held_when_they_are_too_much_together() -> None:
    room = Room(10)
    for t, size in ((1, 4), (2, 5), (3, 3)):
        room.know_size(t, size)
    for t in (1, 2):
        room.take(t, str(t), load_s=None, now=0)
    room.claim(3, "c", 5.0, now=0)
    assert not room.held(1, 4)
    assert room.held(1, 5)
    assert room.held(2, 5)
    room.give(2, now=6)
    assert not room.held(1, 6)
    assert room.may_load(3, 6, resident_wanted=True)


def test_a_load_displaces_what_was_served_here_and_does_not_fit_beside_it() -> None:
    room = Room(memory_bytes=10)
    for model, size in ((1, 6), (2, 6), (3, 3)):
        room.know_size(model, size)
    assert not room.displaces(1)
    room.take(1, "x", load_s=None, now=0.0)
    assert room.displaces(2)
    assert not room.displaces(3)


def test_where_sizes_are_unknown_a_load_is_taken_to_displace_what_was_served() -> None:
    room = Room()
    assert not room.displaces(1)
    room.take(1, "x", load_s=None, now=0.0)
    assert room.displaces(2)
    room.saw_loaded([1, 2])
    assert not room.displaces(2)
