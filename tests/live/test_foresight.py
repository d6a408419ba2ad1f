"""What the real gateway expects of real llama.cpp servers, and what comes."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.replay.client import replay
from benchmarks.replay.fronts import PHAROS, Front, engine, standing
from benchmarks.replay.report import foresight
from benchmarks.replay.trace import Shape, Talk, Turn, trace

pytestmark = pytest.mark.live

FIFTY = Shape(
    users=10, turns=5, system_words=(180, 120), question_words=(8, 24), pasted_words=40,
    answer_tokens=(6, 10), think_s=0.7,
)  # fmt: skip


@pytest.fixture(scope="module")
def pharos() -> Iterator[Front]:
    """In front of three engines with 1, 2 and 4 slots."""
    with standing(PHAROS) as front:
        yield front


def asked(front: Front, *talks: Talk) -> list[dict[str, Any]]:
    """What the gateway expected of these requests, and what came."""
    before = len(front.told())
    assert [row.error for row in asyncio.run(replay(front.url, talks)) if row.error] == []
    return front.told()[before:]


def long_text(seed: int) -> str:
    return trace(seed, Shape(users=1, system_words=(500,)))[0].system


def once(document: str, question: str) -> Talk:
    return Talk("anna", document, (Turn(0, question, 4),))


def wait_until_up(front: Front, url: str) -> None:
    deadline = time.monotonic() + 30
    while (states := httpx.get(f"{front.url}/healthz", trust_env=False).json()["backends"])[url] != "up":
        assert time.monotonic() < deadline, states
        time.sleep(0.1)


def test_of_a_long_prompt_sent_again_as_much_is_cached_as_expected(pharos: Front) -> None:
    document = long_text(3)
    first, again, other = (
        asked(pharos, once(document, question))[0]
        for question in ("Who may use it?", "Who may use it?", "What may nobody do with it?")
    )
    assert (first["expected_cached"], first["cached_tokens"] < 100) == (0, True)
    for row in (again, other):
        assert row["backend"] == first["backend"]
        assert row["expected_cached"] == pytest.approx(row["cached_tokens"], rel=0.15)


def test_of_fifty_turns_most_are_expected_right(pharos: Front, capsys: pytest.CaptureFixture[str]) -> None:
    rows = asked(pharos, *trace(5, FIFTY))
    seen = foresight(rows)
    with capsys.disabled():
        print(f"\nfifty turns over three engines: {seen}")  # noqa: T201
    assert len(rows) == 50
    assert seen.right is not None
    # 0.90 to 0.97 were seen; a busy machine shifts which slot is free, and this is no measurement.
    assert seen.right >= 0.8, Counter(row["decisions"]["prefix"] for row in rows)


@contextmanager
def not_looking(front: Front) -> Iterator[None]:
    """The gateway stands still."""
    processes = front.party.processes()
    for process in processes:
        os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            os.kill(process, signal.SIGCONT)


def test_one_wrong_expectation_is_enough_after_an_engine_was_started_again_unseen(
    pharos: Front, tmp_path: Path
) -> None:
    talk = once(long_text(4), "Who may use it?")
    home = asked(pharos, talk)[0]["backend"]
    old = next(e for e in pharos.engines if e.url == home)
    with ExitStack() as started:
        with not_looking(pharos):
            old.stop()
            new = started.enter_context(engine(tmp_path, old.slots, old.port))
            new.wait_ready()
        wait_until_up(pharos, home)
        wrong, right = asked(pharos, talk)[0], asked(pharos, talk)[0]
        assert [row["backend"] for row in (wrong, right)] == [home, home]
        assert [row["decisions"]["prefix"] for row in (wrong, right)] == ["wrong_prediction", "predicted_hit"]
        assert right["expected_cached"] == pytest.approx(right["cached_tokens"], rel=0.15)
