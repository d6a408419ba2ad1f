"""A visit to an engine: what is asked, what is left alone, what it ends with."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from engines.examine import Examination, examine
from engines.fetch import Answer, Fault, FetchError
from engines.probes import Path, log_line, prom
from engines.recipes import RECIPES
from engines.recipes.base import Kind
from engines.record import Tape
from engines.routes import ROUTES
from engines.signals import Residency, Signal
from tests.engines.replay import CAPTURES, Capture, Replay

LLAMACPP, OLLAMA = "llamacpp/b11434/idle", "ollama/v0.32.15/idle"


def replay(key: str, over: dict[str, Answer | FetchError] | None = None) -> Replay:
    return Capture(CAPTURES / key).replay(over=over)


def tape(engine: Replay, until: float = 1.0, now: Callable[[], float] = lambda: 0.0) -> Tape:
    return Tape(engine, engine.post, now, until)


def asleep() -> dict[str, Answer | FetchError]:
    props = json.loads((CAPTURES / LLAMACPP / "props").read_bytes())
    return {"/props": Answer(200, json.dumps({**props, "is_sleeping": True}).encode())}


async def test_visit_names_the_kind_and_how_it_was_told() -> None:
    found = await examine(tape(replay(OLLAMA)), None)
    assert (found.kind, found.error) == ("ollama", None)
    assert "/api/ps" in (found.evidence or "")


@pytest.mark.parametrize("key", [LLAMACPP, OLLAMA, "vllm/v0.32.0/idle"])
async def test_each_path_is_asked_once(key: str) -> None:
    engine = replay(key)
    await examine(tape(engine), None)
    assert max(engine.asked.values()) == 1
    assert max(engine.posted.values()) == 1


async def test_routes_of_a_served_engine_are_told() -> None:
    found = await examine(tape(replay(OLLAMA)), None)
    assert found.routes["/api/chat"] is True
    assert found.routes["/v1/messages/count_tokens"] is False


async def test_sleeping_llamacpp_is_left_asleep() -> None:
    engine = replay(LLAMACPP, asleep())
    found = await examine(tape(engine), None)
    assert {"/slots", "/metrics"} & set(engine.asked) == set()
    assert engine.posted == {}
    assert set(found.routes.values()) == {None}
    assert found.snapshot.models is not None
    assert found.snapshot.models["smollm2"].state is Residency.COLD


async def test_busy_engine_is_asked_no_routes() -> None:
    late = FetchError(Fault.TIMEOUT, "/metrics did not answer in 3 s")
    engine = replay(LLAMACPP, {"/metrics": late})
    found = await examine(tape(engine), None)
    assert found.busy == ("/metrics",)
    assert found.error is None
    assert engine.posted == {}


async def test_refusing_address_is_an_error_and_everything_stays_unknown() -> None:
    found = await examine(tape(replay("vllm/v0.32.0/loading")), None)
    assert found.fault is Fault.REFUSED
    assert found.error
    assert found.kind is None
    assert found.snapshot.unknown == tuple(Signal)
    assert found.routes == dict.fromkeys(ROUTES)


async def test_loading_engine_is_an_error_that_says_so() -> None:
    found = await examine(tape(replay("llamacpp/b11434/loading")), None)
    assert found.fault is Fault.LOADING
    assert found.engine_seen


async def test_wrong_kind_is_told_what_it_looks_like() -> None:
    found = await examine(tape(replay(OLLAMA)), "vllm")
    assert (found.kind, found.looks_like) == ("vllm", "ollama")


async def test_right_kind_looks_like_nothing_else() -> None:
    assert (await examine(tape(replay(OLLAMA)), "ollama")).looks_like is None


async def test_generic_kind_is_told_of_the_better_one() -> None:
    found = await examine(tape(replay("vllm/v0.32.0/idle")), "openai")
    assert found.looks_like == "vllm"
    assert found.error is None


async def test_nothing_is_asked_once_the_time_is_over() -> None:
    engine = replay(LLAMACPP)
    seconds = iter(range(100))
    found = await examine(tape(engine, until=4, now=lambda: float(next(seconds))), None)
    assert len(engine.asked) + len(engine.posted) <= 4
    assert found.busy or found.error or None in found.routes.values()


async def test_own_probe_goes_first_and_shows_its_value() -> None:
    own = prom(
        "mine", Path("/metrics", "mine", wakes=True), Signal.WAITING, "llamacpp:requests_deferred", own=True
    )
    found = await examine(tape(replay(LLAMACPP)), None, (own,))
    assert found.snapshot.source[Signal.WAITING] == "mine"
    assert (found.active[0].probe.name, found.active[0].reading, found.active[0].source) == (
        "mine",
        {"": 0},
        "/metrics",
    )


async def test_log_fills_what_no_path_shows() -> None:
    log = (CAPTURES / "ollama/v0.32.15/engine.log").read_bytes().splitlines()
    found = await examine(tape(replay(OLLAMA)), None, log=log)
    assert found.snapshot.load[""].capacity is not None
    assert found.snapshot.source[Signal.CAPACITY] == "ollama-log-num-parallel"
    assert not any("OLLAMA_NUM_PARALLEL" in line for line in found.advice)


async def test_log_without_a_match_is_in_the_plan_and_reads_nothing_yet() -> None:
    found = await examine(tape(replay(OLLAMA)), None, log=[b"nothing of interest"])
    waiting = [a for a in found.active if a.source == "log"]
    assert [(a.probe.name, a.reading) for a in waiting] == [("ollama-log-num-parallel", None)]
    assert Signal.CAPACITY in found.snapshot.unknown


async def test_last_line_of_a_model_counts() -> None:
    own = log_line("mine", Signal.RESIDENCY, r"(?P<model>\w+) is (?P<value>\w+)", own=True)
    log = [b"a is loaded", b"b is loaded", b"a is cold", b"a is broken"]
    found = await examine(tape(replay(OLLAMA)), None, (own,), log)
    assert found.active[0].reading == {"a": Residency.COLD, "b": Residency.LOADED}


async def test_advice_does_not_ask_for_a_capacity_that_was_given() -> None:
    asked = await examine(tape(replay(OLLAMA)), None)
    given = await examine(tape(replay(OLLAMA)), None, capacity=2)
    assert any("capacity: N" in line for line in asked.advice)
    assert not any("capacity: N" in line for line in given.advice)
    assert Signal.CAPACITY in given.snapshot.unknown  # the engine did not say it


@pytest.mark.parametrize("body", [b"", b"\x00\xff" * 100, b"[" * 100_000, b"<html>", b"null", b'{"data":3}'])
@pytest.mark.parametrize("kind", [None, *RECIPES])
async def test_garbage_is_an_error_or_unknown_and_never_an_exception(kind: Kind | None, body: bytes) -> None:
    async def get(_path: str) -> Answer:
        return Answer(200, body)

    found = await examine(Tape(get, get, lambda: 0.0, 1.0), kind)
    assert isinstance(found, Examination)
    assert kind is not None or found.error
    assert found.snapshot.unknown == tuple(Signal)
