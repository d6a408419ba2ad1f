"""Resolve, scrape and follow: which paths are asked, what counts, and what a failure means."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping

import pytest

from engines.fetch import Answer, Fault, FetchError
from engines.plan import (
    RESOLVE_EVERY_S,
    Plan,
    Round,
    Unreachable,
    follow,
    merge,
    resolve,
    scrape,
    stale_plan,
)
from engines.probes import Guard, Path, Probe, Witness, cold, log_line, prom
from engines.recipes.base import Recipe, SleepCheck
from engines.signals import Load, ModelInfo, Reading, Residency, Signal, Snapshot, Value

A = Path("/a", "a page of a test")
B = Path("/b", "a page of a test")
NAP = Path("/nap", "says whether it sleeps")
LOUD = Path("/loud", "a page that wakes", wakes=True)


def says(name: str, signal: Signal, path: Path = A, key: str = "", *, when: Guard | None = None) -> Probe:
    """A probe that reads the whole body as its value; an empty body as nothing."""

    def parse(body: bytes) -> Reading | None:
        return {key: body.decode()} if body else None

    return Probe(name, signal, path, parse, when=when)


def counts(name: str, signal: Signal, metric: str, path: Path = A) -> Probe:
    return prom(name, path, signal, metric)


def recipe(*probes: Probe, sleep: SleepCheck | None = None) -> Recipe:
    return Recipe(kind="openai", title="test engine", probes=probes, sleep=sleep)


class Engine:
    """Answers from a table; a fault is raised, a number is a status."""

    def __init__(self, **pages: bytes | int | Fault) -> None:
        self.pages: Mapping[str, bytes | int | Fault] = {f"/{k}": v for k, v in pages.items()}
        self.asked: list[str] = []

    async def __call__(self, path: str) -> Answer:
        self.asked.append(path)
        page = self.pages.get(path, 404)
        if isinstance(page, Fault):
            raise FetchError(page, f"{path} {page}")
        return Answer(200, page) if isinstance(page, bytes) else Answer(page, b"")


RUNNING = counts("running", Signal.RUNNING, "running")
WAITING = counts("waiting", Signal.WAITING, "waiting")
FALLBACK = counts("running-b", Signal.RUNNING, "running", B)


# -- resolve -----------------------------------------------------------------------------------


async def test_the_first_probe_that_answers_reads_the_signal() -> None:
    plan, snapshot = await resolve(Engine(a=b"other 1", b=b"running 2"), recipe(RUNNING, FALLBACK))
    assert [p.name for p in plan.active] == ["running-b"]
    assert snapshot.load[""].running == 2
    assert plan.dropped == {"running": "/a does not show it"}


async def test_each_path_is_asked_once_however_many_probes_share_it() -> None:
    engine = Engine(a=b"running 1\nwaiting 2\n")
    await resolve(engine, recipe(RUNNING, WAITING))
    assert engine.asked == ["/a"]


@pytest.mark.parametrize(
    ("page", "why"),
    [
        (404, r"/a answered 404 \(no such path\)"),
        (401, "wants an API key"),
        (500, "/a answered 500"),
        (b"running x", "cannot be read"),
        (b"", "does not show it"),
        (Fault.TIMEOUT, "timeout"),
    ],
)
async def test_a_probe_that_reads_nothing_is_dropped_with_the_reason(
    page: bytes | int | Fault, why: str
) -> None:
    plan, snapshot = await resolve(Engine(a=page, b=b"1.0"), recipe(says("v", Signal.VERSION, B), RUNNING))
    assert [p.name for p in plan.active] == ["v"]
    assert Signal.RUNNING in snapshot.unknown
    assert re.search(why, plan.dropped["running"])


@pytest.mark.parametrize(
    ("page", "fault"),
    [
        (404, Fault.BROKEN),
        (503, Fault.LOADING),
        (401, Fault.DENIED),
        (Fault.REFUSED, Fault.REFUSED),
        (Fault.TIMEOUT, Fault.TIMEOUT),
    ],
)
async def test_an_engine_without_any_answer_is_unreachable_and_says_how(
    page: int | Fault, fault: Fault
) -> None:
    with pytest.raises(Unreachable) as e:
        await resolve(Engine(a=page), recipe(RUNNING))
    assert e.value.fault is fault


async def test_an_engine_that_refuses_is_asked_once() -> None:
    engine = Engine(a=Fault.REFUSED, b=b"running 1")
    with pytest.raises(Unreachable):
        await resolve(engine, recipe(RUNNING, FALLBACK))
    assert engine.asked == ["/a"]


GUARDED = says("guarded", Signal.RUNNING, B, when=lambda version: version >= "2")


@pytest.mark.parametrize(("version", "runs"), [(b"2.1", True), (b"1.9", False), (b"", False)])
async def test_a_guarded_probe_runs_on_the_versions_it_is_meant_for(version: bytes, runs: bool) -> None:
    plan, _ = await resolve(Engine(a=version, b=b"1"), recipe(says("v", Signal.VERSION), GUARDED))
    assert (GUARDED in plan.active) is runs
    assert runs or "version guard" in plan.dropped["guarded"]


@pytest.mark.parametrize(("seen", "runs"), [(b"new field", True), (b"nothing", False), (404, False)])
async def test_a_witness_speaks_for_a_version_that_says_nothing(seen: bytes | int, runs: bool) -> None:
    witness = Witness(NAP, lambda body: b"new" in body, "it has the new field")
    probe = prom("waiting", B, Signal.WAITING, "waiting", when=lambda _version: False, witness=witness)
    engine = Engine(a=b"b1-abc", b=b"waiting 3", nap=seen)
    plan, _ = await resolve(engine, recipe(says("v", Signal.VERSION), probe))
    assert (probe in plan.active) is runs


async def test_a_log_probe_is_planned_only_with_a_log_to_read() -> None:
    probe = log_line("log", Signal.CAPACITY, r"n=(?P<value>\d+)")
    with_log, _ = await resolve(Engine(a=b"running 1"), recipe(RUNNING, probe), has_log=True)
    without, _ = await resolve(Engine(a=b"running 1"), recipe(RUNNING, probe))
    assert with_log.log_probes == (probe,)
    assert without.dropped["log"] == "no log feed"


async def test_a_log_probe_is_redundant_when_a_page_shows_the_signal() -> None:
    probe = log_line("log", Signal.RUNNING, r"n=(?P<value>\d+)")
    plan, _ = await resolve(Engine(a=b"running 1"), recipe(RUNNING, probe), has_log=True)
    assert plan.dropped["log"] == "redundant: running reads running"


# -- scrape ------------------------------------------------------------------------------------


async def planned(*probes: Probe, sleep: SleepCheck | None = None, **pages: bytes) -> Plan:
    plan, _ = await resolve(Engine(**pages), recipe(*probes, sleep=sleep))
    return plan


async def test_a_scrape_asks_only_what_the_plan_reads() -> None:
    plan = await planned(RUNNING, FALLBACK, a=b"running 1", b=b"running 1")
    engine = Engine(a=b"running 5", b=b"running 9")
    assert (await scrape(engine, plan)).snapshot.load[""].running == 5
    assert engine.asked == ["/a"]


async def test_a_load_round_leaves_what_changes_seldom_alone() -> None:
    plan = await planned(says("v", Signal.VERSION, B), RUNNING, a=b"running 1", b=b"1.0")
    engine = Engine(a=b"running 2", b=b"1.0")
    await scrape(engine, plan, load_only=True)
    assert engine.asked == ["/a"]


async def test_a_planned_probe_that_fails_leaves_its_signal_unknown_and_is_named() -> None:
    plan = await planned(RUNNING, WAITING, a=b"running 1\nwaiting 1\n")
    round_ = await scrape(Engine(a=b"waiting 2\n"), plan)
    assert round_.snapshot.load[""] == Load(running=None, waiting=2)
    assert round_.failed == {"running": "/a does not show it"}
    assert not round_.busy


async def test_a_timeout_means_busy_and_not_down() -> None:
    plan = await planned(RUNNING, a=b"running 1")
    round_ = await scrape(Engine(a=Fault.TIMEOUT), plan)
    assert round_.busy
    assert Signal.RUNNING in round_.snapshot.unknown
    assert stale_plan(plan, round_, RESOLVE_EVERY_S) is None


@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.BROKEN])
async def test_a_scrape_without_any_answer_is_unreachable(fault: Fault) -> None:
    plan = await planned(RUNNING, a=b"running 1")
    with pytest.raises(Unreachable) as e:
        await scrape(Engine(a=fault), plan)
    assert e.value.fault is fault


SLEEP = SleepCheck(NAP, lambda body: body == b"asleep")
LOUD_RUNNING = counts("loud", Signal.RUNNING, "running", LOUD)


@pytest.mark.parametrize(
    ("nap", "asked"),
    [
        (b"awake", ["/nap", "/loud"]),
        (b"asleep", ["/nap"]),
        (Fault.TIMEOUT, ["/nap"]),
        (503, ["/nap"]),
    ],
)
async def test_a_path_that_wakes_is_asked_only_of_an_engine_that_is_awake(
    nap: bytes | int | Fault, asked: list[str]
) -> None:
    plan = await planned(LOUD_RUNNING, sleep=SLEEP, nap=b"awake", loud=b"running 1")
    engine = Engine(nap=nap, loud=b"running 1")
    await scrape(engine, plan)
    assert engine.asked == asked


async def test_a_sleeping_engine_fails_no_probe() -> None:
    plan = await planned(LOUD_RUNNING, sleep=SLEEP, nap=b"awake", loud=b"running 1")
    round_ = await scrape(Engine(nap=b"asleep"), plan)
    assert (dict(round_.failed), round_.asleep, dict(round_.snapshot.load)) == ({}, True, {})


# -- when a plan is made anew ------------------------------------------------------------------

PLAN = Plan(recipe(RUNNING), "1.0", (RUNNING,), {})


def seen(version: str | None = "1.0", **more: object) -> Round:
    return Round(Snapshot(version=version), **more)  # type: ignore[arg-type]


def test_a_plan_that_reads_is_kept() -> None:
    assert stale_plan(PLAN, seen(), RESOLVE_EVERY_S - 1) is None


def test_another_version_makes_the_plan_anew() -> None:
    assert stale_plan(PLAN, seen("2.0"), 0) == "version changed from 1.0 to 2.0"


def test_a_round_that_did_not_ask_for_the_version_does_not() -> None:
    assert stale_plan(PLAN, seen(None), 0) is None


def test_a_failing_probe_makes_the_plan_anew() -> None:
    assert stale_plan(PLAN, seen(failed={"running": "gone"}), 0) == "running: gone"


def test_a_busy_engine_is_left_in_peace() -> None:
    busy = seen(failed={"running": "no answer"}, busy=True)
    assert stale_plan(PLAN, busy, 10 * RESOLVE_EVERY_S) is None


def test_an_old_plan_is_made_anew() -> None:
    assert stale_plan(PLAN, seen(), RESOLVE_EVERY_S) == "600 s old"


def test_an_engine_that_woke_makes_a_plan_made_asleep_anew() -> None:
    drowsy = Plan(recipe(RUNNING), "1.0", (), {}, asleep=True)
    assert stale_plan(drowsy, seen(asleep=True), 0) is None
    assert "woke" in (stale_plan(drowsy, seen(asleep=False), 0) or "")


# -- follow ------------------------------------------------------------------------------------


async def lines(*each: bytes) -> AsyncIterator[bytes]:
    for line in each:
        yield line


async def test_a_log_is_followed_one_snapshot_for_each_line_that_says_something() -> None:
    capacity = log_line("n", Signal.CAPACITY, r"n=(?P<value>\S+)")
    state = log_line("s", Signal.RESIDENCY, r"unload (?P<model>\w+)", "cold")
    plan = Plan(recipe(), None, (capacity, state), {})
    found = [s async for s in follow(plan, lines(b"hello", b"n=2", b"n=many", b"unload m", b"\xff"))]
    assert [s.load for s in found] == [{"": Load(capacity=2)}, {}]
    assert found[1].models == {"m": ModelInfo(state=Residency.COLD)}


# -- merge -------------------------------------------------------------------------------------


def reading(signal: Signal, **values: Value | None) -> tuple[Probe, Reading]:
    return says(f"{signal}", signal), values


def test_the_first_reading_of_a_signal_counts() -> None:
    first, second = says("first", Signal.RUNNING), says("second", Signal.RUNNING)
    snapshot = merge([(first, {"": 1}), (second, {"": 2})])
    assert (snapshot.load[""].running, snapshot.source) == (1, {Signal.RUNNING: "first"})


def test_load_and_capacity_may_be_of_different_breadth() -> None:
    snapshot = merge([(says("r", Signal.RUNNING), {"": 3}), reading(Signal.CAPACITY, m=2)])
    assert snapshot.load == {"": Load(running=3), "m": Load(capacity=2)}


def test_a_state_of_the_whole_backend_is_that_of_each_model() -> None:
    snapshot = merge(
        [reading(Signal.MODELS, a=None, b=None), (says("s", Signal.RESIDENCY), {"": Residency.LOADED})]
    )
    assert snapshot.models == {m: ModelInfo(state=Residency.LOADED) for m in "ab"}


def test_without_a_list_of_models_there_are_none_known() -> None:
    assert merge([(says("s", Signal.RESIDENCY), {"": Residency.LOADED})]).models is None
    assert merge([reading(Signal.MODELS)]).models == {}


def test_a_model_in_memory_counts_although_no_list_has_it() -> None:
    snapshot = merge([reading(Signal.MODELS, a=None), reading(Signal.RESIDENCY, b=Residency.LOADED)])
    assert snapshot.models == {"a": ModelInfo(), "b": ModelInfo(state=Residency.LOADED)}


def test_a_model_left_out_is_cold_only_where_the_list_names_all_in_memory() -> None:
    listed = reading(Signal.MODELS, a=None, b=None)
    everything = Probe("all", Signal.RESIDENCY, A, lambda _body: None, unlisted=cold)
    some = Probe("some", Signal.RESIDENCY, A, lambda _body: None)
    in_memory = {"a": Residency.LOADED}
    assert (merge([listed, (everything, in_memory)]).models or {})["b"].state is Residency.COLD
    assert (merge([listed, (some, in_memory)]).models or {})["b"].state is None


def test_an_order_of_probes_does_not_change_what_is_known_of_a_model() -> None:
    parts = [
        reading(Signal.MODELS, a=None),
        reading(Signal.SIZE_BYTES, a=7),
        reading(Signal.RESIDENCY, a=Residency.LOADED),
    ]
    assert merge(parts).models == merge(reversed(parts)).models
