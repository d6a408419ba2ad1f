"""Probes: one way to read one signal from one feed.

How this works. A probe is a value: a name, the signal it reads, the feed it reads it from, and a
pure function from the feed's bytes to a `Reading`. It keeps three rules:

1. what the feed does not show is `None`: no default, no 0;
2. what the feed shows but cannot be the signal is a `ProbeError` that says why;
3. nothing else escapes, whatever the bytes.

Most probes come from three constructors: `prom()` for a metric, `log_line()` for a line of the
engine's log, `json_probe()` for an engine's own JSON.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from engines.signals import LOAD_FIELDS, WHOLE_BACKEND, Reading, Residency, Signal, Snapshot, Value


class ProbeError(ValueError):
    """The feed answered, and what it said cannot be the signal. The message is for an operator."""


class ProbeDefinitionError(ValueError):
    """A probe that could never read anything (a bad pattern, an impossible fixed value)."""


@dataclass(frozen=True, slots=True)
class Path:
    """An HTTP path that a probe may ask with GET, and why asking is safe.

    `wakes` marks a path whose GET loads a sleeping model again: it is asked only when the recipe's
    sleep check has just said that the engine is awake.
    """

    url: str
    why: str
    wakes: bool = False


@dataclass(frozen=True, slots=True)
class Log:
    """The backend's log, one line at a time."""


LOG = Log()
Feed = Path | Log

Unlisted = Callable[[str, Snapshot], Residency | None]


def cold(_model: str, _snapshot: Snapshot) -> Residency | None:
    """What an unlisted model is on an engine whose list names everything in memory."""
    return Residency.COLD


Guard = Callable[[str], bool]
"""Whether a version is one in which the probe's field means what the probe says."""


@dataclass(frozen=True, slots=True)
class Witness:
    """A second way through a version guard, for builds whose version says nothing of their age.

    `shows` is given the 200 body of `path`; `what` says in words what it found there. A body that
    cannot be read shows nothing.
    """

    path: Path
    shows: Callable[[bytes], bool]
    what: str


@dataclass(frozen=True, slots=True)
class Probe:
    """`parse` returns None (or a reading with no value) when the feed does not show the signal.

    `when` guards the one case that nothing in the feed can tell: the same name with another meaning
    in another version. With the version unknown a guarded probe does not run, unless its `witness`
    speaks for it.
    `unlisted` says, for a residency probe that reads a list of what is in memory, what a model
    that the list leaves out is; None (a log line) = says nothing about it.
    """

    name: str
    signal: Signal
    feed: Feed
    parse: Callable[[bytes], Reading | None]
    when: Guard | None = None
    unlisted: Unlisted | None = None
    own: bool = False
    witness: Witness | None = None


def read(probe: Probe, body: bytes) -> Reading | None:
    """Run a probe. Returns None when nothing is known; raises ProbeError and nothing else."""
    try:
        reading = probe.parse(body)
    except ProbeError:
        raise
    except (ValueError, RecursionError, OverflowError) as e:
        raise ProbeError(f"{type(e).__name__}: {str(e)[:200]}") from None
    if reading is None or not _knows(probe.signal, reading):
        return None
    return reading


def _knows(signal: Signal, reading: Reading) -> bool:
    if signal is Signal.MODELS or (signal is Signal.RESIDENCY and not reading):
        return True  # an empty list is an answer: nothing served, nothing in memory
    return any(v is not None for v in reading.values())


# -- metrics -----------------------------------------------------------------------------------


def prom(
    name: str,
    path: Path,
    signal: Signal,
    metric: str,
    *,
    per_model: str | None = None,
    only: Mapping[str, str] | None = None,
    scale: float = 1.0,
    when: Guard | None = None,
    witness: Witness | None = None,
    own: bool = False,
) -> Probe:
    """One metric of a Prometheus text endpoint, matched by its exact name.

    `per_model` names the label that splits it by model. `only` keeps the series whose labels have
    these values (a label that a series lacks does not exclude it). Series that differ in other
    labels (`engine`, `dp_rank`) are summed; KV usage, a ratio, is averaged. `scale` multiplies the
    value (0.01 for percent). NaN is unknown. A count that is fractional or negative, and a ratio
    outside 0..1, is a ProbeError.
    """
    if signal not in LOAD_FIELDS:
        raise ProbeDefinitionError(f"{name}: a metric can be one of {_names(LOAD_FIELDS)}, not {signal}")

    def parse(body: bytes) -> Reading | None:
        series: dict[str, list[float]] = {}
        for labels, value in samples(body, metric):
            if any(labels.get(k, v) != v for k, v in (only or {}).items()):
                continue
            model = labels.get(per_model, WHOLE_BACKEND) if per_model else WHOLE_BACKEND
            series.setdefault(model, []).append(value)
        return {model: _total(signal, metric, values, scale) for model, values in series.items()} or None

    return Probe(name, signal, path, parse, when=when, own=own, witness=witness)


MAX_SERIES = 256
"""Series of one metric that are believed. An engine has a handful: one per model and data-parallel rank."""
MAX_METRIC_BYTES = 16 * 1024
"""Bytes of one metric's lines that are parsed (the most seen is 2.9 kB, SGLang's open requests by path).

The parser takes up to 0.9 µs for a byte that is made to be slow: 1 MiB of them would hold the loop for a
second, these 15 ms.
"""


