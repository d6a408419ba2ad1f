"""Two models take turns in the memory of one real router, and nobody's stream pays for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.demo import install
from gateway.demo.engines import NEWEST, LlamaServer
from gateway.demo.stage import Gateway
from gateway.routing.memory import MAX_PATIENCE_S
from tests.live.engine import chat
from tests.live.stage import in_front_of, loads, router
from tests.live.talk import PATIENCE_S, End, Talk, Talks, talks

pytestmark = pytest.mark.live

BUSY, OTHER = "alpha", "beta"
CLIENTS = 5

Scene = tuple[Gateway, LlamaServer]


@pytest.fixture(params=["0.10092.0", NEWEST])
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    """A router with two slots a model. Up to b10092 it cuts the streams of the model that it pushes out."""
    version = str(request.param)
    install.install(install.LLAMA_SERVERS[version])
    install.install(install.SMOLLM2)
    with (
        router(tmp_path, [BUSY, OTHER], slots=2, version=version) as server,
        in_front_of(tmp_path, [server]) as gateway,
    ):
        yield gateway, server


@asynccontextmanager
async def kept_busy(those: Talks, over: list[Talk]) -> AsyncIterator[None]:
    """Clients that ask for the model again as soon as they have their answer. `over` has what ended."""

    async def ask_and_ask() -> None:
        while True:
            over.append(await those.begin(chat(BUSY, tokens=40)).until_over())

    clients = [asyncio.create_task(ask_and_ask()) for _ in range(CLIENTS)]
    try:
        yield
    finally:
        for task in clients:
            task.cancel()
        ended = await asyncio.gather(*clients, return_exceptions=True)
    assert all(isinstance(why, asyncio.CancelledError) for why in ended), ended


async def more(over: list[Talk], count: int) -> None:
    wanted = len(over) + count
    async with asyncio.timeout(PATIENCE_S):
        while len(over) < wanted:
            await asyncio.sleep(0.05)


async def test_a_model_is_served_within_its_patience_however_busy_the_other_is(scene: Scene) -> None:
    gateway, server = scene
    over: list[Talk] = []
    async with talks(gateway) as those, kept_busy(those, over):
        await more(over, CLIENTS)
        others = [those.begin(chat(OTHER, tokens=4)) for _ in range(3)]
        async with asyncio.timeout(MAX_PATIENCE_S):
            await asyncio.gather(*(talk.until_over() for talk in others))
        await more(over, CLIENTS)  # and the busy one has its turn again
    assert [(talk.status, talk.end) for talk in others] == [(200, End.WHOLE)] * 3, others
    assert {(talk.status, talk.end) for talk in over} == {(200, End.WHOLE)}, over
    assert (loads(server, BUSY), loads(server, OTHER)) == (2, 1), "a batch costs one swap"
