"""Answers that look like a value and are none, and GETs that do harm: each once seen on a real engine."""

from __future__ import annotations

import json
import math

import pytest

from engines.detect import Undetected, detect
from engines.fetch import Answer, Fault, FetchError
from engines.plan import resolve, scrape, stale_plan
from engines.probes import Path, ProbeError, prom, read
from engines.recipes import RECIPES
from engines.recipes.base import Kind
from engines.recipes.llamacpp import METRICS, PROPS, SLOTS, WAITING, build_number
from engines.recipes.llamaswap import VERSION as LLAMASWAP_VERSION
from engines.signals import Residency, Signal
from tests.engines.replay import CAPTURES, Capture, Replay

PAGE = Path("/metrics", "a page of a test")
RUNNING = prom("running", PAGE, Signal.RUNNING, "x:running", per_model="model_name")
WAITING_HERE = prom("waiting", PAGE, Signal.WAITING, "x:waiting")
KV = prom("kv", PAGE, Signal.KV_USAGE, "x:kv")


def capture(key: str) -> Capture:
    return Capture(CAPTURES / key)


def ok(body: object) -> Answer:
    return Answer(200, body if isinstance(body, bytes) else json.dumps(body).encode())


# -- metrics -----------------------------------------------------------------------------------


def test_a_counters_created_twin_is_not_its_value() -> None:
    assert read(WAITING_HERE, b"x:waiting_created 1.79e9\n") is None


def test_the_same_value_split_by_reason_is_not_added() -> None:
    page = b'x:waiting 5\nx:waiting_by_reason{reason="capacity"} 5\n'
    assert read(WAITING_HERE, page) == {"": 5}


@pytest.mark.parametrize("value", [b"NaN", b"nan"])
def test_nan_is_unknown_and_never_0(value: bytes) -> None:
    assert read(WAITING_HERE, b"x:waiting " + value) is None


def test_one_engine_that_does_not_know_makes_the_sum_unknown() -> None:
    assert read(WAITING_HERE, b'x:waiting{engine="0"} 1\nx:waiting{engine="1"} NaN\n') is None


def test_several_engines_of_one_model_are_summed() -> None:
    page = b"".join(b'x:running{engine="%d",model_name="m"} 2\n' % engine for engine in range(3))
    assert read(RUNNING, page) == {"m": 6}


def test_several_engines_share_of_cache_is_averaged() -> None:
    reading = read(KV, b'x:kv{engine="0"} 0.2\nx:kv{engine="1"} 0.4\n')
    assert reading is not None
    assert isinstance(reading[""], float)
    assert math.isclose(reading[""], 0.3)


@pytest.mark.parametrize("value", [b"1.5", b"-1", b"+Inf"])
def test_what_cannot_be_a_number_of_requests_is_an_error(value: bytes) -> None:
    with pytest.raises(ProbeError, match="not a count"):
        read(WAITING_HERE, b"x:waiting " + value)


@pytest.mark.parametrize("value", [b"1.01", b"-0.1", b"42"])
def test_a_share_outside_0_to_1_is_an_error(value: bytes) -> None:
    with pytest.raises(ProbeError, match=r"within 0\.\.1"):
        read(KV, b"x:kv " + value)


async def test_a_metric_that_two_probes_claim_is_read_once_and_by_the_trusted_one() -> None:
    recipe = RECIPES["llamacpp"]
    plan, snapshot = await resolve(capture("llamacpp/b11434/busy").replay(), recipe)
    assert snapshot.source[Signal.RUNNING] == "llamacpp-running"
    assert plan.dropped["llamacpp-slots-running"] == "redundant: llamacpp-running reads running"


async def test_an_own_probe_for_the_same_metric_goes_first() -> None:
    own = prom("mine", METRICS, Signal.RUNNING, "llamacpp:requests_deferred", own=True)
    replay = capture("llamacpp/b11434/saturated").replay()
    plan, snapshot = await resolve(replay, RECIPES["llamacpp"], [own])
    assert (snapshot.load[""].running, snapshot.source[Signal.RUNNING]) == (5, "mine")
    assert plan.dropped["llamacpp-running"] == "redundant: mine reads running"
    assert replay.asked["/metrics"] == 1


# -- llama.cpp ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "number"),
    [("b11434-f805c57a2", 11434), ("b1-7e4c0a9", None), ("b0-unknown", None), ("garbage", None)],
)
def test_a_packagers_build_number_is_no_build_number(build: str, number: int | None) -> None:
    assert build_number(build) == number


