"""Ollama, and what imitates it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from engines.plan import follow, resolve
from engines.probes import ProbeError, read
from engines.recipes.base import Findings
from engines.recipes.ollama import (
    OLLAMA_LOG_NUM_PARALLEL,
    OLLAMA_PS,
    OLLAMA_PS_VRAM,
    OLLAMA_TAGS,
    OLLAMA_TAGS_SIZE,
    OLLAMA_VERSION,
    RECIPE,
    maybe_shared,
)
from engines.signals import ModelInfo, Residency, Signal, Snapshot
from tests.engines.replay import CAPTURES, Capture, captures

LOADED, COLD = Residency.LOADED, Residency.COLD
GB = 1_000_000_000


def ps(**model: object) -> bytes:
    return json.dumps({"models": [{"name": "m", **model}]}).encode()


def with_models(**models: ModelInfo) -> Snapshot:
    return Snapshot(models=models)


# -- which engine it is ------------------------------------------------------------------------


@pytest.mark.parametrize("capture", [c for c in captures() if c.engine == "llama-swap" and c.replayable])
def test_llama_swap_s_version_is_not_taken_for_ollama_s(capture: Capture) -> None:
    body = capture.body("/api/version")
    assert body is None or read(OLLAMA_VERSION, body) is None


def test_a_version_that_starts_with_a_letter_is_refused() -> None:
    with pytest.raises(ProbeError, match="starts with a digit"):
        read(OLLAMA_VERSION, b'{"version":"v250"}')


def test_sglang_s_imitation_of_the_list_reads_nothing() -> None:
    body = Capture(CAPTURES / "sglang/v0.5.23/idle").body("/api/tags")
    assert body is not None
    assert read(OLLAMA_TAGS, body) is None
    assert read(OLLAMA_TAGS_SIZE, body) is None


# -- sizes -------------------------------------------------------------------------------------


def test_a_size_of_zero_is_unknown() -> None:
    body = b'{"models":[{"name":"a","size":0},{"name":"b","size":7}]}'
    assert read(OLLAMA_TAGS_SIZE, body) == {"a": None, "b": 7}


def test_a_size_in_words_is_an_error() -> None:
    """llama.cpp listed its models in this shape, with "" for every size."""
    with pytest.raises(ProbeError, match="size"):
        read(OLLAMA_TAGS_SIZE, b'{"models":[{"name":"a","size":""}]}')


def test_no_vram_on_a_host_without_a_gpu_is_zero_and_the_model_is_loaded() -> None:
    body = ps(size=322437118, size_vram=0)
    assert read(OLLAMA_PS_VRAM, body) == {"m": 0}
    assert read(OLLAMA_PS, body) == {"m": LOADED}


@pytest.mark.parametrize("size", [{}, {"size": 0}])
def test_no_vram_of_a_model_that_takes_no_memory_at_all_is_unknown(size: dict[str, int]) -> None:
    assert read(OLLAMA_PS_VRAM, ps(size_vram=0, **size)) is None


def test_a_model_without_a_name_is_an_error() -> None:
    with pytest.raises(ProbeError, match="no name"):
        read(OLLAMA_PS, b'{"models":[{"size":1}]}')


# -- two names, one file -----------------------------------------------------------------------


@pytest.mark.parametrize("version", ["v0.24.0", "v0.32.15"])
async def test_a_name_that_may_share_the_loaded_file_is_unknown(version: str) -> None:
    """smollm2:135m and smollm2-c are one file; Ollama lists only the one that was asked for last."""
    capture = Capture(CAPTURES / f"ollama/{version}/two-names-one-blob")
    _, snapshot = await resolve(capture.replay(), RECIPE)
    assert snapshot.models is not None
    assert snapshot.models["smollm2-c:latest"].state is LOADED
    assert snapshot.models["smollm2:135m"].state is None


@pytest.mark.parametrize("version", ["v0.24.0", "v0.32.15"])
async def test_with_nothing_loaded_every_model_is_cold(version: str) -> None:
    _, snapshot = await resolve(Capture(CAPTURES / f"ollama/{version}/cold-expired").replay(), RECIPE)
    assert {info.state for info in (snapshot.models or {}).values()} == {COLD}


def test_a_model_of_another_size_is_cold() -> None:
    shot = with_models(a=ModelInfo(LOADED, size_bytes=4 * GB), b=ModelInfo(size_bytes=8 * GB))
    assert maybe_shared("b", shot) is COLD


def test_a_model_of_unknown_size_is_unknown_while_another_is_loaded() -> None:
    shot = with_models(a=ModelInfo(LOADED, size_bytes=4 * GB), b=ModelInfo())
    assert maybe_shared("b", shot) is None


# -- the log -----------------------------------------------------------------------------------


async def recorded(version: str) -> AsyncIterator[bytes]:
    for line in (CAPTURES / f"ollama/{version}/engine.log").read_bytes().splitlines():
        yield line


@pytest.mark.parametrize("version", ["v0.24.0", "v0.32.15"])
async def test_the_log_s_first_line_says_the_capacity(version: str) -> None:
    capture = Capture(CAPTURES / f"ollama/{version}/idle")
    plan, _ = await resolve(capture.replay(), RECIPE, has_log=True)
    snapshots = [s async for s in follow(plan, recorded(version))]
    assert [s.load[""].capacity for s in snapshots] == [2]


async def test_without_a_log_the_capacity_is_unknown() -> None:
    plan, snapshot = await resolve(Capture(CAPTURES / "ollama/v0.32.15/idle").replay(), RECIPE)
    assert Signal.CAPACITY in snapshot.unknown
    assert plan.dropped["ollama-log-num-parallel"] == "no log feed"


@pytest.mark.parametrize(
    "line",
    [
        b'msg="server config" env="map[OLLAMA_NUM_PARALLEL:0 OLLAMA_ORIGINS:[]]"',  # chooses by itself
        b'msg="server config" env="map[OLLAMA_MAX_QUEUE:512]"',
        b'msg="server config" env="map[OLLAMA_HOST:]" prompt="OLLAMA_NUM_PARALLEL:9 "',
        b'msg="chat" prompt="msg=\\"server config\\" env=\\"map[OLLAMA_NUM_PARALLEL:9 \\""',
    ],
)
def test_other_lines_say_no_capacity(line: bytes) -> None:
    assert read(OLLAMA_LOG_NUM_PARALLEL, line) is None


# -- what it leaves alone, what it says --------------------------------------------------------


async def test_only_harmless_paths_are_asked() -> None:
    engine = Capture(CAPTURES / "ollama/v0.32.15/idle").replay()
    await resolve(engine, RECIPE)
    assert set(engine.asked) == {"/api/version", "/api/tags", "/api/ps", "/v1/models"}


async def advice(state: str, **bodies: bytes) -> str:
    _, snapshot = await resolve(Capture(CAPTURES / f"ollama/v0.32.15/{state}").replay(), RECIPE)
    found = {"/api/" + name: body for name, body in bodies.items()}
    return "\n".join(RECIPE.advice(Findings(snapshot, {}, {}, found)))


async def test_the_doctor_asks_for_the_capacity() -> None:
    assert "capacity: N" in await advice("idle")


async def test_the_doctor_names_models_that_run_elsewhere() -> None:
    tags = b'{"models":[{"name":"big:cloud","remote_host":"https://ollama.com:443"},{"name":"m"}]}'
    assert "big:cloud: not run here" in await advice("idle", tags=tags)


async def test_the_doctor_warns_of_prompts_that_are_cut() -> None:
    body = Capture(CAPTURES / "ollama/v0.32.15/idle").body("/api/ps")
    assert body is not None
    assert "smollm2:135m is loaded with a context of 4096 tokens" in await advice("idle", ps=body)


async def test_a_page_of_another_shape_makes_no_advice_and_no_error() -> None:
    assert "not run here" not in await advice("idle", tags=b'{"models":7}', ps=b"[")
