"""What real client programs send, through the gateway, onto engines that answer as engines did."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway.proxy.routes import ROUTES
from tests.gateway.proxy.bench import OLLAMA, PLAIN, Client, Setup, gateway, listing
from tests.gateway.proxy.recorded import Said, Sent, all_sent, reply_to
from tests.stub import Peer, Request, Stub, stub

SENT = all_sent()
MODELS = ["pharos-small", "pharos-embed", "claude-opus-5-5", "claude-sonnet-4-5", "gpt-4o", "gpt-5"]
NATIVE = ["pharos-small:latest", "pharos-embed:latest"]
TAGS = {
    "models": [
        {"name": n, "model": n, "size": 1000, "digest": "d", "details": {"format": "gguf"}} for n in NATIVE
    ]
}
CREDENTIALS = ("authorization", "x-api-key", "cookie")


def direct(target: str, body: bytes) -> Said:
    """What the engine says to it, with or without a gateway between."""
    path = target.partition("?")[0]
    if path in ("/api/tags", "/api/ps"):
        return Said("200 OK", "application/json", json.dumps(TAGS).encode())
    wants: Any = json.loads(body)
    return reply_to(path, stream=bool(wants.get("stream", path in ("/api/chat", "/api/generate"))))


async def engine(request: Request, peer: Peer) -> None:
    said = direct(request.line.split(" ")[1], request.body)
    if "event-stream" in said.kind or "ndjson" in said.kind:
        head = f"HTTP/1.1 {said.status}\r\nContent-Type: {said.kind}\r\nTransfer-Encoding: chunked\r\n\r\n"
        await peer.send(head.encode())
        await peer.chunk(said.body)
        await peer.end()
    else:
        await peer.plain(said.body, said.status, said.kind)


@asynccontextmanager
async def fleet() -> AsyncIterator[tuple[Setup, Stub, Stub]]:
    async with stub(engine) as any_engine, stub(engine) as ollama, gateway(any_engine.url, ollama.url) as g:
        listing(g.backends[0], PLAIN, MODELS)
        listing(g.backends[1], OLLAMA, NATIVE, version="0.32.15")
        yield g, any_engine, ollama


def known(request: Sent) -> bool:
    if request.method != "POST" or request.path not in (*ROUTES, "/api/show"):
        return False
    wants = json.loads(request.body)
    return wants.get("model", wants.get("name")) in (*MODELS, *NATIVE)


async def through(g: Setup, request: Sent) -> Client:
    return await g.ask(request.body, path=request.target, method=request.method, headers=request.headers)


def test_there_are_requests_of_every_recorded_client() -> None:
    assert len({s.file.parts[-3] for s in SENT}) == 19
    assert sum(known(s) for s in SENT) > 100


@pytest.mark.parametrize("request_", [s for s in SENT if known(s)], ids=str)
async def test_a_recorded_request_gets_the_engines_own_reply(request_: Sent) -> None:
    expected = direct(request_.target, request_.body)
    async with fleet() as (g, *_):
        client = await through(g, request_)
    assert (client.status, client.body) == (int(expected.status.split()[0]), expected.body)
    assert client.headers[b"content-type"].decode() == expected.kind
    assert (client.ended, client.cut) == (True, False)


def gets_asked_for_usage(request_: Sent) -> bool:
    wants = json.loads(request_.body)
    openai = request_.path in ("/v1/chat/completions", "/v1/completions")
    return openai and wants.get("stream") is True and "stream_options" not in wants


@pytest.mark.parametrize("request_", [s for s in SENT if known(s)], ids=str)
async def test_a_recorded_request_reaches_the_engine_unharmed(request_: Sent) -> None:
    async with fleet() as (g, any_engine, ollama):
        await through(g, request_)
    (got,) = any_engine.requests + ollama.requests
    url = (any_engine if any_engine.requests else ollama).url
    assert got.line == f"POST {request_.target} HTTP/1.1"
    if gets_asked_for_usage(request_):
        wants = json.loads(request_.body)
        assert list(json.loads(got.body).items()) == [
            *wants.items(),
            ("stream_options", {"include_usage": True}),
        ]
    else:
        assert got.body == request_.body
    assert got.header("host") == [url.removeprefix("http://")]
    assert got.header("content-length") == [str(len(got.body))]
    assert got.header("content-type")[0].startswith("application/json")
    assert got.header("accept-encoding") == ["identity"]
    assert [got.header(name) for name in CREDENTIALS] == [[], [], []]
    assert got.header("transfer-encoding") == []


@pytest.mark.parametrize("request_", [s for s in SENT if not known(s)], ids=str)
async def test_whatever_else_clients_send_is_answered_in_words(request_: Sent) -> None:
    async with fleet() as (g, *_):
        client = await through(g, request_)
    assert client.status < 500 or client.status == 501
    if client.body:
        assert isinstance(json.loads(client.body), dict)
    if client.status >= 400 and request_.path.startswith("/api/"):
        assert isinstance(json.loads(client.body)["error"], str)


@pytest.mark.parametrize("path", ["/api/tags", "/api/ps"])
async def test_the_list_of_one_ollama_is_its_own(path: str) -> None:
    async with fleet() as (g, *_):
        client = await g.ask(path=path, method="GET")
    assert json.loads(client.body) == TAGS
