from __future__ import annotations

from typing import Any

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


def test_a_model_has_a_target_on_each_backend_that_lists_it() -> None:
    a, b, c = backend("a", "m"), backend("b", "m"), backend("c", "other")
    assert Fleet([a, b, c]).targets_of("m") == (a.targets["m"], b.targets["m"])


def test_a_backend_that_is_down_has_no_target_and_its_models_stay_known() -> None:
    a, b = backend("a", "m"), backend("b", "m")
    fleet = Fleet([a, b])
    assert len(fleet.targets_of("m")) == 2
    a.lost("refused")
    assert fleet.targets_of("m") == (b.targets["m"],)
    b.lost("refused")
    assert (fleet.targets_of("m"), fleet.models(), fleet.lists("m")) == ((), {}, True)


def test_names_that_nobody_lists_leave_nothing_behind() -> None:
    fleet = Fleet([backend("a", "m")])
    for i in range(100):
        fleet.targets_of(f"guess-{i}")
    assert fleet._targets == {}


def test_an_alias_is_the_name_clients_see_and_the_engine_gets_its_own() -> None:
    fleet = Fleet([backend("a", "qwen2.5:3b-q4", aliases={"qwen2.5:3b-q4": "qwen"})])
    assert list(fleet.models()) == ["qwen"]
    assert [t.served for t in fleet.targets_of("qwen")] == ["qwen2.5:3b-q4"]
    assert fleet.targets_of("qwen2.5:3b-q4") == ()


def test_a_backend_with_an_unknown_list_serves_nothing() -> None:
    b = Backend(BackendConfig(url="http://a:1"))
    b.resolved(PLAN, Snapshot(), 0)
    assert Fleet([b]).models() == {}


def test_a_busy_engine_keeps_its_list_until_it_is_stale() -> None:
    b = backend("a", "m")
    b.scraped(Round(Snapshot(), busy=True), PLAN, now=10)
    assert list(b.models) == ["m"]
    b.scraped(Round(Snapshot(), busy=True), PLAN, now=16)
    assert Fleet([b]).targets_of("m") == ()
    assert Fleet([b]).models() == {}


def test_a_lost_backend_is_back_with_the_next_answered_round() -> None:
    b = backend("a", "m")
    b.lost("died")
    assert not b.up
    b.scraped(Round(Snapshot(), busy=True), PLAN, now=1)
    assert not b.up, "a round that timed out is no answer"
    b.scraped(Round(snapshot("m")), PLAN, now=2)
    assert b.up


# -- another set of backends -------------------------------------------------------------------


def config(name: str, **more: Any) -> BackendConfig:
    return BackendConfig(url=f"http://{name}:1", **more)


def test_an_unchanged_backend_keeps_all_that_is_known_of_it() -> None:
    a, b = backend("a", "m"), backend("b", "m")
    fleet = Fleet([a, b])
    changes = fleet.set_backends([config("b"), config("c")])
    assert ([x.url for x in changes.added], changes.removed, changes.changed) == (["http://c:1"], (a,), ())
    assert fleet.targets_of("m") == (b.targets["m"],)


def test_changed_settings_keep_the_targets_and_what_was_learned() -> None:
    a = backend("a", "m")
    fleet, target = Fleet([a]), a.targets["m"]
    target.stats.service_s = 7.0
    changes = fleet.set_backends([config("a", capacity=9)])
    assert changes.changed == (a,)
    assert fleet.targets_of("m") == (target,)
    assert (target.view(0).capacity, target.stats.service_s) == (9, 7.0)


def test_a_new_alias_renames_at_once() -> None:
    a = backend("a", "m")
    fleet = Fleet([a])
    fleet.set_backends([config("a", aliases={"m": "nice"})])
    assert list(fleet.models()) == ["nice"]


def test_a_backend_that_comes_back_has_its_old_state_and_is_up_once_it_answered() -> None:
    a = backend("a", "m")
    fleet = Fleet([a])
    fleet.set_backends([])
    assert fleet.models() == {}
    assert fleet.set_backends([config("a")]).added == (a,)
    assert not a.up
    a.scraped(Round(snapshot("m")), PLAN, now=1)
    assert fleet.targets_of("m") == (a.targets["m"],)


def test_only_the_last_removed_backends_are_remembered() -> None:
    first = backend("a0", "m")
    fleet = Fleet([first])
    for i in range(1, 40):
        fleet.set_backends([config(f"a{i}")])
    assert fleet.set_backends([config("a0")]).added[0] is not first


def test_a_removed_backend_changes_nothing_any_more() -> None:
    a, told = backend("a", "m"), []
    fleet = Fleet([a])
    fleet.set_backends([])
    fleet.on_change.append(lambda: told.append(1))
    a.scraped(Round(snapshot("m")), PLAN, now=1)
    assert told == []
