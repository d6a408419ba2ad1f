"""The worst of it once more in the real process, where the client has a socket too."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio

from engines.doubles import PHYSICS, Double, Fault, Trouble
from tests.gateway.proxy.scene import APIS, CHAT, MESSAGES, OLLAMA_CHAT, Api, until
from tests.gateway.proxy.served import Served, served

pytestmark = pytest.mark.asyncio(loop_scope="module")
BOTH = pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
EACH_API = pytest.mark.parametrize("api", APIS, ids=[a.name for a in APIS])
MANY = 10_000


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    """In front of an engine that is fast, one that is slow, and one whose prompts take for ever."""
    ollama = PHYSICS["ollama"]
    slow = replace(ollama, prefill_s_per_token=0.0, decode_s_per_token=0.005)
    stuck = replace(ollama, prefill_s_per_token=1000.0)
    async with served(
        tmp_path_factory.mktemp("served"),
        Double("ollama", models=["fast:latest"], speed=1000),
        Double("ollama", models=["slow:latest"], physics=slow),
        Double("ollama", models=["stuck:latest"], physics=stuck),
        first_byte="1s",
        idle="300ms",
        write_stall="1s",
    ) as it:
        yield it


@EACH_API
@BOTH
async def test_a_whole_reply_leaves_nothing(server: Served, api: Api, stream: bool) -> None:
    came = await server.ask(api.path, api.body("fast", stream=stream))
    assert (came.status, came.whole) == (200, True)
    await server.at_rest()


@EACH_API
@BOTH
async def test_a_client_that_leaves_before_the_reply_frees_the_engine(
    server: Served, api: Api, stream: bool
) -> None:
    async with server.talk() as first, server.talk() as second:
        await first.ask(api.path, api.body("stuck", stream=stream))
        await until(lambda: server.doubles[2].machine.running() == 1)
        await second.ask(api.path, api.body("stuck", stream=stream))
        while (await server.held()).get("waiting") != 1:
            pass
        second.leave()  # while it is queued
        while (await server.held()).get("waiting"):
            pass
        assert server.doubles[2].machine.running() == 1
        first.leave()
        await server.at_rest()


@EACH_API
async def test_a_client_that_leaves_in_a_stream_frees_the_engine(server: Served, api: Api) -> None:
    async with server.talk() as t:
        await t.ask(api.path, api.body("slow", stream=True, tokens=MANY))
        await t.head()
        await t.chunk()
        t.leave()
        await server.at_rest()


async def test_a_client_that_leaves_right_after_the_last_chunk_was_served(server: Served) -> None:
    for api in APIS:
        async with server.talk() as t:
            await t.ask(api.path, api.body("fast", stream=True))
            assert (await t.came()).whole
            t.leave()
    await server.at_rest()


@pytest.mark.slow
async def test_a_client_that_reads_nothing_is_cut_and_its_engine_freed(server: Served) -> None:
    async with server.talk() as t:
        t.writer.transport.pause_reading()  # type: ignore[attr-defined]  # typeshed has it on ReadTransport
        await t.ask(CHAT.path, CHAT.body("fast", stream=True, tokens=MANY * 6))
        await until(lambda: server.doubles[0].machine.running() == 1)
        await server.at_rest(r"has read nothing for 1 s and is cut")


@pytest.mark.parametrize(
    ("api", "trouble"),
    [
        (CHAT, Trouble.STALL), (MESSAGES, Trouble.STALL), (OLLAMA_CHAT, Trouble.STALL),
        (CHAT, Trouble.NO_FINISH), (MESSAGES, Trouble.NO_FINISH), (OLLAMA_CHAT, Trouble.NO_FINISH),
        (CHAT, Trouble.DIE),
    ],
    ids=lambda v: str(getattr(v, "name", v)),
)  # fmt: skip
async def test_a_stream_that_its_engine_does_not_finish_is_seen_to_be_cut(
    server: Served, api: Api, trouble: Trouble
) -> None:
    server.doubles[0].faults.add(Fault(trouble, after_tokens=2))
    came = await server.ask(api.path, api.body("fast", stream=True))
    assert (came.status, came.whole) == (200, False)
    assert (b"engine_failed" in came.body or b"The engine at" in came.body) == (trouble is not Trouble.DIE)
    await server.at_rest(*([r"is put aside: "] if trouble is Trouble.DIE else []))
    await server.up()


@pytest.mark.parametrize(("api", "stream"), [(CHAT, True), (OLLAMA_CHAT, False)], ids=["chat", "ollama"])
async def test_an_engine_that_says_nothing_is_a_504(server: Served, api: Api, stream: bool) -> None:
    came = await server.ask(api.path, api.body("stuck", stream=stream))
    assert (came.status, came.whole) == (504, True)
    assert api.message(came.body)
    await server.at_rest()


async def test_150_streams_on_one_connection(server: Served) -> None:
    async with server.talk() as t:
        for _ in range(150):
            await t.ask(CHAT.path, CHAT.body("fast", stream=True, tokens=3))
            assert (await t.came()).whole
    await server.at_rest()


async def test_requests_sent_without_waiting_for_the_replies_are_answered_in_order(server: Served) -> None:
    async with server.talk() as t:
        for tokens in (1, 2, 3):
            await t.ask(OLLAMA_CHAT.path, OLLAMA_CHAT.body("fast", stream=False, tokens=tokens))
        seen = [json.loads((await t.came()).body)["eval_count"] for _ in range(3)]
    assert seen == sorted(seen)
    await server.at_rest()
