"""Where a request goes: each clause of the estimate, and what must hold whatever the numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway import config
from gateway.routing.policy import (
    DEFAULTS,
    POLICIES,
    Candidate,
    Decision,
    Policy,
    Route,
    Why,
    cost,
    least_load,
)

IDLE = Candidate(
    target=1, name="http://a", warm=True, loading=False, capacity=4, free=4, queue_ahead=0, kv_usage=0.1,
    matched_tokens=0, prefill_s_per_token=0.001, load_s=8.0, service_s=4.0, fits=True,
)  # fmt: skip
PROMPT = Route(1000, 0)  # 1.0 s of prefill on IDLE


def like(target: int, **changes: Any) -> Candidate:
    return IDLE._replace(target=target, name=f"http://{target}", **changes)


def decided(policy: Policy, route: Route, *candidates: Candidate) -> Decision:
    decision = policy(route, candidates, DEFAULTS)
    assert decision is not None
    return decision


@dataclass(frozen=True)
class Case:
    name: str
    candidate: Candidate
    wait_s: float
    load_s: float
    prefill_s: float


CASES = [
    Case("idle, loaded: prefill only", IDLE, 0, 0, 1.0),
    Case("known cold: the load too", like(1, warm=False), 0, 8.0, 1.0),
    Case("cold, its load under way: paid already", like(1, warm=False, loading=True), 0, 0, 1.0),
    Case("residency not reported: it has its model loaded", like(1, warm=None), 0, 0, 1.0),
    Case("full: one service over its places", like(1, free=0), 1.0, 0, 1.0),
    Case("full, three ahead: four times that", like(1, free=0, queue_ahead=3), 4.0, 0, 1.0),
    Case("overcommitted is full", like(1, free=-2), 1.0, 0, 1.0),
    Case("a free place: those ahead wait for something else", like(1, queue_ahead=3), 0, 0, 1.0),
    Case("prompts sent before it are computed first", like(1, prefilling_s=2.5), 2.5, 0, 1.0),
    Case("full: no place frees before they are", like(1, free=0, prefilling_s=2.5), 3.5, 0, 1.0),
    Case("cached tokens need no prefill", like(1, matched_tokens=600), 0, 0, 0.4),
    Case("more cached than asked saves the prompt, no more", like(1, matched_tokens=5000), 0, 0, 0.0),
    Case("at 90 % KV the cache still counts whole", like(1, matched_tokens=600, kv_usage=0.9), 0, 0, 0.4),
    Case("at 95 % KV half of it, and half a place's wait", like(1, matched_tokens=600, kv_usage=0.95), 0.5, 0, 0.7),
    Case("at 100 % KV none, and a whole one", like(1, matched_tokens=600, kv_usage=1.0), 1.0, 0, 1.0),
    Case("KV use unknown: the cache counts", like(1, matched_tokens=600, kv_usage=None), 0, 0, 0.4),
    Case("prefill never measured: the default", like(1, prefill_s_per_token=None), 0, 0, 5.0),
    Case("load never measured: the default", like(1, warm=False, load_s=None), 0, 10.0, 1.0),
    Case("service never measured: the default", like(1, free=0, service_s=None), 1.25, 0, 1.0),
    Case("memory unknown does not forbid a load", like(1, warm=False, fits=None), 0, 8.0, 1.0),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_the_estimate(case: Case) -> None:
    score = decided(cost, PROMPT, case.candidate).scores[0]
    expected = (case.wait_s, case.load_s, case.prefill_s)
    assert (score.wait_s, score.load_s, score.prefill_s) == pytest.approx(expected, abs=0.002)


def test_the_unmeasured_is_taken_for_the_median_of_the_others() -> None:
    others = [like(i, prefill_s_per_token=0.001 * i) for i in (1, 2, 9)]
    decision = decided(cost, PROMPT, like(5, prefill_s_per_token=None), *others)
    assert decision.scores[0].prefill_s == pytest.approx(2.0)


def test_a_twin_does_not_move_what_the_unmeasured_is_taken_for() -> None:
    blank, slow = like(5, prefill_s_per_token=None), like(2, prefill_s_per_token=0.003)
    alone = decided(cost, PROMPT, blank, like(1), slow).scores[0]
    twinned = decided(cost, PROMPT, blank, like(1), slow, slow._replace(target=3)).scores[0]
    assert twinned.prefill_s == alone.prefill_s == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("chosen", "other"),
    [
        pytest.param(like(1), like(2, warm=False), id="loaded before cold"),
        pytest.param(like(1), like(2, free=0), id="free before full"),
        pytest.param(like(1, free=0), like(2, warm=False), id="a short wait before a load"),
        pytest.param(like(1, warm=False), like(2, free=0, queue_ahead=20), id="a load before a long wait"),
        pytest.param(like(1, free=1, matched_tokens=900), like(2), id="cache before idleness"),
        pytest.param(
            like(1), like(2, free=0, queue_ahead=9, matched_tokens=900), id="a full cached one loses"
        ),
        pytest.param(like(1), like(2, prefill_s_per_token=0.003), id="the faster machine"),
        pytest.param(like(1, free=4), like(2, free=3), id="of equals the one with more room"),
        pytest.param(like(1, free=4), like(2, free=3, prefill_s_per_token=0.0009995), id="1 ms is a tie"),
        pytest.param(like(1, free=3, prefill_s_per_token=0.00099), like(2), id="10 ms is none"),
        pytest.param(
            like(1, warm=False, loading=True), like(2, warm=False), id="join a load, start no second"
        ),
        pytest.param(
            like(1, free=0, queue_ahead=40), like(2, warm=False, fits=False), id="never evict one in use"
        ),
    ],
)
@pytest.mark.parametrize("swapped", [False, True])
def test_cost_prefers(chosen: Candidate, other: Candidate, swapped: bool) -> None:
    both = (other, chosen) if swapped else (chosen, other)
    assert decided(cost, PROMPT, *both).target == chosen.target


def test_a_load_that_pushes_out_another_model_has_to_pay_twice() -> None:
    queue = like(1, free=0, queue_ahead=9)  # 10 s
    cold = like(2, warm=False)  # 8 s
    assert decided(cost, PROMPT, queue, cold).target == 2
    assert decided(cost, PROMPT, queue, cold._replace(displaces=True)).target == 1
    assert decided(cost, PROMPT, queue._replace(queue_ahead=19), cold._replace(displaces=True)).target == 2


def test_what_is_pushed_out_is_no_part_of_the_estimate() -> None:
    decision = decided(cost, PROMPT, like(1, warm=False, displaces=True))
    assert decision.ttft_s == pytest.approx(9.0)


def test_a_full_winner_is_waited_for() -> None:
    assert decided(cost, PROMPT, like(1, free=0), like(2, warm=False)).wait
    assert not decided(cost, PROMPT, like(1)).wait


def test_the_policies_are_those_that_the_config_can_name() -> None:
    assert set(POLICIES) == set(config.POLICIES)


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_nothing_feasible_is_no_decision(policy: Policy) -> None:
    assert policy(PROMPT, [], DEFAULTS) is None
    assert policy(PROMPT, [like(1, warm=False, fits=False)], DEFAULTS) is None


def test_least_load_looks_at_room_only() -> None:
    assert decided(least_load, PROMPT, like(1, free=3), like(2, free=4, prefill_s_per_token=9.0)).target == 2
    assert (
        decided(least_load, PROMPT, like(1, free=0, queue_ahead=9), like(2, free=0, queue_ahead=1)).target
        == 2
    )
    assert decided(least_load, PROMPT, like(1, warm=False), like(2)).target == 2


@pytest.mark.parametrize(
    ("candidates", "why"),
    [
        pytest.param([like(1)], Why.ONLY_CHOICE, id="one candidate"),
        pytest.param([like(1), like(2, warm=False, fits=False)], Why.ONLY_CHOICE, id="one feasible"),
        pytest.param([like(1), like(2, free=1)], Why.LEAST_LOADED, id="more room"),
        pytest.param([like(1, free=2, matched_tokens=900), like(2)], Why.CACHE, id="its cache"),
        pytest.param([like(1), like(2, warm=False)], Why.WARM, id="its residency"),
        pytest.param([like(1, matched_tokens=900), like(2, warm=False)], Why.WARM, id="residency saved more"),
        pytest.param(
            [like(1, matched_tokens=900), like(2, warm=False, load_s=0.1)], Why.CACHE, id="cache more"
        ),
    ],
)
def test_why(candidates: list[Candidate], why: Why) -> None:
    decision = decided(cost, PROMPT, *candidates)
    assert (decision.target, decision.why) == (1, why)


@pytest.mark.parametrize(
    ("candidates", "reason"),
    [
        ([like(1)], "the only backend with the model now: loaded, 4 of 4 places free, est. 1.0 s"),
        (
            [like(1, matched_tokens=600), like(2, warm=False)],
            "loaded, 600 tokens cached, 4 of 4 places free, est. 0.4 s against 9.0 s at http://2 "
            "(to be loaded, 4 of 4 places free)",
        ),
        (
            [like(1, free=0, queue_ahead=2), like(2, warm=False, fits=False)],
            "loaded, no place free, 2 waiting ahead, est. 4.0 s; "
            "elsewhere its load would push out a model in use",
        ),
        (
            [like(1, warm=False, loading=True), like(2, free=0)],
            "loading, 4 of 4 places free, est. 1.0 s once loaded against 2.0 s at http://2 "
            "(loaded, no place free)",
        ),
    ],
)
def test_the_reason_is_for_people(candidates: list[Candidate], reason: str) -> None:
    assert decided(cost, PROMPT, *candidates).reason == reason


# Whatever the numbers

seconds = st.floats(0.0001, 100)
unknown = st.none()
candidates = st.lists(
    st.builds(
        Candidate, target=st.just(0), name=st.just("x"), warm=unknown | st.booleans(), loading=st.booleans(),
        capacity=st.integers(1, 64), free=st.integers(-3, 64), queue_ahead=st.integers(0, 1000),
        kv_usage=unknown | st.floats(0, 1), matched_tokens=st.integers(0, 10_000),
        prefill_s_per_token=unknown | st.floats(1e-5, 0.1), load_s=unknown | seconds, service_s=unknown | seconds,
        fits=unknown | st.booleans(), prefilling_s=st.just(0.0) | seconds,
    ).map(lambda c: c._replace(free=min(c.free, c.capacity))),
    max_size=8,
).map(lambda cs: [c._replace(target=i) for i, c in enumerate(cs)])  # fmt: skip
routes = st.builds(Route, prompt_tokens=st.integers(0, 100_000), seed=st.integers(0, 2**32))
policies = pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)


@policies
@settings(deadline=None)
@given(routes, candidates)
def test_never_an_infeasible_target_and_always_one_if_there_is_any(
    policy: Policy, route: Route, cs: list[Candidate]
) -> None:
    decision = policy(route, cs, DEFAULTS)
    if decision is None:
        assert not any(c.feasible for c in cs)
    else:
        chosen = cs[decision.target]
        assert not (chosen.warm is False and not chosen.loading and chosen.fits is False)
        assert decision.wait == (chosen.free <= 0)


@settings(deadline=None)
@given(routes, candidates, st.data())
def test_a_free_identical_target_more_never_worsens_the_estimate(
    route: Route, cs: list[Candidate], data: st.DataObject
) -> None:
    before = cost(route, cs, DEFAULTS)
    if before is None:
        return
    twin = data.draw(st.sampled_from(cs))
    after = cost(route, [*cs, twin._replace(target=99, free=twin.capacity)], DEFAULTS)
    assert after is not None
    best = min(s.ttft_s for s in before.scores if s.feasible)
    assert min(s.ttft_s for s in after.scores if s.feasible) <= best + 1e-9
    assert after.ttft_s <= before.ttft_s + 0.001 + 1e-9  # within a tie the roomier may win


@policies
@settings(deadline=None)
@given(routes, candidates)
def test_unknown_never_counts_as_nothing(policy: Policy, route: Route, cs: list[Candidate]) -> None:
    decision = policy(route, cs, DEFAULTS)
    for c, s in zip(cs, decision.scores if decision else (), strict=decision is not None):
        if not s.feasible:
            continue
        if c.free <= 0:
            assert s.wait_s > 0
        if c.warm is False and not c.loading:
            assert s.load_s > 0
        if route.prompt_tokens > c.matched_tokens:
            assert s.prefill_s > 0


@policies
def test_equals_share(policy: Policy) -> None:
    chosen = [decided(policy, Route(100, seed), *(like(i) for i in range(4))).target for seed in range(400)]
    assert all(chosen.count(i) == 100 for i in range(4))
