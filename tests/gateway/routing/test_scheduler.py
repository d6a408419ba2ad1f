"""What a request meets on its way to a place: at once, in the queue, or not at all."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from functools import partial

import pytest

from gateway.routing.lease import Ask, NoneUp, NoSuchModel, QueueFull
from gateway.routing.policy import Why, least_load
from gateway.routing.ticket import Ticket
from tests.gateway.routing.doubles import Bench, TestBackend, TestConfig, TestTarget, granted, target, waits


def test_a_free_place_is_taken_at_once() -> None:
    m = target(capacity=2)
    bench = Bench(m)
    lease = bench.lease()
    assert (lease.target, lease.cold, lease.waited_s, bench.scheduler.in_flight(m)) == (m, False, 0.0, 1)
    lease.release()
    assert bench.scheduler.in_flight(m) == 0


def test_giving_a_place_back_twice_frees_it_once() -> None:
    m = target(capacity=2)
    bench = Bench(m)
    first, _second = bench.lease(), bench.lease()
    first.release()
    first.release()
    assert bench.scheduler.in_flight(m) == 1


def test_a_lease_is_given_back_when_its_block_is_left_by_an_error() -> None:
    m = target()
    bench = Bench(m)
    with pytest.raises(ZeroDivisionError), bench.lease():
        _ = 1 / 0
    assert bench.scheduler.in_flight(m) == 0


def test_who_finds_no_place_gets_the_next_that_is_freed() -> None:
    bench = Bench(target())
    first, second = bench.lease(), bench.ask()
    assert waits(second)
    bench.clock.now += 3
    first.release()
    assert granted(second).waited_s == 3
    assert bench.scheduler.waiting == 0


def test_a_waiter_is_told_once_and_may_give_its_place_to_the_next_right_then() -> None:
    bench = Bench(target())
    first, second, third = bench.lease(), bench.ask(), bench.ask()
    told: list[object] = []

    def give_on(ticket: Ticket[TestTarget]) -> None:
        told.append(ticket)
        granted(ticket).release()

    for ticket in (second, third):
        ticket.on_settled = partial(give_on, ticket)
    first.release()
    assert told == [second, third]
    assert (bench.scheduler.waiting, bench.scheduler.in_flight(first.target)) == (0, 0)


def test_a_waiter_may_land_on_another_target_than_it_waited_for() -> None:
    a, b = target(backend="a"), target(backend="b", warm=False)
    bench = Bench(a, b)
    bench.lease()
    second = bench.ask()
    assert waits(second)
    b.seen = replace(b.seen, warm=True)
    bench.scheduler.kick()
    assert granted(second).target is b


def test_an_unknown_model_and_a_model_whose_backends_are_down_differ() -> None:
    down = target("known", TestBackend("a", up=False))
    bench = Bench(down)
    with pytest.raises(NoSuchModel, match="no backend lists the model 'other'"):
        bench.ask("other")
    with pytest.raises(NoneUp, match="no backend that serves 'known' is up"):
        bench.ask("known")


def test_a_retry_is_not_sent_where_it_was_tried() -> None:
    a, b = target(backend="a", capacity=9), target(backend="b", capacity=1)
    bench = Bench(a, b)
    assert granted(bench.ask(exclude=frozenset({a.id}))).target is b
    with pytest.raises(NoneUp, match="no other backend"):
        bench.ask(exclude=frozenset({a.id, b.id}))


def test_waiters_are_told_when_the_last_backend_goes() -> None:
    m = target()
    bench = Bench(m)
    bench.lease()
    second = bench.ask()
    m.backend.up = False
    bench.scheduler.kick()
    assert isinstance(second.error, NoneUp)
    assert bench.scheduler.waiting == 0


def test_a_full_queue_turns_away_with_an_estimate_but_never_a_retry() -> None:
    bench = Bench(target(), queue_limit=2)
    bench.lease()
    _waiting = [bench.ask(), bench.ask()]
    with pytest.raises(QueueFull) as full:
        bench.ask()
    assert full.value.retry_after_s == pytest.approx(
        3.1
    )  # the prompt that runs, and three seconds of service
    assert waits(bench.ask(retry=True))


def test_keys_take_turns_and_a_retry_is_first_of_its_key() -> None:
    bench = Bench(target())
    running = bench.lease()
    queue = {
        "a1": bench.ask(key="a"), "a2": bench.ask(key="a"), "b1": bench.ask(key="b"),
        "a retry": bench.ask(key="a", retry=True),
    }  # fmt: skip
    order = []
    while queue:
        running.release()
        name = next(n for n, t in queue.items() if t.lease is not None)
        order.append(name)
        running = granted(queue.pop(name))
    assert order == ["a retry", "b1", "a1", "a2"]


def test_shares_follow_weights_over_a_thousand_grants() -> None:
    bench = Bench(target(capacity=3), queue_limit=3000)
    weights = {"a": 1, "b": 2, "c": 5}
    running = [bench.lease(key="z") for _ in range(3)]
    queue = [bench.ask(key=k, weight=w, tokens=10 * i) for k, w in weights.items() for i in range(1000)]
    grants: Counter[str] = Counter()
    for _ in range(1000):
        running.pop(0).release()
        ticket = next(t for t in queue if t.lease is not None)
        queue.remove(ticket)
        running.append(granted(ticket))
        grants[ticket.ask.key] += 1
    for key, weight in weights.items():
        assert grants[key] == pytest.approx(1000 * weight / 8, rel=0.1)


# How full a target is


def test_of_unknown_capacity_two_run_at_a_time() -> None:
    bench = Bench(target(capacity=None))
    _running = [bench.lease(), bench.lease()]
    assert waits(bench.ask())


def test_of_unknown_capacity_none_is_added_to_what_the_engine_queues() -> None:
    m = target(capacity=None, running=1, waiting=1, load_at=999.0)
    bench = Bench(m)
    ticket = bench.ask()
    assert waits(ticket)
    m.seen = replace(m.seen, waiting=0, load_at=1001.0)
    bench.later(1)
    granted(ticket)


def test_requests_that_bypass_us_take_places_until_a_round_shows_them_gone() -> None:
    m = target(capacity=2, running=2, load_at=999.0)
    bench = Bench(m)
    ticket = bench.ask()
    assert waits(ticket)
    m.seen = replace(m.seen, running=1, load_at=1001.0)
    bench.later(1)
    granted(ticket)


def test_gauges_read_before_our_last_reply_ended_hold_no_place() -> None:
    m = target(capacity=1, running=1, load_at=1000.0)
    bench = Bench(m)
    m.seen = replace(m.seen, running=0)
    lease = bench.lease()
    m.seen = replace(m.seen, running=1, load_at=1000.5)
    bench.clock.now = 1001.0
    lease.release()
    bench.lease()


def test_gauges_that_lag_do_not_free_a_place_that_we_hold() -> None:
    bench = Bench(target(capacity=1, running=0, load_at=2000.0))
    bench.lease()
    assert waits(bench.ask())


# Loads


def test_a_burst_for_a_cold_model_loads_it_once() -> None:
    bench = Bench(*(target(backend=name, warm=False, capacity=4) for name in "abc"))
    leases = [bench.lease() for _ in range(4)]
    assert len({lease.target for lease in leases}) == 1
    assert all(lease.cold for lease in leases)


def test_a_long_wait_behind_a_load_outweighs_a_second_one() -> None:
    bench = Bench(target(backend="a"), target(backend="b", warm=False))
    bench.lease()
    queue = [bench.ask() for _ in range(8)]
    assert {granted(t).target.backend.url for t in queue if t.lease is not None} == set()
    bench.scheduler.kick()  # the queue itself now outweighs the load
    assert [granted(t).target.backend.url for t in queue if t.lease is not None] == ["b"]


def test_who_would_not_load_a_model_joins_the_load_that_another_starts() -> None:
    bench = Bench(target(backend="busy"), slow := target(backend="slow", warm=False, capacity=2))
    bench.lease()
    short = bench.ask(tokens=0)
    assert waits(short)
    long = bench.ask(tokens=20_000, matched={slow.id: 20_000})
    assert granted(long).target is granted(short).target is slow


def test_no_load_pushes_out_a_model_with_requests_in_flight() -> None:
    for memory, sizes in ((10.0, (6, 6)), (None, (None, None))):
        box = TestBackend("box", config=TestConfig(memory))
        a, b = (
            target("a", box, size_bytes=_gib(sizes[0])),
            target("b", box, warm=False, size_bytes=_gib(sizes[1])),
        )
        bench = Bench(a, b)
        running, second = bench.lease("a"), bench.ask("b")
        assert waits(second)
        running.release()
        assert granted(second).cold


def test_a_load_that_fits_beside_a_model_in_use_starts_at_once() -> None:
    box = TestBackend("box", config=TestConfig(12.0))
    bench = Bench(target("a", box, size_bytes=_gib(6)), target("b", box, warm=False, size_bytes=_gib(6)))
    bench.lease("a")
    assert bench.lease("b").cold


def test_models_seen_loaded_side_by_side_fit_from_then_on() -> None:
    box = TestBackend("box")
    a, b = target("a", box), target("b", box)
    bench = Bench(a, b)
    both = [bench.lease("a"), bench.lease("b")]
    both[1].release()
    b.seen = replace(b.seen, warm=False)
    assert bench.lease("b").cold


def test_a_model_whose_neighbours_are_in_use_prefers_another_backend() -> None:
    box = TestBackend("box")
    elsewhere = target("b", "other", warm=False)
    elsewhere.stats.load_s = 50.0
    bench = Bench(target("a", box), target("b", box, warm=False), elsewhere)
    bench.lease("a")
    assert bench.lease("b").target is elsewhere


def test_a_model_too_large_for_the_memory_is_the_engines_business_once_nothing_is_in_use() -> None:
    box = TestBackend("box", config=TestConfig(4.0))
    bench = Bench(target("b", box, warm=False, size_bytes=_gib(9)))
    assert bench.lease("b").cold


def test_least_load_keeps_to_memory_too() -> None:
    box = TestBackend("box")
    bench = Bench(target("a", box), target("b", box, warm=False), policy=least_load)
    bench.lease("a")
    assert waits(bench.ask("b"))


# Cached prefixes


@pytest.mark.parametrize("cached", [0, 1])
def test_a_request_goes_where_its_prefix_is_cached(cached: int) -> None:
    both = target(backend="a"), target(backend="b")
    lease = granted(Bench(*both).ask(tokens=1000, matched={both[cached].id: 900, 999: 1000}))
    assert lease.target is both[cached]
    assert lease.decision.why is Why.CACHE
    assert "900 tokens cached" in lease.decision.reason


def test_a_waiter_is_not_held_by_one_beside_it_that_lacks_its_match() -> None:
    busy, slow = target(backend="busy"), target(backend="slow", warm=False)
    bench = Bench(busy, slow)
    bench.lease()
    without = bench.ask(tokens=20_000)
    assert waits(without)  # 1 s in the queue is less than 4 s of load
    matched = bench.ask(tokens=20_000, matched={slow.id: 19_000})
    assert granted(matched).target is slow
    assert waits(without)


def test_of_waiters_who_differ_in_matches_only_each_is_asked_when_a_place_comes() -> None:
    busy, slow = target(backend="busy"), target(backend=TestBackend("slow", up=False), warm=False)
    bench = Bench(busy, slow)
    bench.lease()
    without = bench.ask(key="a", tokens=20_000)
    matched = bench.ask(key="b", tokens=20_000, matched={slow.id: 19_000})
    slow.backend.up = True
    bench.scheduler.kick()
    assert granted(matched).target is slow
    assert waits(without)


def test_a_waiter_whose_match_is_busy_does_not_hold_back_one_without() -> None:
    busy, free = target(backend="busy"), target(backend="free")
    bench = Bench(busy, free)
    running = [bench.lease(), bench.lease()]
    matched = bench.ask(tokens=20_000, matched={busy.id: 20_000})
    without = bench.ask(tokens=20_000)
    at_free = next(lease for lease in running if lease.target is free)
    at_free.release()
    assert granted(without).target is free
    assert waits(matched)


# Leaving


def test_who_leaves_the_queue_is_not_granted_a_place() -> None:
    bench = Bench(target())
    first, second, third = bench.lease(), bench.ask(), bench.ask()
    bench.scheduler.leave(second)
    first.release()
    assert second.lease is None
    granted(third)


async def test_a_request_waits_for_its_lease() -> None:
    m = target()
    bench = Bench(m)
    first = await bench.scheduler.acquire(Ask("k", "m"))
    second = asyncio.create_task(bench.scheduler.acquire(Ask("k", "m")))
    await asyncio.sleep(0)
    assert not second.done()
    first.release()
    assert (await second).target is m


async def test_a_client_that_leaves_while_waiting_leaves_nothing() -> None:
    bench = Bench(target())
    first = await bench.scheduler.acquire(Ask("k", "m"))
    second = asyncio.create_task(bench.scheduler.acquire(Ask("k", "m")))
    await asyncio.sleep(0)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    assert bench.scheduler.waiting == 0
    first.release()


async def test_a_client_that_leaves_as_it_is_granted_gives_the_place_to_the_next() -> None:
    m = target()
    bench = Bench(m)
    first = await bench.scheduler.acquire(Ask("k", "m"))
    second, third = (asyncio.create_task(bench.scheduler.acquire(Ask("k", "m"))) for _ in range(2))
    await asyncio.sleep(0)
    first.release()
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    (await third).release()
    assert (bench.scheduler.in_flight(m), bench.scheduler.waiting) == (0, 0)


async def test_a_waiting_request_hears_that_no_backend_is_left() -> None:
    m = target()
    bench = Bench(m)
    await bench.scheduler.acquire(Ask("k", "m"))
    second = asyncio.create_task(bench.scheduler.acquire(Ask("k", "m")))
    await asyncio.sleep(0)
    m.backend.up = False
    bench.scheduler.kick()
    with pytest.raises(NoneUp):
        await second


def _gib(n: int | None) -> int | None:
    return None if n is None else n * 2**30


def test_a_full_queue_turns_nobody_away_for_whom_a_place_is_free() -> None:
    a, b = target(backend="a"), target(backend="b")
    bench = Bench(a, b, queue_limit=1)
    assert bench.lease().target is not bench.lease().target
    back = bench.ask(exclude=frozenset({b.id}), retry=True)
    b.seen = replace(b.seen, capacity=2)  # what waits was tried there already, and wants only the other
    assert waits(back)
    assert granted(bench.ask()).target is b
    with pytest.raises(QueueFull) as refusal:
        bench.ask()
    assert refusal.value.retry_after_s > 0
    assert bench.scheduler.waiting == 1


def test_a_full_queue_that_grows_short_as_one_comes_takes_it_in() -> None:
    bench = Bench(target(backend="a"), target(backend="b", warm=False, capacity=4), queue_limit=8)
    bench.lease()
    before = [bench.ask(tokens=100) for _ in range(8)]  # together they outweigh the load at b
    one_more = bench.ask(tokens=1)  # of another size: all are asked anew
    assert sum(t.lease is not None for t in [*before, one_more]) > 0
    assert waits(one_more)
