"""A request waits for the prompts that were sent to its engine before it."""

from __future__ import annotations

from tests.gateway.routing.doubles import Bench, granted, target, waits


def test_the_next_prompt_goes_where_none_is_being_computed() -> None:
    busy, idle = target(backend="a", capacity=8), target(backend="b", capacity=1)
    bench = Bench(busy, idle)
    first = granted(bench.ask(tokens=5000, matched={busy.id: 1000}))
    assert first.target is busy
    assert granted(bench.ask(tokens=3000, matched={busy.id: 1000})).target is idle


def test_it_is_expected_to_wait_for_all_of_them_and_no_longer() -> None:
    bench = Bench(target(capacity=8))
    waits = [granted(bench.ask(tokens=2000)).decision.scores[0].wait_s for _ in range(3)]
    assert waits == [0, 2, 4]
    bench.clock.now += 5
    assert granted(bench.ask(tokens=2000)).decision.scores[0].wait_s == 1
    bench.clock.now += 60
    assert granted(bench.ask(tokens=2000)).decision.scores[0].wait_s == 0


def test_nothing_is_waited_for_once_all_have_their_first_token_or_are_over() -> None:
    bench = Bench(target(capacity=8))
    answered, left = bench.lease(), bench.lease()
    answered.first_token()
    left.release()
    answered.release()
    assert bench.lease().decision.scores[0].wait_s == 0


def test_a_load_is_no_prompt() -> None:
    bench = Bench(target(capacity=8, warm=False))
    bench.lease()
    assert bench.lease().decision.scores[0].wait_s == 0


def test_who_waits_elsewhere_comes_here_at_the_first_token() -> None:
    slow, quick = target(backend="a", capacity=8), target(backend="b", capacity=1)
    bench = Bench(slow, quick)
    first = granted(bench.ask(tokens=5000, matched={slow.id: 1000}))
    assert granted(bench.ask(tokens=1000)).target is quick
    third = bench.ask(tokens=100)
    assert waits(third)
    first.first_token()
    assert granted(third).target is slow
