"""Every recorded state of every engine is read as it really was, and nothing else is read into it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest

from engines.detect import Undetected, detect
from engines.plan import Unreachable, resolve, scrape
from engines.probes import Log, Path, Probe, ProbeError, read
from engines.recipes import RECIPES
from engines.recipes.base import Recipe
from engines.signals import Reading, Residency, Snapshot
from tests.engines.expected import EXPECTED, special
from tests.engines.replay import CAPTURES, SERVER, Capture, captures

KIND_OF_FOLDER = {"mlx-lm": "openai"}
"""Folders are named after engines; all others after the kind that reads them."""

ALL = captures()
REPLAYED = [c for c in ALL if c.replayable]
ENGINE_LOGS = sorted(p.parent.relative_to(CAPTURES).as_posix() for p in CAPTURES.glob("*/*/engine.log"))


def recipe_of(engine: str) -> Recipe:
    kind = KIND_OF_FOLDER.get(engine, engine)
    if kind not in RECIPES:
        pytest.fail(f"no recipe for {engine}")
    return RECIPES[kind]


def library() -> list[Probe]:
    """Every probe of every recipe, those of fingerprints too."""
    every = (p for recipe in RECIPES.values() for p in (*recipe.probes, *recipe.fingerprint))
    return list({probe.name: probe for probe in every}.values())


def each(found: Iterable[Capture]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("capture", [pytest.param(c, id=c.key) for c in found])


def reads(probe: Probe, body: bytes | None) -> Reading | None:
    try:
        return None if body is None else read(probe, body)
    except ProbeError:
        return None


async def snapshot_of(capture: Capture) -> Snapshot:
    try:
        _, snapshot = await resolve(capture.replay(), recipe_of(capture.engine))
    except Unreachable:
        return Snapshot()
    return snapshot


@each(c for c in ALL if not c.replayable)
def test_folder_without_a_snapshot_says_why(capture: Capture) -> None:
    assert special(EXPECTED.not_replayed, capture.key)


def test_no_folder_with_a_snapshot_is_left_out() -> None:
    assert [c.key for c in REPLAYED if special(EXPECTED.not_replayed, c.key)] == []


@each(REPLAYED)
def test_probes_read_what_is_expected_and_all_others_read_nothing(capture: Capture) -> None:
    read_here = {
        probe.name: reading
        for probe in library()
        if isinstance(probe.feed, Path)
        and (reading := reads(probe, capture.body(probe.feed.url))) is not None
    }
    assert read_here == EXPECTED.probes_of(capture.key)


@each(REPLAYED)
@pytest.mark.parametrize("header", [True, False], ids=["with-server-header", "without"])
async def test_detection_names_the_kind_or_says_why_not(capture: Capture, header: bool) -> None:
    expected = special(EXPECTED.detected, capture.key)
    telling = {r.server_header: r.kind for r in RECIPES.values() if r.server_header}
    if header and SERVER.get(capture.engine) in telling:
        expected = telling[SERVER[capture.engine]]
    if expected in RECIPES:
        assert (await detect(capture.replay(header=header))).kind == expected
        return
    assert expected is not None, f"{capture.key} has no expected kind"
    with pytest.raises(Undetected, match=expected):
        await detect(capture.replay(header=header))


@each(REPLAYED)
async def test_only_what_the_tables_say_stays_unknown(capture: Capture) -> None:
    expected = special(EXPECTED.unknown, capture.key)
    assert expected is not None, f"{capture.key} does not say what stays unknown"
    assert set((await snapshot_of(capture)).unknown) == expected


@each(REPLAYED)
async def test_what_is_known_is_true(capture: Capture) -> None:
    snapshot, late = await snapshot_of(capture), EXPECTED.late_of(capture.key)
    for name, read_now in _known(snapshot, capture.truth).items():
        expected = late[name][0] if name in late else capture.truth[name]
        assert read_now == expected, f"{capture.key}: {name}"


def _known(snapshot: Snapshot, truth: Mapping[str, object]) -> dict[str, object]:
    """What the snapshot says of each thing the truth names, as far as it is known."""
    known: dict[str, object] = {}
    for name, counts in {
        "requests_running": [load.running for load in snapshot.load.values()],
        "requests_waiting": [load.waiting for load in snapshot.load.values()],
    }.items():
        if name in truth and any(c is not None for c in counts):
            known[name] = sum(c or 0 for c in counts)
    states = {model: info.state for model, info in (snapshot.models or {}).items()}
    for name, state in {"loaded": Residency.LOADED, "loading": Residency.LOADING}.items():
        named = truth.get(name)
        if isinstance(named, list) and any(states.values()):
            known[name] = [m for m in named if states.get(m) is state] + sorted(
                m for m, s in states.items() if s is state and m not in named
            )
        elif isinstance(named, int) and any(states.values()):
            known[name] = sum(s is state for s in states.values())
    return known


@each(REPLAYED)
async def test_a_scrape_right_after_reads_the_same_and_asks_only_the_plans_paths(capture: Capture) -> None:
    recipe = recipe_of(capture.engine)
    try:
        plan, first = await resolve(capture.replay(), recipe)
    except Unreachable:
        return
    again = capture.replay()
    round_ = await scrape(again, plan)
    assert (round_.snapshot, dict(round_.failed)) == (first, {})
    planned = {p.feed.url for p in plan.active if isinstance(p.feed, Path)}
    assert set(again.asked) <= planned | ({recipe.sleep.path.url} if recipe.sleep else set())
    assert max(again.asked.values(), default=0) <= 1


@pytest.mark.parametrize("engine_version", ENGINE_LOGS)
def test_log_probes_read_what_is_expected_of_the_engines_own_log(engine_version: str) -> None:
    lines = (CAPTURES / engine_version / "engine.log").read_bytes().splitlines()
    seen: dict[str, list[Reading]] = {}
    for probe in library():
        for line in lines if isinstance(probe.feed, Log) else []:
            reading = reads(probe, line)
            if reading and reading not in seen.setdefault(probe.name, []):
                seen[probe.name].append(reading)
    assert {name: found for name, found in seen.items() if found} == EXPECTED.log_of(engine_version)