def samples(body: bytes, metric: str) -> Iterator[tuple[Mapping[str, str], float]]:
    """The samples of exactly this metric. Only its lines are parsed: an engine's page can hold 100 kB.

    Raises ProbeError for a line of this metric that is not the Prometheus text format, and for
    more series than an engine can have.
    """
    taken = 0
    for seen, line in enumerate(lines_of(body, metric)):
        taken += len(line)
        if seen == MAX_SERIES or taken > MAX_METRIC_BYTES:
            raise ProbeError(f"{metric}: over {MAX_SERIES} series or {MAX_METRIC_BYTES} bytes of them")
        try:
            for family in text_string_to_metric_families(line.decode("utf-8", "replace") + "\n"):
                for sample in family.samples:
                    yield sample.labels, float(sample.value)
        except (ValueError, KeyError, IndexError, TypeError) as e:
            raise ProbeError(f"{metric}: not a metric line: {line[:120]!r} ({type(e).__name__})") from None


def lines_of(body: bytes, metric: str) -> Iterator[bytes]:
    """The lines of exactly this metric: not of `<metric>_created`, nor of `<metric>_by_reason`."""
    for line in re.finditer(rb"\n(%s[{ \t][^\n]*)" % re.escape(metric.encode()), b"\n" + body):
        yield line[1].strip()


def _total(signal: Signal, what: str, values: list[float], scale: float) -> Value | None:
    if any(math.isnan(v) for v in values):
        return None
    if signal is Signal.KV_USAGE:
        return ratio(what, sum(values) / len(values) * scale)
    return count(what, sum(values) * scale)


def count(what: str, value: float) -> int:
    """A number of requests or bytes. Raises ProbeError when it cannot be one."""
    if isinstance(value, bool) or not math.isfinite(value) or value < 0 or value != int(value):
        raise ProbeError(f"{what} is {value!r}, which is not a count")
    return int(value)


def ratio(what: str, value: float) -> float:
    """A share, 0..1. Raises ProbeError when it is not."""
    if isinstance(value, bool) or not 0 <= value <= 1:  # NaN fails both comparisons
        raise ProbeError(f"{what} is {value!r}, which is not within 0..1")
    return float(value)


# -- log lines ---------------------------------------------------------------------------------

LOG_SIGNALS = frozenset({Signal.VERSION, Signal.RESIDENCY, *LOAD_FIELDS})


def log_line(
    name: str,
    signal: Signal,
    pattern: str,
    value: str | None = None,
    *,
    when: Guard | None = None,
    own: bool = False,
) -> Probe:
    """One regular expression over a log line.

    Its group `value` holds the value, or `value` is what any matching line reports (`cold`). Its
    group `model` names the model. Raises ProbeDefinitionError for a pattern that does not compile,
    for neither or both kinds of value, and for a fixed value that cannot be the signal.
    """
    if signal not in LOG_SIGNALS:
        raise ProbeDefinitionError(f"{name}: a log line can be one of {_names(LOG_SIGNALS)}, not {signal}")
    try:
        regex = re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as e:
        raise ProbeDefinitionError(f"{name}: the pattern {pattern!r} does not compile: {e}") from None
    if (value is None) == ("value" not in regex.groupindex):
        raise ProbeDefinitionError(
            f"{name}: give either a fixed value or a group (?P<value>…), not both or neither"
        )
    fixed: Value | None = None
    if value is not None:
        try:
            fixed = as_signal(signal, value)
        except ProbeError as e:
            raise ProbeDefinitionError(f"{name}: {e}") from None

    def parse(line: bytes) -> Reading | None:
        match = regex.search(line[:MAX_LOG_LINE].decode("utf-8", "replace"))
        if match is None:
            return None
        groups = match.groupdict()
        text = groups.get("value")
        read = fixed if fixed is not None else (None if text is None else as_signal(signal, text))
        return {groups.get("model") or WHOLE_BACKEND: read}

    return Probe(name, signal, LOG, parse, when=when, own=own)


MAX_LOG_LINE = 16 * 1024
"""Bytes of a line that are matched. An engine that logs prompts can write lines of megabytes."""


def as_signal(signal: Signal, text: str) -> Value:
    """The text of a log line as this signal's value. Raises ProbeError when it cannot be."""
    if signal is Signal.VERSION:
        if not text.strip():
            raise ProbeError("the version is empty")
        return text.strip()
    if signal is Signal.RESIDENCY:
        try:
            return Residency(text.strip().lower())
        except ValueError:
            raise ProbeError(f"{text[:80]!r} is not one of {_names(Residency)}") from None
    try:
        number = float(text)
    except ValueError:
        raise ProbeError(f"{signal}: {text[:80]!r} is not a number") from None
    return ratio(signal, number) if signal is Signal.KV_USAGE else count(signal, number)


# -- an engine's own JSON ----------------------------------------------------------------------

Body = TypeVar("Body")


def json_probe(
    name: str,
    signal: Signal,
    path: Path,
    shape: type[Body],
    take: Callable[[Body], Reading | None],
    *,
    when: Guard | None = None,
    unlisted: Unlisted | None = None,
) -> Probe:
    """Decode the body into `shape`, then take the reading.

    `shape` is a msgspec Struct whose fields are `… | None = None`. A field of another type than the
    shape's is a ProbeError; an absent one is None.
    """
    decoder = msgspec.json.Decoder(shape)

    def parse(body: bytes) -> Reading | None:
        try:
            decoded = decoder.decode(body)
        except msgspec.DecodeError as e:  # ValidationError is one
            raise ProbeError(f"{path.url}: {str(e)[:200]}") from None
        return take(decoded)

    return Probe(name, signal, path, parse, when=when, unlisted=unlisted)


def _names(values: Iterable[str]) -> str:
    return ", ".join(sorted(str(v) for v in values))
