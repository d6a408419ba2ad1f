"""Whatever an engine answers: a value, nothing, or a ProbeError. Held over every probe of every recipe."""

from __future__ import annotations

import functools
import json
import re
import sys
import time
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engines.probes import Log, Path, Probe, ProbeError, read
from engines.recipes import RECIPES
from engines.recipes.base import Findings
from engines.signals import Residency, Signal, Snapshot
from tests.engines.replay import captures


def url(probe: Probe) -> str:
    return probe.feed.url if isinstance(probe.feed, Path) else ""


LIBRARY = list(
    {
        probe.name: probe for recipe in RECIPES.values() for probe in (*recipe.probes, *recipe.fingerprint)
    }.values()
)
HTTP = [p for p in LIBRARY if isinstance(p.feed, Path)]
LOGS = [p for p in LIBRARY if isinstance(p.feed, Log)]
METRIC_PROBES = [p for p in HTTP if url(p) == "/metrics"]
JSON_PROBES = [p for p in HTTP if url(p) != "/metrics"]
MANY = settings(max_examples=100, suppress_health_check=list(HealthCheck), deadline=None)


def each(probes: list[Probe]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("probe", [pytest.param(p, id=p.name) for p in probes])


def holds(probe: Probe, body: bytes) -> None:
    """The contract of a probe."""
    try:
        reading = read(probe, body)
    except ProbeError as e:
        assert str(e)
        assert len(str(e)) < 1000, "an error is for people, not a copy of the body"
        return
    for model, value in (reading or {}).items():
        assert isinstance(model, str)
        assert value is None or believable(probe.signal, value)


def believable(signal: Signal, value: object) -> bool:
    if signal is Signal.VERSION:
        return isinstance(value, str) and bool(value)
    if signal is Signal.RESIDENCY:
        return isinstance(value, Residency)
    if signal is Signal.KV_USAGE:
        return isinstance(value, float) and 0 <= value <= 1
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


# -- what can arrive ---------------------------------------------------------------------------


@functools.cache
def recorded(path: str) -> list[bytes]:
    """What real engines answered on this path, two states of each version."""
    bodies: dict[str, list[bytes]] = {}
    for capture in captures():
        if capture.replayable and (body := capture.body(path)):
            bodies.setdefault(capture.key.rsplit("/", 1)[0], []).append(body)
    return [body for found in bodies.values() for body in found[:2]]


def names_in(body: bytes) -> set[str]:
    """Every name of a field or a model in a recorded page."""
    return {name.decode() for name in re.findall(rb'"(\w{2,30})"', body)}


FIELDS = sorted({n for p in JSON_PROBES for b in recorded(url(p)) for n in names_in(b)} | {"size", "state"})
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text(max_size=8)
    | st.sampled_from(["loaded", "starting", "ready", "llamacpp", "sglang", "vllm", "-np", "b1-x", "0.1"])
)
JSON = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=6),
    max_leaves=25,
)


@st.composite
def damaged(draw: st.DrawFn, probe: Probe) -> bytes:
    """A real answer, cut, doubled, or with some bytes replaced."""
    bodies = recorded(url(probe))
    if not bodies:
        return b""
    body = bytearray(draw(st.sampled_from(bodies)))
    for _ in range(draw(st.integers(1, 4))):
        at, end = sorted((draw(st.integers(0, len(body))), draw(st.integers(0, len(body)))))
        body[at:end] = draw(st.binary(max_size=6) | st.just(bytes(body[at:end]) * 2))
        del body[200_000:]
    return bytes(body)


def reacts(probe: Probe, metric: str) -> bool:
    try:
        return read(probe, f"{metric} -1\n".encode()) is not None
    except ProbeError:
        return True


METRIC_NAMES = sorted(
    {"vllm:engine_sleep_state", "sglang:http_requests_active"}  # read only together with others
    | {
        name
        for body in recorded("/metrics")
        for name in set(re.findall(r"^([a-z]+:\w+)", body.decode(), re.MULTILINE))
        if any(reacts(probe, name) for probe in METRIC_PROBES)
    }
)


@each(HTTP)
@MANY
@given(body=st.binary(max_size=300))
def test_any_bytes(probe: Probe, body: bytes) -> None:
    holds(probe, body)


@each(JSON_PROBES)
@MANY
@given(body=JSON)
def test_any_json(probe: Probe, body: object) -> None:
    holds(probe, json.dumps(body).encode())


@each(HTTP)
@settings(MANY, max_examples=50)
@given(data=st.data())
def test_a_damaged_answer_of_a_real_engine(probe: Probe, data: st.DataObject) -> None:
    holds(probe, data.draw(damaged(probe)))


@each(METRIC_PROBES)
@MANY
@given(
    labels=st.dictionaries(st.text(max_size=6), st.text(max_size=6), max_size=3),
    value=st.text(max_size=8) | st.floats().map(str),
    rest=st.binary(max_size=40),
)
def test_any_line_of_any_metric_that_is_read(
    probe: Probe, labels: dict[str, str], value: str, rest: bytes
) -> None:
    text = ",".join(f'{k}="{v}"' for k, v in labels.items())
    page = "".join(f"{metric}{{{text}}} {value}\n" for metric in METRIC_NAMES).encode("utf-8", "replace")
    holds(probe, page + rest)


