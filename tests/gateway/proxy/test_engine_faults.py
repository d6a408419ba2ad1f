"""What goes wrong with an engine, on each API, streamed and plain: what the client gets, and what is left of it."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from engines.doubles import PHYSICS, Double, Fault, Trouble, busy
from tests.gateway.proxy.bench import Client
from tests.gateway.proxy.scene import (
    APIS,
    CHAT,
    COMPLETIONS,
    MESSAGES,
    OLLAMA_CHAT,
    RESPONSES,
    Api,
    Scene,
    scene,
    until,
)

ASIDE = r"^backend http://127\.0\.0\.1:\d+ is put aside: "
NOT_IN_USE = r"^backend http://127\.0\.0\.1:\d+ is not in use: nothing answers"

SPOKEN = [
    ("vllm", CHAT), ("vllm", COMPLETIONS), ("vllm", MESSAGES), ("llamacpp", CHAT), ("llamacpp", RESPONSES),
    ("ollama", OLLAMA_CHAT), ("ollama", COMPLETIONS), ("ollama", MESSAGES), ("ollama", RESPONSES),
    ("sglang", CHAT), ("mlx-lm", CHAT),
]  # fmt: skip
ON = pytest.mark.parametrize(("kind", "api"), SPOKEN, ids=[f"{k}-{a.name}" for k, a in SPOKEN])
BOTH = pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
EACH_API = pytest.mark.parametrize("api", APIS, ids=[a.name for a in APIS])


def fast(kind: str) -> Double:
    return Double(kind, speed=1000)


async def asked(s: Scene, api: Api, *, stream: bool, fault: Fault | None = None) -> Client:
    double = s.doubles[0]
    if fault is not None:
        double.faults.add(fault)
    return await s.ask(api.path, api.body(double.names[0], stream=stream))


def cut(client: Client) -> bool:
    return (client.status, client.cut, client.ended) == (200, True, False)


@ON
@BOTH
async def test_an_engine_that_refuses_is_a_503_in_words(kind: str, api: Api, stream: bool) -> None:
    async with scene(fast(kind)) as s:
        await s.doubles[0].crash()
        client = await asked(s, api, stream=stream)
        await s.at_rest(ASIDE, NOT_IN_USE)
    assert (client.status, client.ended) == (503, True)
    assert 1 <= int(client.headers[b"retry-after"]) <= 60
    assert s.doubles[0].names[0] in api.message(client.body)


@ON
@BOTH
async def test_an_engine_that_dies_before_a_byte_is_a_502_that_names_it(
    kind: str, api: Api, stream: bool
) -> None:
    async with scene(fast(kind)) as s:
        client = await asked(s, api, stream=stream, fault=Fault(Trouble.RESET))
        await s.at_rest(ASIDE)
    assert (client.status, client.ended) == (502, True)
    assert s.doubles[0].url in api.message(client.body)


@ON
@BOTH
async def test_a_reply_whose_engine_dies_in_it_is_cut(kind: str, api: Api, stream: bool) -> None:
    async with scene(fast(kind)) as s:
        client = await asked(s, api, stream=stream, fault=Fault(Trouble.DIE, after_tokens=2))
        await s.at_rest(ASIDE)
    if client.status == 502:  # a short one of a route that engines may lack is read before it is passed on
        assert not stream
        assert api.message(client.body)
    else:
        assert cut(client)
        assert b"engine_failed" not in client.body, "glued to half an event"


@ON
async def test_a_stream_that_stalls_is_told_so_and_cut(kind: str, api: Api) -> None:
    async with scene(fast(kind), idle_s=0.1) as s:
        client = await asked(s, api, stream=True, fault=Fault(Trouble.STALL, after_tokens=2))
        await s.at_rest()
        assert s.gateway.fleet.backends[0].up, "silence is no death"
    assert cut(client)
    assert b"sent nothing for" in client.body


@ON
async def test_a_plain_reply_that_never_begins_is_a_504(kind: str, api: Api) -> None:
    async with scene(fast(kind), first_byte_s=0.2) as s:
        client = await asked(s, api, stream=False, fault=Fault(Trouble.STALL))
        await s.at_rest()
        assert s.gateway.fleet.backends[0].up
    assert (client.status, client.ended) == (504, True)
    assert "It may be loading or overloaded" in api.message(client.body)


@ON
async def test_a_stream_that_ends_without_a_finish_is_cut(kind: str, api: Api) -> None:
    async with scene(fast(kind)) as s:
        client = await asked(s, api, stream=True, fault=Fault(Trouble.NO_FINISH, after_tokens=3))
        await s.at_rest()
        assert s.gateway.fleet.backends[0].up, "a prompt that is too long can end so"
    assert cut(client)
    assert b"its stream ended before the generation did" in client.body


@ON
async def test_an_empty_reply_is_a_502_and_no_success(kind: str, api: Api) -> None:
    async with scene(fast(kind)) as s:
        client = await asked(s, api, stream=False, fault=Fault(Trouble.NO_FINISH))
        await s.at_rest()
    assert (client.status, client.ended) == (502, True)
    assert s.doubles[0].url in api.message(client.body)


@ON
async def test_an_engine_that_tells_its_error_in_the_stream_ends_it_itself(kind: str, api: Api) -> None:
    async with scene(fast(kind)) as s:
        client = await asked(s, api, stream=True, fault=Fault(Trouble.ERROR_EVENT, after_tokens=2))
        await s.at_rest()
    assert client.status == 200
    assert b'"error"' in client.body
    if api in (CHAT, COMPLETIONS, OLLAMA_CHAT):
        assert (client.ended, client.cut) == (True, False)


@ON
async def test_an_engines_own_500_comes_as_it_is(kind: str, api: Api) -> None:
    async with scene(fast(kind)) as s:
        client = await asked(s, api, stream=False, fault=Fault(Trouble.ERROR_EVENT))
        await s.at_rest()
        assert s.gateway.fleet.backends[0].up
    assert (client.status, client.ended) == (500, True)
    assert b"EngineCore" in client.body


@ON
@BOTH
async def test_a_web_page_is_a_502_and_never_passed_on(kind: str, api: Api, stream: bool) -> None:
    async with scene(fast(kind)) as s:
        client = await asked(s, api, stream=stream, fault=Fault(Trouble.HTML))
        await s.at_rest()
        assert s.gateway.fleet.backends[0].up
    assert (client.status, client.ended) == (502, True)
    assert client.headers[b"content-type"] == b"application/json"
    assert "answered 200 with a web page" in api.message(client.body)
    assert "It works!" in api.message(client.body)


@EACH_API
@BOTH
async def test_a_full_engine_says_when_to_come_back(api: Api, stream: bool) -> None:
    async with scene(fast("ollama")) as s:
        client = await asked(s, api, stream=stream, fault=busy("7"))
        await s.at_rest()
        assert s.gateway.fleet.backends[0].up
    assert (client.status, client.ended) == (503, True)
    assert client.headers[b"retry-after"] == b"7"


@EACH_API
@BOTH
async def test_with_all_engines_down_each_api_is_told_when_to_come_back(api: Api, stream: bool) -> None:
    async with scene(fast("ollama"), fast("ollama")) as s:
        for double in s.doubles:
            await double.crash()
        for _ in range(3):
            client = await asked(s, api, stream=stream)
            assert (client.status, client.ended) == (503, True)
            assert 1 <= int(client.headers[b"retry-after"]) <= 60
            assert api.message(client.body)
        await s.at_rest(ASIDE, NOT_IN_USE)


# -- two engines -------------------------------------------------------------------------------


@EACH_API
@BOTH
@pytest.mark.parametrize(
    "fault", [Fault(Trouble.STATUS), busy(), Fault(Trouble.HTML)], ids=["500", "503", "html"]
)
async def test_what_one_engine_will_not_do_another_does(api: Api, stream: bool, fault: Fault) -> None:
    async with scene(fast("ollama"), fast("ollama")) as s:
        s.doubles[0].faults.add(fault)
        clients = [await asked(s, api, stream=stream)]
        while not any(r.path == api.path for r in s.doubles[0].requests):
            for target in [t for b in s.gateway.fleet.backends for t in b.targets.values()]:
                target.generation += 1  # what the other has cached draws the same prompt there again
            clients.append(await asked(s, api, stream=stream))
        await s.at_rest()
    assert {(c.status, c.ended, c.cut) for c in clients} == {(200, True, False)}


@EACH_API
@BOTH
async def test_a_request_its_engine_died_of_is_not_sent_to_another(api: Api, stream: bool) -> None:
    async with scene(fast("ollama"), fast("ollama")) as s:
        for double in s.doubles:
            double.faults.add(Fault(Trouble.RESET))
        client = await asked(s, api, stream=stream)
        await s.at_rest(ASIDE)
        posts = [r for d in s.doubles for r in d.requests if r.path == api.path]
    assert client.status == 502
    assert len(posts) == 1


# -- connections -------------------------------------------------------------------------------


@pytest.mark.parametrize("api", [CHAT, RESPONSES], ids=["chat", "responses"])
async def test_150_streams_one_after_the_other_from_a_llamacpp_that_closes_after_each(api: Api) -> None:
    double = Double("llamacpp", speed=20_000)
    async with scene(double) as s:
        body = api.body(double.names[0], stream=True)
        seen = [await s.ask(api.path, body) for _ in range(150)]
        await s.at_rest()
    assert {(c.status, c.ended, c.cut) for c in seen} == {(200, True, False)}


async def test_streams_and_plain_requests_in_turn_from_a_llamacpp_that_closes_after_each_stream() -> None:
    double = Double("llamacpp", speed=20_000)
    async with scene(double) as s:
        seen = [await asked(s, CHAT, stream=bool(i % 3)) for i in range(60)]
        await s.at_rest()
    assert {(c.status, c.ended, c.cut) for c in seen} == {(200, True, False)}


@pytest.mark.slow
async def test_no_request_is_lost_to_an_idle_connection_that_its_engine_just_closes() -> None:
    double = Double("vllm", speed=20_000, idle_close_s=0.2)
    async with scene(double) as s:
        for i in range(60):
            client = await asked(s, CHAT, stream=bool(i % 2))
            assert (client.status, client.ended) == (200, True)
            await asyncio.sleep(0.198 + 0.0004 * (i % 10))
        await s.at_rest()


async def test_a_hanging_scrape_harms_no_request() -> None:
    async with scene(fast("llamacpp")) as s:
        s.doubles[0].faults.hanging_scrapes = 50
        seen = [await asked(s, CHAT, stream=True) for _ in range(5)]
        assert {(c.status, c.ended) for c in seen} == {(200, True)}
        assert s.gateway.fleet.backends[0].up
        await s.at_rest()


# -- an engine that comes back -----------------------------------------------------------------


async def test_a_killed_engine_that_comes_back_is_used_again() -> None:
    async with scene(fast("vllm")) as s:
        await s.doubles[0].crash()
        assert (await asked(s, CHAT, stream=True)).status == 503
        await s.doubles[0].accept()
        await until(lambda: s.gateway.fleet.backends[0].up)
        assert (await asked(s, CHAT, stream=True)).ended
        await s.at_rest(ASIDE, NOT_IN_USE)


async def test_only_the_streams_of_the_killed_engine_are_cut() -> None:
    slow = replace(PHYSICS["ollama"], decode_s_per_token=0.005, prefill_s_per_token=0.0)
    async with scene(*(Double("ollama", physics=slow) for _ in range(2))) as s:
        body = OLLAMA_CHAT.body(s.doubles[0].names[0], stream=True, tokens=60)
        running = [s.start(OLLAMA_CHAT.path, body) for _ in range(4)]
        for each in running:
            await each.heard()
        await s.doubles[0].crash()
        clients = [await each.over() for each in running]
        await s.at_rest(ASIDE, NOT_IN_USE)
    killed = s.doubles[0].url.encode()
    assert {c.headers[b"x-pharos-backend"] == killed for c in clients} == {True, False}
    for client in clients:
        assert cut(client) == (client.headers[b"x-pharos-backend"] == killed)
        if not client.cut:
            assert json.loads(client.body.splitlines()[-1])["done"] is True