@pytest.mark.parametrize("version", ["b10092", "b10434"])
async def test_a_packaged_build_shows_its_queue(version: str) -> None:
    _, snapshot = await resolve(capture(f"llamacpp/{version}/saturated").replay(), RECIPES["llamacpp"])
    assert snapshot.version is not None
    assert snapshot.version.startswith("b1-")
    assert snapshot.load[""].waiting == 5


def without(key: str, field: str, **changed: object) -> Answer:
    props = json.loads(capture(key).body("/props") or b"{}")
    props.pop(field, None)
    return ok({**props, **changed})


@pytest.mark.parametrize("build", ["b1-7e4c0a9", "b7493-abc1234"])
async def test_a_build_that_may_miscount_its_queue_leaves_it_unknown(build: str) -> None:
    key = "llamacpp/b10434/saturated"
    over: dict[str, Answer | FetchError] = {"/props": without(key, "model_ftype", build_info=build)}
    plan, snapshot = await resolve(capture(key).replay(over=over), RECIPES["llamacpp"])
    assert plan.dropped[WAITING.name] == f"version guard ({build})"
    assert (snapshot.load[""].running, snapshot.load[""].waiting) == (4, None)


async def test_without_a_version_a_guarded_probe_does_not_run() -> None:
    key = "llamacpp/b9093/saturated"
    over: dict[str, Answer | FetchError] = {"/props": without(key, "build_info")}
    plan, snapshot = await resolve(capture(key).replay(over=over), RECIPES["llamacpp"])
    assert plan.dropped[WAITING.name] == "version guard (version unknown)"
    assert snapshot.load[""].waiting is None


VERSIONS = ("b9093", "b10092", "b10434", "b11434")


def asleep(version: str) -> Replay:
    """The engine asleep: what /props says is what per-path/ recorded right after it fell asleep."""
    sleeping = capture(f"llamacpp/{version}/sleeping")
    return sleeping.replay(over={"/props": ok((sleeping.folder / "per-path" / "props").read_bytes())})


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_sleeping_llama_cpp_is_left_asleep(version: str) -> None:
    engine = asleep(version)
    await detect(engine)
    plan, snapshot = await resolve(engine, RECIPES["llamacpp"])
    for load_only in (True, False):
        round_ = await scrape(engine, plan, load_only=load_only)
        assert not round_.failed
        assert stale_plan(plan, round_, 0) is None
    assert snapshot.models is not None
    assert snapshot.models["smollm2"].state is Residency.COLD
    assert snapshot.load[""].running is None  # unknown, not 0
    assert not {METRICS.url, SLOTS.url} & set(engine.asked)


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_plan_made_awake_leaves_a_sleeping_llama_cpp_asleep(version: str) -> None:
    plan, _ = await resolve(capture(f"llamacpp/{version}/idle").replay(), RECIPES["llamacpp"])
    engine = asleep(version)
    round_ = await scrape(engine, plan, load_only=True)
    assert (set(engine.asked), dict(round_.failed)) == ({PROPS.url}, {})
    assert stale_plan(plan, await scrape(engine, plan), 0) is None


async def test_a_plan_made_asleep_is_made_anew_when_the_engine_wakes() -> None:
    plan, _ = await resolve(asleep("b11434"), RECIPES["llamacpp"])
    awake = await scrape(capture("llamacpp/b11434/sleeping").replay(), plan)
    assert "woke" in (stale_plan(plan, awake, 0) or "")


async def test_an_engine_that_does_not_say_whether_it_sleeps_is_not_woken() -> None:
    plan, _ = await resolve(capture("llamacpp/b9093/idle").replay(), RECIPES["llamacpp"])
    silent = capture("llamacpp/b9093/idle").replay(over={"/props": FetchError(Fault.TIMEOUT, "/props: no")})
    round_ = await scrape(silent, plan, load_only=True)
    assert round_.busy
    assert set(silent.asked) == {PROPS.url}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("state", ["router-cold", "router-loaded", "router-loading", "router-unloaded"])
async def test_a_router_is_asked_for_no_model_by_name(version: str, state: str) -> None:
    engine = capture(f"llamacpp/{version}/{state}").replay()
    await detect(engine)
    plan, _ = await resolve(engine, RECIPES["llamacpp"])
    await scrape(engine, plan)
    assert not [path for path in engine.asked if "?" in path]


