"""What llama.cpp's user is told, and what must not be told."""

from __future__ import annotations

import json

import pytest

from engines.fetch import Answer, FetchError
from engines.plan import Unreachable, resolve
from engines.recipes.base import Findings
from engines.recipes.llamacpp import MODELS, PROPS, RECIPE, advice
from engines.signals import Snapshot
from tests.engines.replay import CAPTURES, Capture


async def notes(key: str, over: dict[str, Answer | FetchError] | None = None) -> str:
    """All that is said of a recorded engine, as the doctor finds it."""
    replay = Capture(CAPTURES / f"llamacpp/{key}").replay(over=over)
    try:
        plan, snapshot = await resolve(replay, RECIPE)
    except Unreachable as e:
        return "\n".join(advice(Findings(Snapshot(), {"llamacpp-version": str(e)}, {}, {})))
    props = await replay(PROPS.url)
    bodies = {PROPS.url: props.body} if props.status == 200 else {}
    return "\n".join(advice(Findings(snapshot, plan.dropped, {}, bodies)))


async def test_without_metrics_it_says_which_flag_is_missing() -> None:
    assert "start it with --metrics" in await notes("b10434/no-metrics")


async def test_with_metrics_nothing_is_said_of_the_flag() -> None:
    assert "--metrics" not in await notes("b11434/idle")


async def test_no_slots_costs_nothing_as_long_as_there_are_metrics() -> None:
    assert "--no-slots" not in await notes("b11434/no-slots")


async def test_neither_slots_nor_metrics_leaves_its_work_unknown() -> None:
    off = Answer(501, b"")
    said = await notes("b11434/idle", {"/metrics": off, "/slots": off})
    assert "how many requests it works on is not known" in said


async def test_the_context_of_a_slot_is_told() -> None:
    assert "Each of its 4 slots has 4096 tokens" in await notes("b11434/idle")


@pytest.mark.parametrize(("build", "told"), [("b10434", True), ("b11434", False)])
async def test_a_packagers_build_number_is_explained(build: str, told: bool) -> None:
    assert ("packager's number" in await notes(f"{build}/idle")) is told


async def test_an_old_build_is_told_why_its_queue_is_unknown() -> None:
    props = json.loads(Capture(CAPTURES / "llamacpp/b9093/idle").body("/props") or b"")
    old = Answer(200, json.dumps({**props, "build_info": "b7493-abc"}).encode())
    assert "Update llama.cpp" in await notes("b9093/idle", {"/props": old})


@pytest.mark.parametrize("build", ["b9093", "b11434"])
async def test_a_missing_key_is_the_one_thing_said(build: str) -> None:
    said = await notes(f"{build}/api-key")
    assert "api_key" in said
    assert "\n" not in said


async def test_a_router_is_told_about_evictions_and_unknown_load() -> None:
    said = await notes("b11434/router-loaded")
    assert "keeps 1 model(s) in memory" in said
    assert "running and waiting requests are not known" in said


async def test_a_sleeping_server_is_said_to_be_left_asleep() -> None:
    asleep = (CAPTURES / "llamacpp/b10434/sleeping/per-path/props").read_bytes()
    assert "It is asleep" in await notes("b10434/sleeping", {"/props": Answer(200, asleep)})


def test_a_llama_cpp_is_polled_less_often_and_never_trusted_with_a_used_stream() -> None:
    assert RECIPE.load_interval_s == 2.5
    assert RECIPE.closes_after_stream
    assert MODELS in RECIPE.record_paths
