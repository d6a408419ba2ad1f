"""The constructors: what a probe definition may be, and what it takes from its feed."""

from __future__ import annotations

import msgspec
import pytest

from engines.probes import (
    LOG,
    MAX_LOG_LINE,
    MAX_METRIC_BYTES,
    MAX_SERIES,
    Path,
    Probe,
    ProbeDefinitionError,
    ProbeError,
    json_probe,
    log_line,
    prom,
    read,
)
from engines.signals import Reading, Residency, Signal

PAGE = Path("/metrics", "a page of a test")
RUNNING = prom("running", PAGE, Signal.RUNNING, "x:running")
BY_MODEL = prom("by-model", PAGE, Signal.RUNNING, "x:running", per_model="model_name")


class Body(msgspec.Struct):
    version: str | None = None


VERSION = json_probe("version", Signal.VERSION, PAGE, Body, lambda body: {"": body.version})


# -- metrics -----------------------------------------------------------------------------------


def test_a_metric_is_split_by_the_label_that_names_the_model() -> None:
    page = b'x:running{model_name="a"} 1\nx:running{model_name="b"} 2\n'
    assert read(BY_MODEL, page) == {"a": 1, "b": 2}


def test_a_series_without_the_model_label_is_the_whole_backends() -> None:
    assert read(BY_MODEL, b"x:running 3\n") == {"": 3}


def test_a_label_can_pick_the_series() -> None:
    probe = prom("p", PAGE, Signal.RUNNING, "x:running", only={"state": "run"})
    page = b'x:running{state="run"} 2\nx:running{state="wait"} 9\nx:running 1\n'
    assert read(probe, page) == {"": 3}


def test_a_percentage_is_scaled_to_a_share() -> None:
    assert read(prom("p", PAGE, Signal.KV_USAGE, "x:kv", scale=0.01), b"x:kv 50\n") == {"": 0.5}


@pytest.mark.parametrize("page", [b"", b"x:runningmost 3\n", b"# x:running 3\n", b"y 1\nx:other 2\n"])
def test_a_page_without_the_metric_reads_nothing(page: bytes) -> None:
    assert read(RUNNING, page) is None


@pytest.mark.parametrize("page", [b"x:running three\n", b'x:running{a="b 3\n', b"x:running \xff\n"])
def test_a_broken_line_of_the_metric_is_an_error(page: bytes) -> None:
    with pytest.raises(ProbeError, match="x:running"):
        read(RUNNING, page)


def test_a_broken_line_of_another_metric_does_no_harm() -> None:
    assert read(RUNNING, b"garbage {{{ \xff\nx:running 3\n") == {"": 3}


def test_more_series_than_an_engine_can_have_are_not_believed() -> None:
    page = b"".join(b'x:running{n="%d"} 1\n' % n for n in range(MAX_SERIES + 1))
    with pytest.raises(ProbeError, match="series"):
        read(RUNNING, page)


def test_more_bytes_of_one_metric_than_can_be_parsed_in_time_are_not_believed() -> None:
    line = b'x:running{n="' + b"n" * 1000 + b'"} 1\n'
    assert read(RUNNING, line * (MAX_METRIC_BYTES // len(line))) is not None
    with pytest.raises(ProbeError, match="bytes"):
        read(RUNNING, line * (MAX_METRIC_BYTES // len(line) + 1))


@pytest.mark.parametrize("signal", [Signal.VERSION, Signal.MODELS, Signal.RESIDENCY, Signal.SIZE_BYTES])
def test_a_metric_can_only_be_a_load_signal(signal: Signal) -> None:
    with pytest.raises(ProbeDefinitionError, match="a metric can be one of"):
        prom("p", PAGE, signal, "x")


# -- log lines ---------------------------------------------------------------------------------


def test_a_log_line_holds_the_value_and_the_model() -> None:
    probe = log_line("p", Signal.CAPACITY, r"(?P<model>\w+) serves (?P<value>\d+)")
    assert read(probe, b"now tiny serves 4 at a time") == {"tiny": 4}
    assert probe.feed is LOG


def test_a_matching_line_can_report_a_fixed_value() -> None:
    probe = log_line("p", Signal.RESIDENCY, r"unloading (?P<model>\S+)", "cold")
    assert read(probe, b"unloading tiny") == {"tiny": Residency.COLD}


def test_a_line_that_does_not_match_says_nothing() -> None:
    assert read(log_line("p", Signal.CAPACITY, r"n=(?P<value>\d+)"), b"\xff\xfe m=3") is None


def test_a_matching_line_with_an_unusable_value_is_an_error() -> None:
    with pytest.raises(ProbeError, match="not a number"):
        read(log_line("p", Signal.CAPACITY, r"n=(?P<value>\S+)"), b"n=many")


def test_only_the_start_of_an_endless_line_is_matched() -> None:
    probe = log_line("p", Signal.CAPACITY, r"n=(?P<value>\d+)")
    assert read(probe, b" " * MAX_LOG_LINE + b"n=3") is None


@pytest.mark.parametrize(
    ("signal", "pattern", "value", "why"),
    [
        (Signal.CAPACITY, "(", None, "does not compile"),
        (Signal.CAPACITY, "x", None, "either a fixed value or a group"),
        (Signal.CAPACITY, "(?P<value>x)", "3", "either a fixed value or a group"),
        (Signal.CAPACITY, "x", "many", "not a number"),
        (Signal.RESIDENCY, "x", "warm", "not one of cold, loaded, loading"),
        (Signal.KV_USAGE, "x", "2", "within"),
        (Signal.MODELS, "(?P<value>x)", None, "a log line can be one of"),
    ],
)
def test_a_definition_that_could_never_read_is_refused(
    signal: Signal, pattern: str, value: str | None, why: str
) -> None:
    with pytest.raises(ProbeDefinitionError, match=why):
        log_line("p", signal, pattern, value)


# -- JSON --------------------------------------------------------------------------------------


def test_a_field_of_another_type_is_an_error_that_names_path_and_field() -> None:
    with pytest.raises(ProbeError, match=r"/metrics.*version"):
        read(VERSION, b'{"version": 3}')


def test_an_absent_field_is_unknown() -> None:
    assert read(VERSION, b'{"name": "x"}') is None


@pytest.mark.parametrize("body", [b"", b"Not Found", b"[]", b'{"version": "1"', b"\xff"])
def test_a_body_that_is_not_the_json_meant_is_an_error(body: bytes) -> None:
    with pytest.raises(ProbeError):
        read(VERSION, body)


# -- what counts as an answer ------------------------------------------------------------------


def fixed(signal: Signal, reading: Reading | None) -> Probe:
    return Probe("p", signal, PAGE, lambda _body: reading)


@pytest.mark.parametrize("signal", [Signal.MODELS, Signal.RESIDENCY])
def test_an_empty_list_is_an_answer(signal: Signal) -> None:
    assert read(fixed(signal, {}), b"") == {}


@pytest.mark.parametrize("signal", [Signal.SIZE_BYTES, Signal.RUNNING, Signal.VERSION])
def test_a_reading_without_any_value_is_none(signal: Signal) -> None:
    assert read(fixed(signal, {"m": None}), b"") is None
    assert read(fixed(signal, {}), b"") is None


def test_what_a_parser_trips_over_is_a_probe_error() -> None:
    def trips(_body: bytes) -> Reading | None:
        raise OverflowError("too large")

    with pytest.raises(ProbeError, match="too large"):
        read(Probe("p", Signal.RUNNING, PAGE, trips), b"")
