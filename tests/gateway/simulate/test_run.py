"""One run: what may be relied on, whichever router."""

from __future__ import annotations

import msgspec
import pytest

from gateway.simulate.routers import ROUTERS
from gateway.simulate.run import Simulation
from tests.gateway.simulate.small import once, run, small

EVERY = pytest.mark.parametrize("router", list(ROUTERS))


@EVERY
def test_the_same_seed_gives_the_same_result(router: str) -> None:
    assert msgspec.json.encode(run(router)) == msgspec.json.encode(once(router))


def test_another_seed_gives_another_result() -> None:
    assert once("cost") != run("cost", seed=2)


@EVERY
def test_every_request_ends(router: str) -> None:
    result = once(router)
    assert result.requests > 25
    assert result.ttft.n == result.requests - result.refused - result.gave_up


@EVERY
def test_each_kind_and_key_has_its_times(router: str) -> None:
    result = once(router)
    assert set(result.ttft_by_kind) == {"agent", "chat", "classifier"}
    assert set(result.wait_by_key) == {"guests", "team"}
    assert all(times.n for times in (*result.ttft_by_kind.values(), *result.wait_by_key.values()))


@EVERY
def test_no_token_comes_before_an_engine_works(router: str) -> None:
    result = once(router)
    for key, wait in result.wait_by_key.items():
        assert wait.p50 is not None, key
        assert wait.p50 >= 0
    assert result.ttfts[0] > 0


def test_a_model_that_is_not_in_memory_is_loaded() -> None:
    assert once("cost").loads >= 1


def test_without_gateway_nothing_is_estimated() -> None:
    result = once("round-robin")
    assert result.off_by_s is None
    assert result.hits_right is None


def test_the_gateway_learns_what_the_engines_have_cached() -> None:
    roomy = {"slots: 2": "slots: 8"}  # a place for everybody: nobody overwrites another's prompt
    result, blind = run("cost", scenario=small(**roomy)), run("round-robin", scenario=small(**roomy))
    assert result.cached_share is not None
    assert blind.cached_share is not None
    assert result.cached_share > blind.cached_share
    assert result.hits_right is not None
    assert result.hits_right > 0.9


def test_the_oracle_is_never_wrong_about_a_cache() -> None:
    assert once("oracle").hits_right == 1


def test_an_engine_that_refuses_is_back_pressure_and_not_the_end_of_a_run() -> None:
    """llama-swap takes ten requests for a model, then answers 429."""
    crowded = small(**{"engine: ollama": "engine: llama-swap", "count: 3": "count: 40"})
    assert run("round-robin", scenario=crowded).refused > 0
    assert run("cost", scenario=crowded).refused == 0


def test_who_waits_too_long_gives_up() -> None:
    hasty = small(**{"count: 3": "count: 40", "minutes: 2": "minutes: 2\npatience_s: 5"})
    result = run("round-robin", scenario=hasty)
    assert result.gave_up > 0
    assert max(result.ttfts) <= 5


def test_keys_share_by_weight_where_all_want_more() -> None:
    text = {"count: 3": "count: 12", "count: 1, model: b": "count: 12, model: a", "kind: agent": "kind: chat"}
    result = run("cost", scenario=small(**text))
    assert result.jain is not None
    assert result.wait_by_key["team"].mean is not None
    assert result.wait_by_key["guests"].mean is not None
    assert result.served_by_key["team"] > result.served_by_key["guests"]


def test_progress_is_told_and_only_grows() -> None:
    told: list[float] = []
    Simulation(small(), ROUTERS["cost"], 1).run(told.append)
    assert told == sorted(told)
    assert told[0] == 0
    assert told[-1] == 1
