"""A client that leaves, at any moment and on each API: its engine stops, nothing stays, nobody else notices."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from engines.doubles import PHYSICS, Double
from gateway.asgi import Message
from tests.gateway.proxy.bench import Client
from tests.gateway.proxy.scene import APIS, CHAT, MESSAGES, RESPONSES, Api, Asked, Scene, scene, until

BOTH = pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
EACH_API = pytest.mark.parametrize("api", APIS, ids=[a.name for a in APIS])
SSE = pytest.mark.parametrize(
    "api", [a for a in APIS if not a.ndjson], ids=[a.name for a in APIS if not a.ndjson]
)
MANY = 10_000


def stuck(kind: str = "ollama", slots: int = 1) -> Double:
    """Its prompts take for ever."""
    return Double(kind, physics=replace(PHYSICS[kind], prefill_s_per_token=1000.0, slots=slots))


def cold() -> Double:
    """Its loads take for ever."""
    return Double("ollama", physics=replace(PHYSICS["ollama"], load_s=1e6), loaded=())


def slow(kind: str = "ollama", slots: int = 1) -> Double:
    """200 tokens a second."""
    physics = PHYSICS[kind]
    return Double(
        kind, physics=replace(physics, prefill_s_per_token=0.0, decode_s_per_token=0.005, slots=slots)
    )


def begin(s: Scene, api: Api, *, stream: bool, tokens: int | None = None) -> Asked:
    return s.start(api.path, api.body(s.doubles[0].names[0], stream=stream, tokens=tokens))


@EACH_API
@BOTH
async def test_while_queued(api: Api, stream: bool) -> None:
    async with scene(stuck(), capacity=1) as s:
        first = begin(s, CHAT, stream=True)
        await until(lambda: s.doubles[0].machine.running() == 1)
        second = begin(s, api, stream=stream)
        await until(lambda: s.held().get("waiting") == 1)
        client = await second.leaves()
        assert client.sent == []
        assert s.held()["in_flight"] == 1
        assert "waiting" not in s.held()
        await first.leaves()
        await s.at_rest()
        assert [r.path for r in s.doubles[0].requests if r.method == "POST"] == [CHAT.path]


@EACH_API
@BOTH
async def test_while_its_model_is_loaded(api: Api, stream: bool) -> None:
    async with scene(cold()) as s:
        asked = begin(s, api, stream=stream)
        await until(lambda: s.doubles[0].machine.waiting() == 1)
        assert (await asked.leaves()).sent == []
        await s.at_rest()


@EACH_API
@BOTH
async def test_before_the_headers(api: Api, stream: bool) -> None:
    async with scene(stuck()) as s:
        asked = begin(s, api, stream=stream)
        await until(lambda: s.doubles[0].machine.running() == 1)
        assert (await asked.leaves()).sent == []
        await s.at_rest()
        assert s.gateway.fleet.backends[0].up, "a client that leaves says nothing about the engine"


@pytest.mark.parametrize("kind", ["vllm", "llamacpp"])
async def test_after_the_engines_headers_and_before_its_first_byte(kind: str) -> None:
    async with scene(stuck(kind)) as s:
        asked = begin(s, CHAT, stream=True)
        await until(lambda: s.doubles[0].machine.running() == 1)
        await asked.leaves()
        await s.at_rest()


@SSE
async def test_between_two_comments(api: Api) -> None:
    async with scene(stuck(), wait_comment_s=0.01) as s:
        asked = begin(s, api, stream=True)
        await until(lambda: asked.client.body.count(b"\n\n") >= 2)
        client = await asked.leaves()
        heard = client.body
        await s.at_rest()
        await asyncio.sleep(0.05)
        assert client.body == heard, "somebody still speaks to it"
        await s.at_rest()
    assert not client.ended
    assert heard.startswith(b": ")


class Deaf(Client):
    """Takes nothing after what was sent first."""

    async def send(self, message: Message) -> None:
        await super().send(message)
        await asyncio.Event().wait()


async def test_while_it_does_not_take_a_comment() -> None:
    async with scene(stuck(), wait_comment_s=0.01) as s:
        body = CHAT.body(s.doubles[0].names[0], stream=True)
        asked = s.start(CHAT.path, body, client=Deaf())
        await asked.client.arrived.wait()
        await asked.leaves()
        await s.at_rest()


@EACH_API
async def test_in_the_middle_of_a_stream(api: Api) -> None:
    async with scene(slow()) as s:
        asked = begin(s, api, stream=True, tokens=MANY)
        await asked.heard()
        assert not (await asked.leaves()).ended
        await s.at_rest()
        assert s.gateway.fleet.backends[0].up


@pytest.mark.parametrize("kind", ["vllm", "llamacpp", "llamacpp-router", "sglang", "llama-swap", "mlx-lm"])
async def test_in_the_middle_of_a_stream_of_each_engine(kind: str) -> None:
    async with scene(slow(kind)) as s:
        asked = begin(s, CHAT, stream=True, tokens=MANY)
        await asked.heard()
        assert not (await asked.leaves()).ended
        await s.at_rest()


@EACH_API
@BOTH
async def test_right_after_the_last_byte(api: Api, stream: bool) -> None:
    async with scene(Double("ollama", speed=1000)) as s:
        asked = begin(s, api, stream=stream)
        await until(lambda: asked.client.ended)
        client = await asked.leaves()
        await s.at_rest()
    assert (client.status, client.ended, client.cut) == (200, True, False)


@pytest.mark.parametrize("kind", ["llamacpp", "mlx-lm", "llama-swap"])
async def test_a_plain_request_that_its_engine_goes_on_with(kind: str) -> None:
    async with scene(stuck(kind)) as s:
        asked = begin(s, CHAT, stream=False)
        await until(lambda: s.doubles[0].machine.running() == 1)
        await asked.leaves()
        await s.at_rest(working=True)


# -- the others --------------------------------------------------------------------------------


@BOTH
async def test_six_that_leave_while_waiting_cost_nobody_else_anything(stream: bool) -> None:
    async with scene(slow(), capacity=1) as s:
        first = begin(s, CHAT, stream=True, tokens=MANY)
        await first.heard()
        waiting = [begin(s, api, stream=stream, tokens=3) for api in (*APIS, CHAT, MESSAGES)]
        await until(lambda: s.held().get("waiting") == 7)
        for asked in waiting[:6]:
            assert (await asked.leaves()).sent == []
        late = begin(s, RESPONSES, stream=True, tokens=3)
        await first.leaves()
        served = [await asked.over() for asked in (waiting[6], late)]
        await s.at_rest()
    assert [(c.status, c.ended, c.cut) for c in served] == [(200, True, False)] * 2


@pytest.mark.parametrize("double", [stuck, cold], ids=["prefill", "load"])
async def test_six_that_leave_one_after_the_other_do_not_lock_the_engine_out(
    double: Callable[[], Double],
) -> None:
    async with scene(double(), capacity=1) as s:
        for _ in range(6):
            asked = begin(s, CHAT, stream=True)
            await until(lambda: s.doubles[0].machine.running() + s.doubles[0].machine.waiting() == 1)
            await asked.leaves()
            await until(lambda: not s.held())
        seventh = begin(s, CHAT, stream=True)
        await until(lambda: s.doubles[0].machine.running() + s.doubles[0].machine.waiting() == 1)
        await seventh.leaves()
        await s.at_rest()
        assert s.gateway.fleet.backends[0].up


async def test_the_next_in_the_queue_is_served_when_the_one_before_leaves() -> None:
    async with scene(slow("vllm"), capacity=1) as s:
        first = begin(s, CHAT, stream=True, tokens=MANY)
        await first.heard()
        others = [begin(s, CHAT, stream=bool(i % 2), tokens=2) for i in range(5)]
        await first.leaves()
        clients = [await other.over() for other in others]
        await s.at_rest()
    assert {(c.status, c.ended) for c in clients} == {(200, True)}


async def test_those_who_wait_for_an_engine_that_dies_are_told_to_come_back() -> None:
    async with scene(slow(), capacity=1) as s:
        first = begin(s, CHAT, stream=True, tokens=MANY)
        await first.heard()
        waiting = [begin(s, api, stream=True) for api in APIS]
        await until(lambda: s.held().get("waiting") == len(APIS))
        await s.doubles[0].crash()
        assert (await first.over()).cut
        clients = [await asked.over() for asked in waiting]
        await s.at_rest(r"is put aside", r"is not in use: nothing answers")
    for api, client in zip(APIS, clients, strict=True):
        assert (client.status, client.ended) == (503, True)
        assert 1 <= int(client.headers[b"retry-after"]) <= 60
        assert api.message(client.body)


async def test_a_full_queue_is_a_429_with_a_time_and_leaves_the_waiters_alone() -> None:
    async with scene(slow(), capacity=1, queue=3) as s:
        first = begin(s, CHAT, stream=True, tokens=MANY)
        await first.heard()
        waiting = [begin(s, CHAT, stream=False, tokens=2) for _ in range(3)]
        await until(lambda: s.held().get("waiting") == 3)
        for api in APIS:
            client = await begin(s, api, stream=True).over()
            assert (client.status, client.ended) == (429, True)
            assert 1 <= int(client.headers[b"retry-after"]) <= 60
            assert api.message(client.body)
        await first.leaves()
        served = [await asked.over() for asked in waiting]
        await s.at_rest()
    assert {(c.status, c.ended) for c in served} == {(200, True)}
