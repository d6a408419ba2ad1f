"""A real engine is killed, and comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.demo import install
from gateway.demo.engines import NEWEST, LlamaServer
from gateway.demo.stage import Gateway
from tests.live.engine import chat
from tests.live.stage import ENDLESS, in_front_of, kill, plain
from tests.live.talk import End, talks

pytestmark = pytest.mark.live

Scene = tuple[Gateway, LlamaServer, LlamaServer]


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    """An engine with four slots, and one with a single slot."""
    install.install(install.LLAMA_SERVERS[NEWEST])
    install.install(install.SMOLLM2)
    with (
        plain(tmp_path, slots=4) as big,
        plain(tmp_path, slots=1) as small,
        in_front_of(tmp_path, [big, small]) as gateway,
    ):
        yield gateway, big, small


async def test_a_killed_engine_cuts_its_own_streams_alone_and_the_next_request_goes_elsewhere(
    scene: Scene,
) -> None:
    gateway, big, small = scene
    async with talks(gateway) as those:
        begun = [await those.begin(chat(tokens=ENDLESS)).until_texts() for _ in range(3)]
        (lost,) = (talk for talk in begun if talk.backend == small.url)
        others = [talk for talk in begun if talk is not lost]
        assert {talk.backend for talk in others} == {big.url}
        kill(small)
        await lost.until_over()
        assert (lost.status, lost.end) == (200, End.CUT)
        had = [talk.texts for talk in others]
        following = await those.begin(chat(tokens=4)).until_over()
        assert (following.status, following.backend, following.end) == (200, big.url, End.WHOLE)
        for talk, texts in zip(others, had, strict=True):
            await talk.until_texts(texts + 10)
            assert talk.end is None


async def test_an_engine_that_comes_back_takes_whoever_waits(scene: Scene, tmp_path: Path) -> None:
    gateway, big, small = scene
    async with talks(gateway) as those:
        kill(small)
        # One of these may be sent to the dead engine first: a refused connection is tried elsewhere.
        busy = [await those.begin(chat(tokens=ENDLESS)).until_texts() for _ in range(big.slots)]
        assert {talk.backend for talk in busy} == {big.url}
        waiting = those.begin(chat(tokens=4))
        with plain(tmp_path, slots=1, port=small.port) as again:
            again.wait_ready()
            async with asyncio.timeout(SOON_S):
                await waiting.until_over()
        assert (waiting.status, waiting.backend, waiting.end) == (200, small.url, End.WHOLE)
        assert [talk.end for talk in busy] == [None] * big.slots


SOON_S = 15.0
"""The engine is asked once a second while it is away; a place at the other one comes free after a minute."""