def test_a_routers_unknown_word_hides_no_other_model() -> None:
    listed = [
        {"id": name, "owned_by": "llamacpp", "status": {"value": word}}
        for name, word in {"a": "loaded", "b": "sleeping", "c": "downloading", "d": "loading"}.items()
    ]
    probe = next(p for p in RECIPES["llamacpp"].probes if p.name == "llamacpp-router-residency")
    assert read(probe, json.dumps({"data": listed}).encode()) == {
        "a": Residency.LOADED,
        "b": Residency.COLD,
        "c": None,
        "d": Residency.LOADING,
    }


@pytest.mark.parametrize(
    ("args", "slots"),
    [
        (["--parallel", "2"], 2),
        (["-np", "8", "--ctx-size", "1"], 8),
        (["--parallel", "-1"], None),
        (["--parallel"], None),
        (["--model", "x"], None),
    ],
)
def test_slots_that_a_router_leaves_to_its_children_are_unknown(args: list[str], slots: int | None) -> None:
    listed = [{"id": "a", "owned_by": "llamacpp", "status": {"value": "loaded", "args": args}}]
    probe = next(p for p in RECIPES["llamacpp"].probes if p.name == "llamacpp-router-capacity")
    assert read(probe, json.dumps({"data": listed}).encode()) == (slots and {"a": slots})


def test_a_weights_size_of_0_is_unknown() -> None:
    probe = next(p for p in RECIPES["llamacpp"].probes if p.name == "llamacpp-size")
    listed = [{"id": "a", "owned_by": "llamacpp", "meta": {"size": 0}}]
    assert read(probe, json.dumps({"data": listed}).encode()) is None


# -- others ------------------------------------------------------------------------------------


def test_llama_swaps_version_is_not_ollamas() -> None:
    body = capture("llama-swap/v250/fresh").body("/api/version")
    assert body is not None
    assert read(LLAMASWAP_VERSION, body) == {"": "v250"}
    ollama = next(p for p in RECIPES["ollama"].probes if p.signal is Signal.VERSION)
    assert read(ollama, body) is None
    assert read(LLAMASWAP_VERSION, b'{"version":"0.32.15"}') is None


def test_a_stopping_model_of_llama_swap_is_cold() -> None:
    probe = RECIPES["llama-swap"].fingerprint[0]
    body = b'{"running":[{"model":"a","state":"stopping"},{"model":"b","state":"odd"}]}'
    assert read(probe, body) == {"a": Residency.COLD, "b": None}


async def test_llama_swap_is_asked_for_nothing_that_loads() -> None:
    engine = capture("llama-swap/v250/idle").replay()
    await detect(engine)
    plan, _ = await resolve(engine, RECIPES["llama-swap"])
    await scrape(engine, plan)
    assert set(engine.asked) == {"/running", "/api/version", "/v1/models"}


class LmStudio:
    """200 to every path; what it does not know gets an error in the body."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def __call__(self, path: str) -> Answer:
        self.asked.append(path)
        if path == "/v1/models":
            return ok({"data": [{"id": "qwen", "object": "model", "owned_by": "organization_owner"}]})
        return ok({"error": f"Unexpected endpoint or method. (GET {path})"})


async def test_lm_studio_that_answers_200_to_everything_is_a_generic_engine() -> None:
    assert (await detect(LmStudio())).kind == "openai"


@pytest.mark.parametrize("kind", [r.kind for r in RECIPES.values() if not r.generic])
async def test_lm_studios_200_reads_nothing_as_any_other_kind(kind: Kind) -> None:
    _, snapshot = await resolve(LmStudio(), RECIPES[kind])
    assert set(snapshot.source) == {Signal.MODELS}


async def test_tensorrt_llms_metrics_are_not_consumed_by_looking_for_the_kind() -> None:
    """Its GET /metrics empties a queue, and it answers /version as vLLM does."""
    asked: list[str] = []

    async def tensorrt(path: str) -> Answer:
        asked.append(path)
        return {
            "/version": ok({"version": "1.1.0"}),
            "/v1/models": ok({"data": [{"id": "m", "object": "model", "owned_by": "tensorrt_llm"}]}),
        }.get(path, Answer(404, b"Not Found"))

    assert (await detect(tensorrt)).kind == "openai"
    assert "/metrics" not in asked


def test_no_fingerprint_asks_a_path_that_does_harm() -> None:
    paths = [p.feed for recipe in RECIPES.values() for p in recipe.fingerprint]
    harmful = [p for p in paths if not isinstance(p, Path) or p.wakes or p.url == "/metrics" or "?" in p.url]
    assert harmful == []


async def test_a_server_that_lists_nothing_is_no_engine() -> None:
    async def web_server(_path: str) -> Answer:
        return ok(b"<html>It works!</html>")

    with pytest.raises(Undetected, match="check the address"):
        await detect(web_server)
