"""What the gateway's own policy is held to, in every seed. Minutes of work: `make slow`."""

from __future__ import annotations

from functools import cache

import pytest

from gateway.simulate.many import Run, simulate
from gateway.simulate.measure import Result
from gateway.simulate.scenario import load

pytestmark = pytest.mark.slow

SEEDS = (1, 2, 3)
SCENARIOS = ("mixed", "replicas", "replicas:users-48", "swaps")
OTHERS = ("round-robin", "least_load")


@cache
def result(scenario: str, router: str, seed: int) -> Result:
    return simulate(Run(load(scenario), router, seed))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_cost_computes_no_larger_share_of_the_prompts_anew(scenario: str, other: str, seed: int) -> None:
    mine, its = result(scenario, "cost", seed).cached_share, result(scenario, other, seed).cached_share
    assert mine is not None
    assert its is not None
    assert mine >= its


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_cost_loads_models_no_more_often(scenario: str, other: str, seed: int) -> None:
    assert result(scenario, "cost", seed).loads <= result(scenario, other, seed).loads


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("scenario", ["mixed", "mixed:users-36"])
def test_in_a_mixed_fleet_under_load_the_slow_first_tokens_of_cost_come_sooner(
    scenario: str, other: str, seed: int
) -> None:
    mine, its = result(scenario, "cost", seed).ttft.p95, result(scenario, other, seed).ttft.p95
    assert mine is not None
    assert its is not None
    assert mine < its


@pytest.mark.parametrize("seed", SEEDS)
def test_a_seed_of_a_whole_scenario_gives_the_same_again(seed: int) -> None:
    again = simulate(Run(load("replicas"), "cost", seed))
    assert again == result("replicas", "cost", seed)
