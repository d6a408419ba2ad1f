"""A double is read exactly as the recording it is made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest

from engines.detect import detect
from engines.doubles import KINDS, PHYSICS, Double, running
from engines.fetch import Answer
from engines.plan import resolve
from engines.recipes import RECIPES
from engines.routes import ROUTES, served
from tests.engines.doubles.client import ask, until
from tests.engines.replay import CAPTURES, Capture

RECIPE_OF = {"mlx-lm": "openai", "llamacpp-router": "llamacpp"}
LOADED = {"ollama": ("smollm2:135m",), "llama-swap": ("smollm2-a",)}


def capture_of(kind: str) -> Capture:
    known = KINDS[kind]
    return Capture(CAPTURES / known.recording / known.idle)


async def names_in(kind: str) -> tuple[str, ...]:
    _, snapshot = await resolve(capture_of(kind).replay(), RECIPES[RECIPE_OF.get(kind, kind)])
    return tuple(snapshot.models or ())


async def like_capture(kind: str) -> Double:
    return Double(kind, models=await names_in(kind), loaded=LOADED.get(kind))


@dataclass
class Asked:
    """A `Fetch` of a double, over its socket."""

    double: Double
    seen: dict[str, Answer] = field(default_factory=dict)

    async def __call__(self, path: str) -> Answer:
        came = await ask(self.double, path)
        headers = {
            k.lower(): v.strip() for k, _, v in (h.partition(":") for h in came.head.split("\r\n")[1:])
        }
        return Answer(came.status, came.body, headers)


@pytest.mark.parametrize("kind", KINDS)
async def test_an_idle_double_resolves_to_what_its_capture_resolves_to(kind: str) -> None:
    recipe = RECIPES[RECIPE_OF.get(kind, kind)]
    recorded_plan, recorded = await resolve(capture_of(kind).replay(), recipe)
    async with running(await like_capture(kind)) as double:
        plan, snapshot = await resolve(Asked(double), recipe)
    assert snapshot == recorded
    assert plan == recorded_plan


@pytest.mark.parametrize("kind", KINDS)
async def test_a_double_is_detected_as_its_capture_is(kind: str) -> None:
    recorded = await detect(capture_of(kind).replay())
    async with running(await like_capture(kind)) as double:
        assert await detect(Asked(double)) == recorded


@pytest.mark.parametrize("kind", KINDS)
async def test_a_double_answers_every_recorded_path_as_recorded(kind: str) -> None:
    async with running(await like_capture(kind)) as double:
        for path, (status, _) in capture_of(kind).answers().items():
            if status.isdigit():
                came = await ask(double, path)
                assert (path, came.status) == (path, int(status))


@pytest.mark.parametrize("kind", KINDS)
async def test_its_routes_are_told_as_those_of_its_capture(kind: str) -> None:
    capture, told = capture_of(kind), dict[str, bool | None]()
    recorded: Mapping[str, bool | None] = {
        path: served(await capture.replay().post(path)) for path in ROUTES if ("POST", path) in capture.rows()
    }
    async with running(await like_capture(kind)) as double:
        for path in recorded:
            came = await ask(double, path, {})
            told[path] = served(Answer(came.status, came.body, {}))
    assert told == recorded


@pytest.mark.parametrize(
    ("kind", "state"), [("llamacpp", "busy"), ("vllm", "busy"), ("sglang", "busy"), ("llamacpp", "saturated")]
)
async def test_a_busy_double_shows_the_load_that_its_capture_shows(kind: str, state: str) -> None:
    capture = Capture(CAPTURES / KINDS[kind].recording / state)
    _, recorded = await resolve(capture.replay(), RECIPES[kind])
    (load,) = recorded.load.values()
    slow = replace(PHYSICS[kind], prefill_s_per_token=1000.0)
    async with running(Double(kind, physics=slow)) as double:
        for _ in range((load.running or 0) + (load.waiting or 0)):
            double.machine.arrive(double.machine_now(), double.names[0], b"a prompt", 10)
        _, snapshot = await resolve(Asked(double), RECIPES[kind])
    (shown,) = snapshot.load.values()
    assert (shown.running, shown.waiting, shown.capacity) == (load.running, load.waiting, load.capacity)
    assert snapshot.source == recorded.source


async def test_a_llamacpp_that_loads_says_503_to_everything_and_is_known_by_its_header() -> None:
    async with running(Double("llamacpp", loaded=())) as double:
        assert (await ask(double, "/v1/models")).status == 503
        assert (await ask(double, "/health")).body == capture_body("llamacpp/b11434/loading/health")
        assert (await detect(Asked(double))).kind == "llamacpp"


async def test_a_llamacpp_is_ready_after_its_load() -> None:
    async with running(Double("llamacpp", loaded=(), speed=1000)) as double:
        await until(lambda: double.page("GET", "/health").status == 200)


def capture_body(path: str) -> bytes:
    return (CAPTURES / path).read_bytes()


@pytest.mark.parametrize("kind", ["ollama", "llama-swap", "llamacpp-router", "vllm", "sglang"])
async def test_other_names_stand_where_the_recorded_ones_stood(kind: str) -> None:
    names = ('a"quoted/name:1', "other")
    recipe = RECIPES[RECIPE_OF.get(kind, kind)]
    async with running(Double(kind, models=names)) as double:
        _, snapshot = await resolve(Asked(double), recipe)
    assert snapshot.models is not None
    assert set(snapshot.models) == set(names)
