"""A log that is read as it grows, and what it tells."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from engines.plan import Plan
from engines.probes import log_line
from engines.recipes.base import Recipe
from engines.signals import ModelInfo, Residency, Signal, Snapshot
from gateway.config import BackendConfig
from gateway.fleet.backend import Backend
from gateway.fleet.log_follower import HEAD_BYTES, LINE_BYTES, TAIL_BYTES, LogFile, LogFollower

SLOTS = log_line("slots", Signal.CAPACITY, r"slots=(?P<value>\d+)")
UNLOADED = log_line("unloaded", Signal.RESIDENCY, r"unloading (?P<model>\S+)", "cold")
PLAN = Plan(Recipe("openai", "x", (SLOTS, UNLOADED)), "1", (SLOTS, UNLOADED), {})


def everything(file: LogFile) -> list[bytes]:
    found: list[bytes] = []
    while lines := file.more():
        found += lines
    return found


def backend(path: Path, **config: object) -> Backend:
    b = Backend(BackendConfig(url="http://a:1", logs=f"file://{path}", **config))  # type: ignore[arg-type]
    b.resolved(PLAN, Snapshot(models={"m": ModelInfo()}, source={Signal.MODELS: "x"}), 0)
    return b


async def follow(follower: LogFollower) -> None:
    while await follower.once(PLAN):
        pass


def test_lines_come_once_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"one\ntwo\nthr")
    file = LogFile(path)
    assert everything(file) == [b"one", b"two"]
    with path.open("ab") as f:
        f.write(b"ee\n")
    assert everything(file) == [b"three"]


def test_a_log_that_was_replaced_or_cut_short_is_read_anew(tmp_path: Path) -> None:
    path, new = tmp_path / "log", tmp_path / "new"
    path.write_bytes(b"a long first line\n")
    file = LogFile(path)
    assert everything(file) == [b"a long first line"]
    path.write_bytes(b"short\n")
    assert everything(file) == [b"short"]
    new.write_bytes(b"other\n")
    os.replace(new, path)
    assert everything(file) == [b"other"]


def test_the_middle_of_a_huge_log_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "log"
    filler = b"x" * 1023 + b"\n"
    middle = filler * ((HEAD_BYTES + TAIL_BYTES) // 1024)
    path.write_bytes(b"first\n" + filler * 8 + b"middle\n" + middle + b"middle\n" + middle + b"last\n")
    lines = everything(LogFile(path))
    assert (lines[0], lines[-1], lines.count(b"middle")) == (b"first", b"last", 1)
    assert {len(x) for x in lines} <= {5, 6, 4, 1023}, "a cut line is no line"


def test_a_line_without_end_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"y" * (LINE_BYTES * 9) + b"slots=3\nnext\n")
    file = LogFile(path)
    lines: list[bytes] = []
    for _ in range(9):
        lines += file.more()
    assert lines == [b"next"]


async def test_a_line_says_what_no_endpoint_shows(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"started with slots=4\n")
    b = backend(path)
    await follow(LogFollower(b, path, lambda: 1.0))
    assert b.targets["m"].view(1.0).capacity == 4
    assert b.targets["m"].view(9999.0).capacity == 4, "it holds until another line"


async def test_a_model_that_the_log_says_is_unloaded_begins_a_new_generation(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"unloading m\n")
    b = backend(path)
    target = b.targets["m"]
    target.replied(1.0)
    await follow(LogFollower(b, path, lambda: 2.0))
    assert target.generation == 1
    assert b.readings.residency("m", 2.0) is Residency.COLD


async def test_what_a_round_reads_counts_before_the_log(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"unloading m\n")
    b = backend(path)
    await follow(LogFollower(b, path, lambda: 1.0))
    loaded = Snapshot(
        models={"m": ModelInfo(Residency.LOADED)}, source={Signal.MODELS: "x", Signal.RESIDENCY: "y"}
    )
    b.resolved(PLAN, loaded, 2)
    assert b.targets["m"].view(2).warm is True


async def test_a_log_that_goes_away_leaves_unknown_and_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"slots=4\n")
    b = backend(path)
    follower = LogFollower(b, path, lambda: 1.0)
    await follow(follower)
    path.unlink()
    with caplog.at_level(logging.WARNING):
        assert not await follower.once(PLAN)
        assert not await follower.once(PLAN)
    assert b.targets["m"].view(1.0).capacity is None
    assert caplog.text.count("cannot be read") == 1
    path.write_bytes(b"slots=5\n")
    await follow(follower)
    assert b.targets["m"].view(1.0).capacity == 5


async def test_a_pipe_is_no_log(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    assert not await LogFollower(backend(path), path, lambda: 1.0).once(PLAN)
