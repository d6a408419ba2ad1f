"""Usage: what one process counts, and what many copies of it come to."""

from __future__ import annotations

from itertools import permutations

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.accounts.usage import NOTHING, Cell, Counts, Usage

ONE = Counts(1, 10, 5, 4)


def state(usage: Usage) -> set[tuple[int, int, str, str, tuple[int, ...]]]:
    return {(c.origin, c.day, c.key, c.model, c.counts.each()) for c in usage.export()}


def merged(*deliveries: list[Cell]) -> Usage:
    usage = Usage(0)
    for cells in deliveries:
        usage.merge(cells)
    return usage


def test_what_is_added_is_told_by_day_key_and_model() -> None:
    usage = Usage(1)
    usage.add(7, "alice", "m", ONE)
    usage.add(7, "alice", "m", ONE)
    usage.add(8, "bob", "n", ONE)
    rows = usage.history().rows(7, 8, key=True, model=True)
    assert [(r.day, r.key, r.model, r.counts.requests) for r in rows] == [
        (7, "alice", "m", 2), (8, "bob", "n", 1),
    ]  # fmt: skip
    assert (usage.tokens(7, "alice"), usage.tokens(8, "alice"), usage.tokens(9, "x")) == (30, 0, 0)


def test_a_range_has_both_its_ends_and_can_be_summed_any_way() -> None:
    usage = Usage(1)
    for day in range(5):
        for key in ("alice", "bob"):
            for model in ("m", "n"):
                usage.add(day, key, model, ONE)
    history = usage.history()
    assert [r.day for r in history.rows(1, 3)] == [1, 2, 3]
    assert [(r.key, r.counts.requests) for r in history.rows(1, 3, day=False, key=True)] == [
        ("alice", 6), ("bob", 6),
    ]  # fmt: skip
    assert [(r.model, r.counts.prompt_tokens) for r in history.rows(0, 0, day=False, model=True)] == [
        ("m", 20), ("n", 20),
    ]  # fmt: skip
    assert history.total(0, 9).requests == 20
    assert history.total(6, 9) == NOTHING


def test_a_history_that_is_being_read_does_not_change() -> None:
    usage = Usage(1)
    usage.add(1, "alice", "m", ONE)
    before = usage.history()
    usage.add(1, "alice", "m", ONE)
    usage.add(2, "bob", "m", ONE)
    assert (before.total(0, 9).requests, usage.history().total(0, 9).requests) == (1, 3)


def test_usage_is_kept_for_the_retention_and_then_goes() -> None:
    usage = Usage(1, retention_days=3)
    for day in range(1, 6):
        usage.begin(day)
        usage.add(day, "alice", "m", ONE)
    usage.begin(6)
    assert sorted(usage.history().days) == [4, 5]
    usage.merge([Cell(2, 3, "bob", "m", ONE)])
    assert sorted(usage.history().days) == [4, 5], "what has gone does not come back by a copy"


def test_a_clock_that_leaps_ahead_does_not_cost_the_history() -> None:
    usage = Usage(1, retention_days=400)
    for day in range(100):
        usage.add(day, "alice", "m", ONE)
    usage.begin(10_000)
    usage.begin(100)
    assert usage.history().total(0, 100).requests == 98


def test_the_usage_of_a_process_that_is_gone_stays() -> None:
    gone, here = Usage(1), Usage(2)
    gone.add(1, "alice", "m", ONE)
    here.merge(gone.export())
    here.add(1, "alice", "m", ONE)
    assert (here.tokens(1, "alice"), here.history().total(1, 1).requests) == (30, 2)


# -- the law of merging ------------------------------------------------------------------------

counts = st.builds(Counts, *[st.integers(0, 50)] * 6)
cells = st.lists(
    st.builds(
        Cell, st.integers(1, 3), st.integers(1, 3), st.sampled_from("ab"), st.sampled_from("mn"), counts
    ),
    max_size=12,
)


@settings(deadline=None, max_examples=50)
@given(st.lists(cells, max_size=4))
def test_copies_may_come_in_any_order_and_any_number_of_times(deliveries: list[list[Cell]]) -> None:
    whole = state(merged(*deliveries))
    for order in list(permutations(deliveries))[:6]:
        assert state(merged(*order, *order)) == whole
    one_by_one = [[c] for cells in deliveries for c in cells]
    one_by_one.reverse()
    assert state(merged(*one_by_one)) == whole


@settings(deadline=None, max_examples=50)
@given(cells, cells, cells)
def test_merging_what_was_merged_is_the_same_as_merging_all(
    a: list[Cell], b: list[Cell], c: list[Cell]
) -> None:
    left = merged(merged(a, b).export(), c)
    right = merged(a, merged(b, c).export())
    assert state(left) == state(right) == state(merged(left.export(), right.export()))


@settings(deadline=None, max_examples=50)
@given(st.lists(cells, max_size=4))
def test_sums_are_those_of_the_cells(deliveries: list[list[Cell]]) -> None:
    usage = merged(*deliveries)
    history = usage.history()
    for want in ({}, {"key": True}, {"model": True}, {"key": True, "model": True}):
        rows = history.rows(0, 9, **want)
        assert sum(r.counts.requests for r in rows) == sum(c.counts.requests for c in usage.export())
    for day in (1, 2, 3):
        for key in "ab":
            own = sum(c.counts.tokens for c in usage.export() if (c.day, c.key) == (day, key))
            assert usage.tokens(day, key) == own


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=30))
def test_processes_that_tell_each_other_now_and_then_agree_in_the_end(
    events: list[tuple[int, bool]],
) -> None:
    processes = [Usage(i + 1) for i in range(3)]
    added = 0
    for who, tells in events:
        if tells:
            for other in processes:
                other.merge(processes[who].export())
        else:
            processes[who].add(1, "alice", "m", ONE)
            added += 1
    for one in processes:
        for other in processes:
            other.merge(one.export())
    assert [p.history().total(1, 1).requests for p in processes] == [added] * 3