@each(LOGS)
@MANY
@given(line=st.binary(max_size=300))
def test_any_log_line(probe: Probe, line: bytes) -> None:
    holds(probe, line)


# -- large and hostile -------------------------------------------------------------------------

MIB = 1024 * 1024
Make = Callable[[], bytes]


def fill(piece: bytes, size: int = MIB) -> bytes:
    return (piece * (size // len(piece) + 1))[:size]


def escaped_line(metric: str) -> bytes:
    """What the parser of metric lines is slowest with."""
    return metric.encode() + b'{a="' + b"\\" * 3000 + b'"} 1\n'


HOSTILE: dict[str, Make] = {
    "zeros": lambda: bytes(MIB),
    "spaces": lambda: b" " * MIB,
    "newlines": lambda: b"\n" * MIB,
    "brackets": lambda: b"[" * MIB,
    "objects": lambda: fill(b'{"data":'),
    "digits": lambda: b"9" * MIB,
    "a-number-in-a-field": lambda: b'{"total_slots":' + b"9" * MIB + b"}",
    "quotes": lambda: b'"' * MIB,
    "backslashes": lambda: b'{"version":"' + b"\\" * MIB,
    "many-models": lambda: b'{"data":[' + fill(b'{"id":"a","owned_by":"llamacpp"},')[:-40] + b"null]}",
    "many-processes": lambda: b'{"running":[' + b",".join([b'{"model":"a","state":"x"}'] * 40000) + b"]}",
    "a-long-command": lambda: b'{"running":[{"model":"a","cmd":"' + fill(b"llama-server -np ") + b'"}]}',
    "many-slots": lambda: b"[" + b",".join([b'{"is_processing":true}'] * 45000) + b"]",
    "many-loads": lambda: b'{"loads":[' + b",".join([b'{"num_running_reqs":1}'] * 45000) + b"]}",
    **{
        f"series-of-{m}": functools.partial(fill, f'{m}{{model_name="a"}} 1\n'.encode()) for m in METRIC_NAMES
    },
    **{f"starts-of-{m}": functools.partial(fill, f"\n{m}".encode()) for m in METRIC_NAMES},
    **{f"labels-of-{m}": functools.partial(fill, f'{m}{{a="\\'.encode()) for m in METRIC_NAMES},
    **{f"escapes-of-{m}": functools.partial(fill, escaped_line(m)) for m in METRIC_NAMES},
    **{
        f"a-line-of-{m}": functools.partial(lambda m: m.encode() + b"{" + fill(b'a="b",') + b"} 1\n", m)
        for m in METRIC_NAMES
    },
}

HANG_S = 1.0
"""Far above what any probe takes (the benchmark reports that): only a hang can reach it."""


@pytest.mark.parametrize("name", HOSTILE)
def test_a_mebibyte_made_to_be_slow_is_no_trap(name: str) -> None:
    body = HOSTILE[name]()
    for probe in HTTP:
        began = time.process_time()
        holds(probe, body)
        took = time.process_time() - began
        assert took < HANG_S, f"{probe.name} took {took:.2f} s"


@each(LOGS)
@pytest.mark.parametrize("name", ["zeros", "spaces", "digits", "quotes"])
def test_an_endless_log_line_is_no_trap(probe: Probe, name: str) -> None:
    began = time.process_time()
    holds(probe, HOSTILE[name]())
    assert time.process_time() - began < HANG_S


def test_a_deeply_nested_body_does_not_exhaust_the_stack() -> None:
    for probe in HTTP:
        holds(probe, b"[" * sys.getrecursionlimit() * 2)
        holds(probe, b'{"data":' * sys.getrecursionlimit() * 2)


# -- what is said about it ---------------------------------------------------------------------


@pytest.mark.parametrize("recipe", [pytest.param(r, id=str(r.kind)) for r in RECIPES.values()])
@settings(MANY, max_examples=60)
@given(body=st.binary(max_size=80) | JSON.map(lambda value: json.dumps(value).encode()))
def test_advice_is_given_on_any_body(recipe: object, body: bytes) -> None:
    assert isinstance(recipe, type(next(iter(RECIPES.values()))))
    bodies = {p.feed.url: body for p in recipe.probes if isinstance(p.feed, Path)}
    notes = recipe.advice(Findings(Snapshot(), dict.fromkeys(("x",), "/x answered 401"), {}, bodies))
    assert all(isinstance(note, str) and note for note in notes)


@pytest.mark.parametrize("recipe", [pytest.param(r, id=str(r.kind)) for r in RECIPES.values()])
@settings(MANY, max_examples=60)
@given(body=st.binary(max_size=80) | JSON.map(lambda value: json.dumps(value).encode()))
def test_sleep_checks_and_witnesses_take_any_body(recipe: object, body: bytes) -> None:
    assert isinstance(recipe, type(next(iter(RECIPES.values()))))
    checks = [p.witness.shows for p in recipe.probes if p.witness]
    checks += [recipe.sleep.asleep] if recipe.sleep else []
    assert all(isinstance(check(body), bool) for check in checks)


def test_the_hostile_lines_reach_the_metrics_that_are_read() -> None:
    """Else the tests above prove nothing."""
    names = {"llamacpp:requests_deferred", "vllm:num_requests_running", "sglang:token_usage"}
    assert names <= set(METRIC_NAMES)
    assert {"total_slots", "num_running_reqs", "running", "owned_by"} <= set(FIELDS)
