"""vLLM's metrics, and the paths of it that tell nothing."""

from __future__ import annotations

import pytest

from engines.fetch import Answer
from engines.plan import resolve
from engines.probes import Path, Probe, ProbeError, read
from engines.recipes.base import Findings
from engines.recipes.vllm import (
    RECIPE,
    VLLM_KV,
    VLLM_KV_OLD,
    VLLM_LOG_MAX_NUM_SEQS,
    VLLM_RUNNING,
    VLLM_SLEEP_STATE,
    VLLM_WAITING,
)
from engines.signals import Residency, Signal
from tests.engines.replay import CAPTURES, Capture


def answer(body: bytes) -> Answer:
    return Answer(200, body)


LABELS = 'engine="%d",model_name="m"'


def metric(name: str, *values: float | str, more: str = "") -> bytes:
    return "".join(f"{name}{{{LABELS % at}{more}}} {v}\n" for at, v in enumerate(values)).encode()


def awake(*values: float | str) -> bytes:
    return metric("vllm:engine_sleep_state", *values, more=',sleep_state="awake"')


def test_load_says_zero_while_two_requests_run_so_no_probe_asks_it() -> None:
    capture = Capture(CAPTURES / "vllm/v0.32.0/defaults-busy")
    assert capture.truth["requests_running"] == 2
    assert capture.body("/load") == b'{"server_load":0}'
    assert "/load" not in {p.feed.url for p in RECIPE.probes if isinstance(p.feed, Path)}


async def test_three_paths_are_asked() -> None:
    engine = Capture(CAPTURES / "vllm/v0.32.0/busy").replay()
    await resolve(engine, RECIPE)
    assert engine.asked == {"/version": 1, "/v1/models": 1, "/metrics": 1}


@pytest.mark.parametrize("version", ["v0.20.0", "v0.32.0"])
def test_waiting_by_reason_is_not_added_to_waiting(version: str) -> None:
    body = Capture(CAPTURES / f"vllm/{version}/saturated").body("/metrics")
    assert body is not None
    assert b'vllm:num_requests_waiting_by_reason{engine="0",model_name="smollm2",reason="capacity"} 5' in body
    assert read(VLLM_WAITING, body) == {"": 5}


@pytest.mark.parametrize(("probe", "name"), [(VLLM_RUNNING, "running"), (VLLM_WAITING, "waiting")])
def test_the_engines_of_one_process_are_summed(probe: Probe, name: str) -> None:
    assert read(probe, metric(f"vllm:num_requests_{name}", 2.0, 3.0)) == {"": 5}


def test_their_cache_usage_is_averaged() -> None:
    assert read(VLLM_KV, metric("vllm:kv_cache_usage_perc", 0.5, 0.25)) == {"": 0.375}


def test_a_created_twin_is_no_count() -> None:
    body = metric("vllm:num_requests_running_created", 1.7e9)
    assert read(VLLM_RUNNING, body) is None


@pytest.mark.parametrize("probe", [VLLM_RUNNING, VLLM_WAITING, VLLM_KV])
def test_not_a_number_is_unknown(probe: Probe) -> None:
    names = {Signal.RUNNING: "num_requests_running", Signal.WAITING: "num_requests_waiting"}
    name = "vllm:" + names.get(probe.signal, "kv_cache_usage_perc")
    assert read(probe, metric(name, "NaN")) is None


def test_half_a_request_is_an_error() -> None:
    with pytest.raises(ProbeError, match="not a count"):
        read(VLLM_RUNNING, metric("vllm:num_requests_running", 1.5))


async def test_the_newer_name_of_the_cache_usage_wins() -> None:
    both = metric("vllm:gpu_cache_usage_perc", 0.5) + metric("vllm:kv_cache_usage_perc", 0.25)
    engine = Capture(CAPTURES / "vllm/v0.32.0/idle").replay(over={"/metrics": answer(both)})
    plan, snapshot = await resolve(engine, RECIPE)
    assert snapshot.load[""].kv_usage == 0.25
    assert plan.dropped[VLLM_KV_OLD.name].startswith("redundant")


async def test_the_older_name_stands_in_for_it() -> None:
    older = metric("vllm:gpu_cache_usage_perc", 0.5)
    engine = Capture(CAPTURES / "vllm/v0.32.0/idle").replay(over={"/metrics": answer(older)})
    _, snapshot = await resolve(engine, RECIPE)
    assert snapshot.load[""].kv_usage == 0.5


@pytest.mark.parametrize(
    ("body", "state"),
    [
        (awake(1.0), Residency.LOADED),
        (awake(0.0), Residency.COLD),
        (awake(1.0, 1.0), Residency.LOADED),
    ],
)
def test_awake_is_loaded_and_asleep_is_cold(body: bytes, state: Residency) -> None:
    assert read(VLLM_SLEEP_STATE, body) == {"": state}


@pytest.mark.parametrize("body", [awake(1.0, 0.0), awake("NaN"), b""])
def test_engines_half_asleep_or_silent_are_unknown(body: bytes) -> None:
    assert read(VLLM_SLEEP_STATE, body) is None


@pytest.mark.parametrize("version", ["v0.20.0", "v0.32.0"])
def test_the_log_says_the_limit_that_was_given(version: str) -> None:
    lines = (CAPTURES / f"vllm/{version}/engine.log").read_bytes().splitlines()
    readings = [r for line in lines if (r := read(VLLM_LOG_MAX_NUM_SEQS, line))]
    assert readings == [{"": 4}]


@pytest.mark.parametrize("option", ["'data_parallel_size': 2", "'max_num_active_seqs': 2"])
def test_a_limit_that_is_not_the_capacity_is_left_alone(option: str) -> None:
    line = f"INFO 11-30 00:38:57 [utils.py:286] non-default args: {{'max_num_seqs': 4, {option}}}"
    assert read(VLLM_LOG_MAX_NUM_SEQS, line.encode()) is None


def test_a_logged_prompt_is_no_limit() -> None:
    said = "INFO 11-30 00:38:57 [utils.py:286] non-default args: {'max_num_seqs': 9}"
    prefix = "(APIServer pid=24395) INFO 11-30 00:39:57 [logger.py:40] Received request cmpl-1: prompt: "
    assert read(VLLM_LOG_MAX_NUM_SEQS, (prefix + said).encode()) is None


async def test_the_doctor_says_why_there_is_no_load() -> None:
    engine = Capture(CAPTURES / "vllm/v0.32.0/idle").replay(over={"/metrics": answer(b"")})
    _, snapshot = await resolve(engine, RECIPE)
    assert "--disable-log-stats" in "\n".join(RECIPE.advice(Findings(snapshot, {}, {}, {})))


async def test_the_doctor_says_how_to_wake_it() -> None:
    engine = Capture(CAPTURES / "vllm/v0.32.0/idle").replay(over={"/metrics": answer(awake(0.0))})
    _, snapshot = await resolve(engine, RECIPE)
    assert "wake_up" in "\n".join(RECIPE.advice(Findings(snapshot, {}, {}, {})))
