"""SGLang's loads, and when its metrics are believed."""

from __future__ import annotations

import json

import pytest

from engines.fetch import Answer
from engines.plan import resolve
from engines.probes import Path, ProbeError, read
from engines.recipes.base import Findings
from engines.recipes.sglang import (
    RECIPE,
    SGLANG_CAPACITY,
    SGLANG_KV,
    SGLANG_METRICS_KV,
    SGLANG_METRICS_RUNNING,
    SGLANG_METRICS_WAITING,
    SGLANG_RESIDENCY,
    SGLANG_RUNNING,
    SGLANG_WAITING,
)
from engines.signals import Residency, Signal, Snapshot
from tests.engines.replay import CAPTURES, Capture

IDLE = Capture(CAPTURES / "sglang/v0.5.23/idle")


def loads(*ranks: dict[str, object]) -> bytes:
    return json.dumps({"version": "0.5.23", "loads": ranks}).encode()


def page(running: float | str, queued: float, opened: float | None, tp: int = 1) -> bytes:
    rank = 'engine_type="unified",model_name="m",pp_rank="0",tp_rank="%d"'
    lines = [
        f"sglang:{name}{{{rank % at}}} {value}"
        for name, value in (("num_running_reqs", running), ("num_queue_reqs", queued), ("token_usage", 0.5))
        for at in range(tp)
    ]
    if opened is not None:
        lines += [
            f'sglang:http_requests_active{{endpoint="/v1/chat/completions",method="POST"}} {opened}',
            'sglang:http_requests_active{endpoint="/metrics",method="GET"} 1.0',
        ]
    return "\n".join(lines).encode()


def test_no_probe_asks_what_generates_or_waits_or_imitates() -> None:
    asked = {p.feed.url for p in RECIPE.probes if isinstance(p.feed, Path)}
    assert asked == {"/v1/models", "/v1/loads", "/metrics"}


async def test_loads_win_over_metrics() -> None:
    plan, snapshot = await resolve(Capture(CAPTURES / "sglang/v0.5.23/saturated").replay(), RECIPE)
    assert snapshot.source[Signal.RUNNING] == "sglang-loads-running"
    assert all(p.feed.url != "/metrics" for p in plan.active if isinstance(p.feed, Path))


def test_data_parallel_ranks_are_summed() -> None:
    rank = {"num_running_reqs": 2, "num_waiting_reqs": 1, "max_running_requests": 8}
    body = loads({"dp_rank": 0, **rank}, {"dp_rank": 1, **rank})
    assert read(SGLANG_RUNNING, body) == {"": 4}
    assert read(SGLANG_WAITING, body) == {"": 2}
    assert read(SGLANG_CAPACITY, body) == {"": 16}


def test_a_rank_that_does_not_say_makes_the_sum_unknown() -> None:
    assert read(SGLANG_RUNNING, loads({"num_running_reqs": 2}, {})) is None


def test_cache_usage_is_weighted_by_the_size_of_each_cache() -> None:
    body = loads(
        {"token_usage": 0.5, "max_total_num_tokens": 30_000},
        {"token_usage": 0.1, "max_total_num_tokens": 10_000},
    )
    assert read(SGLANG_KV, body) == {"": 0.4}


def test_a_negative_count_is_an_error() -> None:
    with pytest.raises(ProbeError, match="not a count"):
        read(SGLANG_RUNNING, loads({"num_running_reqs": -1}))


@pytest.mark.parametrize("probe", [SGLANG_RUNNING, SGLANG_CAPACITY, SGLANG_KV, SGLANG_RESIDENCY])
@pytest.mark.parametrize("body", [b"{}", b'{"loads":[]}', b'{"loads":null}', b'{"error":"Unauthorized"}'])
def test_a_page_without_ranks_reads_nothing(probe: object, body: bytes) -> None:
    assert read(probe, body) is None  # type: ignore[arg-type]


def test_an_engine_that_has_computed_nothing_yet_is_not_said_to_be_loaded() -> None:
    assert read(SGLANG_RESIDENCY, loads({"total_prefill_uncached_tokens": 0})) is None
    assert read(SGLANG_RESIDENCY, loads({"total_prefill_uncached_tokens": 6})) == {"": Residency.LOADED}


def test_metrics_that_agree_with_the_open_requests_are_read() -> None:
    body = page(2, 4, 6)
    assert read(SGLANG_METRICS_RUNNING, body) == {"": 2}
    assert read(SGLANG_METRICS_WAITING, body) == {"": 4}
    assert read(SGLANG_METRICS_KV, body) == {"": 0.5}


@pytest.mark.parametrize(
    ("running", "queued", "opened"),
    [
        (0, 0, 1),  # a prefill on 0.5.23
        (1, 3, 5),  # one was admitted less than 40 steps ago
        (2, 4, 0),  # 0.5.9, everybody has left: the gauges are frozen
    ],
)
def test_metrics_that_contradict_the_open_requests_are_stale(running: int, queued: int, opened: int) -> None:
    for probe in (SGLANG_METRICS_RUNNING, SGLANG_METRICS_WAITING, SGLANG_METRICS_KV):
        with pytest.raises(ProbeError, match="stale"):
            read(probe, page(running, queued, opened))


def test_metrics_without_a_count_of_open_requests_are_not_believed() -> None:
    with pytest.raises(ProbeError, match="can be stale"):
        read(SGLANG_METRICS_RUNNING, page(0, 0, None))


def test_the_parts_of_one_engine_are_counted_once() -> None:
    assert read(SGLANG_METRICS_RUNNING, page(2, 0, 2, tp=4)) == {"": 2}


def test_a_gauge_that_is_not_a_number_is_unknown() -> None:
    assert read(SGLANG_METRICS_RUNNING, page("NaN", 0, 0)) is None


async def test_metrics_stand_in_where_loads_are_missing() -> None:
    engine = Capture(CAPTURES / "sglang/v0.5.23/saturated").replay(over={"/v1/loads": Answer(500, b"")})
    _, snapshot = await resolve(engine, RECIPE)
    assert snapshot.load[""].running == 2
    assert snapshot.load[""].waiting == 4
    assert Signal.CAPACITY in snapshot.unknown


async def test_the_doctor_says_what_is_missing_without_loads() -> None:
    gone = {"/v1/loads": Answer(404, b""), "/metrics": Answer(404, b"")}
    _, snapshot = await resolve(IDLE.replay(over=gone), RECIPE)
    assert "0.5.8" in "\n".join(RECIPE.advice(Findings(snapshot, {}, {}, {})))


def test_the_doctor_warns_of_the_health_check_that_generates() -> None:
    assert "/health" in "\n".join(RECIPE.advice(Findings(Snapshot(), {}, {}, {})))
