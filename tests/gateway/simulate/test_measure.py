"""The numbers of a run, and of many."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.simulate.compare import summaries
from gateway.simulate.measure import Outcome, Result, Row, jain, measure, percentile


def row(ttft_s: float | None = 1.0, **more: object) -> Row:
    outcome = Outcome.DONE if ttft_s is not None else Outcome.GAVE_UP
    return Row("chat", "k", outcome, 0.0, wait_s=ttft_s and 0.5, ttft_s=ttft_s, **more)  # type: ignore[arg-type]


def result(router: str, seed: int, *ttfts: float) -> Result:
    return measure("s", router, seed, [row(t) for t in ttfts], loads=seed, weights={})


def test_a_percentile_lies_between_its_two_neighbours() -> None:
    assert percentile([1, 2, 3, 4], 50) == 2.5
    assert percentile([7], 95) == 7
    assert percentile([], 50) is None


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0, 100), st.floats(0, 100))
def test_a_higher_percentile_is_never_lower(values: list[float], one: float, other: float) -> None:
    ordered, (low, high) = sorted(values), sorted((one, other))
    a, b = percentile(ordered, low), percentile(ordered, high)
    assert a is not None
    assert b is not None
    assert ordered[0] <= a * (1 + 1e-9) + 1e-9
    assert a <= b * (1 + 1e-9) + 1e-9


def test_fairness_is_one_where_all_have_alike_and_a_part_where_one_has_all() -> None:
    assert jain([5, 5, 5]) == pytest.approx(1)
    assert jain([9, 0, 0]) == pytest.approx(1 / 3)
    assert jain([0, 0]) is None


def test_tokens_are_weighed_by_the_weight_of_their_key() -> None:
    rows = [
        Row("chat", key, Outcome.DONE, 0.0, ttft_s=1.0, prompt_tokens=n) for key, n in (("a", 20), ("b", 10))
    ]
    assert measure("s", "r", 1, rows, 0, {"a": 2}).jain == pytest.approx(1)
    assert measure("s", "r", 1, rows, 0, {}).jain == pytest.approx(0.9)


def test_a_prompt_that_nobody_read_is_no_part_of_the_cached_share() -> None:
    rows = [row(prompt_tokens=100, cached_tokens=50), row(None)]
    found = measure("s", "r", 1, rows, 0, {})
    assert (found.cached_share, found.computed_tokens, found.gave_up) == (0.5, 50, 1)


def test_nothing_at_all_is_unknown_and_not_zero() -> None:
    found = measure("s", "r", 1, [], 0, {})
    assert (found.cached_share, found.jain, found.ttft.p50, found.hits_right) == (None, None, None, None)


def test_a_hit_is_right_where_half_of_it_was_there() -> None:
    rows = [row(expected_cached=100, cached_tokens=n) for n in (100, 50, 49, 0)] + [row(expected_cached=0)]
    assert measure("s", "r", 1, rows, 0, {}).hits_right == 0.5


def test_the_distance_to_the_oracle_is_taken_seed_by_seed() -> None:
    found = summaries(
        [result("cost", 1, 2.0), result("oracle", 1, 1.0), result("cost", 2, 40.0), result("oracle", 2, 10.0)]
    )
    assert [s.router for s in found] == ["cost", "oracle"]
    assert found[0].p50_to_oracle == 3  # of 2 and 4, not 42 by 11
    assert found[1].p50_to_oracle == 1


def test_without_oracle_there_is_no_distance() -> None:
    assert summaries([result("cost", 1, 2.0)])[0].p95_to_oracle is None
