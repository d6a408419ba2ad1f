from __future__ import annotations

from engines.plan import Plan, Round
from engines.recipes.base import Recipe
from engines.signals import ModelInfo, Signal, Snapshot
from gateway.config import BackendConfig
from gateway.fleet.backend import Backend
from gateway.fleet.fleet import Fleet

PLAN = Plan(Recipe("openai", "x", ()), "1", (), {})


def snapshot(*models: str) -> Snapshot:
    return Snapshot(models={m: ModelInfo() for m in models}, source={Signal.MODELS: "openai-models"})


def backend(name: str, *models: str, aliases: dict[str, str] | None = None) -> Backend:
    b = Backend(BackendConfig(url=f"http://{name}:1", aliases=aliases or {}))
    b.resolved(PLAN, snapshot(*models), 0)
    return b


def test_the_least_busy_backend_that_lists_the_model_is_picked() -> None:
    a, b, c = backend("a", "m"), backend("b", "m"), backend("c", "other")
    a.in_flight = 1
    lease = Fleet([a, b, c]).pick("m")
    assert lease is not None
    assert (lease.backend, lease.reason) == (b, "idle, the fewest of 2 backends")


def test_equals_take_turns() -> None:
    fleet = Fleet([backend("a", "m"), backend("b", "m")])
    picked = [lease.backend.url for _ in range(4) if (lease := fleet.pick("m"))]
    assert sorted(picked[:2]) == ["http://a:1", "http://b:1"]
    assert picked[:2] == picked[2:]


def test_a_backend_that_is_down_or_tried_is_not_picked() -> None:
    a, b = backend("a", "m"), backend("b", "m")
    fleet = Fleet([a, b])
    a.lost("refused")
    assert fleet.pick("m", tried=[b]) is None
    assert fleet.lists("m")
    assert set(fleet.models()) == {"m"}


def test_a_lease_gives_its_place_back_whatever_happens() -> None:
    a = backend("a", "m")
    lease = Fleet([a]).pick("m")
    assert lease is not None
    try:
        with lease:
            assert a.in_flight == 1
            raise ValueError
    except ValueError:
        pass
    assert a.in_flight == 0


def test_an_alias_is_the_name_clients_see_and_the_engine_gets_its_own() -> None:
    fleet = Fleet([backend("a", "qwen2.5:3b-q4", aliases={"qwen2.5:3b-q4": "qwen"})])
    assert list(fleet.models()) == ["qwen"]
    lease = fleet.pick("qwen")
    assert lease is not None
    assert lease.served == "qwen2.5:3b-q4"
    assert fleet.pick("qwen2.5:3b-q4") is None


def test_a_backend_with_an_unknown_list_serves_nothing() -> None:
    b = Backend(BackendConfig(url="http://a:1"))
    b.resolved(PLAN, Snapshot(), 0)
    assert Fleet([b]).models() == {}


def test_a_busy_engine_keeps_its_list_until_it_is_stale() -> None:
    b = backend("a", "m")
    b.scraped(Round(Snapshot(), busy=True), PLAN, now=10)
    assert list(b.models) == ["m"]
    b.scraped(Round(Snapshot(), busy=True), PLAN, now=16)
    assert Fleet([b]).pick("m") is None
    assert Fleet([b]).models() == {}


def test_a_lost_backend_is_back_with_the_next_answered_round() -> None:
    b = backend("a", "m")
    b.lost("died")
    assert not b.up
    b.scraped(Round(Snapshot(), busy=True), PLAN, now=1)
    assert not b.up, "a round that timed out is no answer"
    b.scraped(Round(snapshot("m")), PLAN, now=2)
    assert b.up
