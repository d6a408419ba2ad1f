"""Counts and times, and the text made of them piece by piece."""

from __future__ import annotations

import asyncio
import math

from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from gateway.metrics.page import texts, write
from gateway.metrics.series import PIECE, Counts, Gauges, Times
from tests.gateway.metrics.read import read

NAMES = st.text(max_size=8)
BOUNDS = (0.1, 1, 10)


@settings(deadline=None)
@given(st.lists(st.tuples(NAMES, NAMES, st.integers(0, 9)), max_size=120))
def test_counts_read_as_those_of_the_client_library_do(added: list[tuple[str, str, int]]) -> None:
    registry = CollectorRegistry()
    theirs = Counter("things", "x", ["a", "b"], registry=registry)
    ours = Counts("things_total", "x", ("a", "b"))
    for a, b, by in added:
        theirs.labels(a, b).inc(by)
        ours.add(a, b, by=by)
    assert read(b"".join(texts(ours.pieces()))).of("things_total") == read(generate_latest(registry)).of(
        "things_total"
    )


@settings(deadline=None)
@given(st.lists(st.tuples(NAMES, st.sampled_from([0, 0.1, 0.5, 1, 7, 10, 11])), max_size=60))
def test_times_read_as_those_of_the_client_library_do(seen: list[tuple[str, float]]) -> None:
    registry = CollectorRegistry()
    theirs = Histogram("t_seconds", "x", ["a"], registry=registry, buckets=BOUNDS)
    ours = Times("t_seconds", "x", ("a",), BOUNDS)
    for a, seconds in seen:
        theirs.labels(a).observe(seconds)
        ours.observe(seconds, a)
    mine, other = read(b"".join(texts(ours.pieces()))), read(generate_latest(registry))
    for suffix in ("_bucket", "_count"):
        assert mine.of("t_seconds" + suffix) == other.of("t_seconds" + suffix)
    for labels, total in other.of("t_seconds_sum").items():
        assert math.isclose(mine.of("t_seconds_sum")[labels], total)


def test_a_family_of_many_pieces_has_one_head() -> None:
    gauges = Gauges("g", "x", ("n",))
    pieces = list(texts(gauges.pieces(((str(i),), i) for i in range(PIECE * 3))))
    assert len(pieces) == 3
    assert b"".join(pieces).count(b"# TYPE") == 1
    assert len(read(b"".join(pieces)).of("g")) == PIECE * 3


async def test_others_on_the_loop_have_turns_while_a_page_is_written() -> None:
    gauges = Gauges("g", "x", ("n",))
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    await write(gauges.pieces(((str(i),), i) for i in range(5000)))
    task.cancel()
    assert turns > 5
