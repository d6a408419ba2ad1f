"""Recorded pages with something spoiled in them, and how long a probe may take over what arrives."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import islice
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engines.probes import Path, Probe, ProbeError, read
from engines.recipes import RECIPES
from engines.signals import Residency, Signal
from tests.engines.replay import CAPTURES, captures


def library() -> list[Probe]:
    every = (p for recipe in RECIPES.values() for p in (*recipe.probes, *recipe.fingerprint))
    return list({probe.name: probe for probe in every}.values())


@cache
def recorded(probe: Probe) -> list[bytes]:
    """A few bodies or lines that the probe reads: what to start spoiling from."""
    return list(islice((body for body in _feed(probe) if _reads(probe, body)), 3))


def _feed(probe: Probe) -> Iterator[bytes]:
    if isinstance(probe.feed, Path):
        for capture in captures():
            if capture.replayable and (body := capture.body(probe.feed.url)):
                yield body
    else:
        for log in sorted(CAPTURES.glob("*/*/engine.log")):
            yield from log.read_bytes().splitlines()


def _reads(probe: Probe, body: bytes) -> bool:
    try:
        return bool(read(probe, body))
    except ProbeError:
        return False


def named(probes: Iterable[Probe]) -> list[ParameterSet]:
    return [pytest.param(probe, id=probe.name) for probe in probes]


def is_json(probe: Probe) -> bool:
    return any(body[:1] in (b"{", b"[") for body in recorded(probe))


PROBES = named(library())
JSON_PROBES = named(p for p in library() if is_json(p))
TEXT_PROBES = named(p for p in library() if recorded(p) and not is_json(p))
quick = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


def accept(probe: Probe, body: bytes) -> None:
    """Fails for anything but a reading of the signal's own type, nothing, or a ProbeError."""
    try:
        reading = read(probe, body)
    except ProbeError as e:
        assert str(e)
        return
    for model, value in (reading or {}).items():
        assert isinstance(model, str)
        if value is None or probe.signal is Signal.MODELS:
            continue
        if probe.signal is Signal.RESIDENCY:
            assert isinstance(value, Residency)
        elif probe.signal is Signal.VERSION:
            assert isinstance(value, str)
            assert value
        elif probe.signal is Signal.KV_USAGE:
            assert isinstance(value, float)
            assert 0 <= value <= 1
        else:
            assert type(value) is int
            assert value >= 0


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=2**62)
    | st.floats(allow_nan=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@pytest.mark.parametrize("probe", JSON_PROBES)
@quick
@given(data=st.data())
def test_a_recorded_page_with_one_value_changed(probe: Probe, data: st.DataObject) -> None:
    page = json.loads(data.draw(st.sampled_from(recorded(probe))))
    holders = list(_places(page))
    holder, key = data.draw(st.sampled_from(holders))
    holder[key] = data.draw(json_values)
    accept(probe, json.dumps(page).encode())


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in items:
        yield value, key
        if isinstance(inner, dict | list):
            yield from _places(inner)


@pytest.mark.parametrize("probe", TEXT_PROBES)
@quick
@given(data=st.data())
def test_a_recorded_text_with_a_piece_replaced(probe: Probe, data: st.DataObject) -> None:
    body = data.draw(st.sampled_from(recorded(probe)))
    at = data.draw(st.integers(0, len(body)))
    piece = data.draw(st.sampled_from([b"NaN", b"-1", b"1.5", b"1e999", b'"', b"{", b"\\", b"\xff"]))
    accept(probe, body[:at] + piece + body[at + data.draw(st.integers(0, 40)) :])


MIB = 1024 * 1024
LINE = b'msg="server config" env="map['
VLLM_LINE = b"INFO 11-30 00:38:57 [utils.py:286] non-default args: {'max_num_seqs': "


def hostile(probe: Probe) -> Iterator[bytes]:
    """1 MiB of each kind of trouble."""
    seeds = [
        b"[",
        b'{"a":',
        b'{"models":[',
        b"\n",
        b'"',
        b"a",
        b"\xff",
        b"0",
        LINE,
        VLLM_LINE,
        *recorded(probe),
    ]
    for seed in seeds:
        yield (seed * (MIB // len(seed) + 1))[:MIB]
    yield b'{"models":[' + (b'{"name":"a","size":1},' * MIB)[:MIB] + b"{}]}"
    yield b'{"data":[' + (b'{"id":"a"},' * MIB)[: 11 * (MIB // 11)] + b'{"id":"b"}]}'
    yield b'{"loads":[' + b",".join([b'{"num_running_reqs":1}'] * (MIB // 23)) + b"]}"


@pytest.mark.slow
@pytest.mark.parametrize("probe", PROBES)
def test_a_mebibyte_of_anything_takes_no_more_than_50_ms(probe: Probe) -> None:
    for body in hostile(probe):
        took = min(_took(probe, body) for _ in range(3))
        assert took < 0.05, f"{took * 1e3:.0f} ms for {body[:40]!r}"


def _took(probe: Probe, body: bytes) -> float:
    start = time.process_time()
    accept(probe, body)
    return time.process_time() - start


def test_every_probe_reads_some_recording_or_is_known_to_have_none() -> None:
    unread = {p.name for p in library() if not recorded(p)}
    assert unread <= {"vllm-gpu-cache-usage-perc"}  # seen in recordings of 0.10.2 that are not ours
