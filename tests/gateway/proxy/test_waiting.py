"""What a client hears while its first byte is long in coming."""

from __future__ import annotations

import asyncio
import json

import pytest

from engines.signals import Residency
from gateway.proxy.waiting import Waiting, comment
from tests.gateway.proxy.bench import FINISH, OLLAMA, PLAIN, STREAM, Client, gateway, listing
from tests.stub import Handler, Peer, Request, stub

ENDINGS = {
    "/v1/chat/completions": FINISH,
    "/v1/completions": FINISH,
    "/v1/messages": b'event: message_stop\ndata: {"type":"message_stop"}\n\n',
    "/v1/responses": b'event: response.completed\ndata: {"type":"response.completed"}\n\n',
}
OFTEN_S = 0.01


def slow(client: Client, then: Handler, comments: int = 2) -> Handler:
    """An engine that answers once the client has heard so many comments."""

    async def engine(request: Request, peer: Peer) -> None:
        while client.body.count(b"\n\n") < comments:
            client.arrived.clear()
            await client.arrived.wait()
        await then(request, peer)

    return engine


def streaming(*pieces: bytes) -> Handler:
    async def engine(_request: Request, peer: Peer) -> None:
        await peer.stream_head()
        for piece in pieces:
            await peer.chunk(piece)
        await peer.end()

    return engine


def split(body: bytes) -> tuple[list[bytes], bytes]:
    """The comments at the head of a stream, and what follows them."""
    blocks = body.split(b"\n\n")
    heard = [b for b in blocks if b.startswith(b":")]
    return heard, b"\n\n".join(blocks[len(heard) :])


@pytest.mark.parametrize("path", ENDINGS)
async def test_a_waiting_stream_gets_its_headers_and_comments_and_then_the_engines_bytes(path: str) -> None:
    client = Client()
    async with (
        stub(slow(client, streaming(ENDINGS[path]))) as s,
        gateway(s.url, wait_comment_s=OFTEN_S) as g,
    ):
        await g.ask(STREAM, path=path, client=client)
    heard, rest = split(client.body)
    assert len(heard) >= 2
    assert (rest, client.ended, client.cut) == (ENDINGS[path], True, False)
    assert client.headers[b"content-type"] == b"text/event-stream"
    assert client.headers[b"x-pharos-backend"] == s.url.encode()
    assert sum(m["type"] == "http.response.start" for m in client.sent) == 1


async def test_the_comment_says_what_is_waited_for() -> None:
    client = Client()
    async with (
        stub(slow(client, streaming(FINISH), 1)) as s,
        gateway(s.url, wait_comment_s=OFTEN_S) as g,
    ):
        listing(g.backends[0], PLAIN, ["m"], state=Residency.LOADING)
        await g.ask(STREAM, client=client)
    assert f"{s.url} is loading m".encode() in split(client.body)[0][0]


async def test_headers_without_a_byte_are_still_a_wait() -> None:
    client = Client()

    async def engine(request: Request, peer: Peer) -> None:
        await peer.stream_head()
        await slow(client, streaming())(request, peer)  # nothing more: an empty body

    async with stub(engine) as s, gateway(s.url, wait_comment_s=OFTEN_S) as g:
        await g.ask(STREAM, client=client)
    assert len(split(client.body)[0]) >= 2
    assert client.cut, "the engine ended without finishing"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", b'{"model":"m"}'),
        ("/v1/embeddings", b'{"model":"m","stream":true}'),
        ("/v1/messages/count_tokens", b'{"model":"m","stream":true}'),
        ("/api/chat", b'{"model":"m"}'),
        ("/api/generate", b'{"model":"m","stream":true}'),
    ],
)
async def test_plain_replies_and_ollamas_lines_hear_nothing(path: str, body: bytes) -> None:
    async def engine(_request: Request, peer: Peer) -> None:
        await asyncio.sleep(10 * OFTEN_S)
        await peer.plain(b'{"done":true}')

    async with stub(engine) as s, gateway(s.url, recipe=OLLAMA, wait_comment_s=OFTEN_S) as g:
        client = await g.ask(body, path=path)
    assert client.body == b'{"done":true}'


@pytest.mark.parametrize("status", ["400 Bad", "500 Oops", "503 Full", "401 Who"])
@pytest.mark.parametrize("path", ENDINGS)
async def test_an_error_after_a_comment_is_an_event_and_a_cut(path: str, status: str) -> None:
    client = Client()

    async def refuses(_request: Request, peer: Peer) -> None:
        await peer.plain(b'{"error":{"message":"no such luck"}}', status)

    async with (
        stub(slow(client, refuses, 1)) as s,
        gateway(s.url, wait_comment_s=OFTEN_S) as g,
    ):
        await g.ask(STREAM, path=path, client=client)
    _, rest = split(client.body)
    said = rest.partition(b"data: ")[2]
    assert s.url in said.decode()
    assert isinstance(json.loads(said), dict)
    assert (client.status, client.cut, client.ended) == (200, True, False)


async def test_json_where_a_stream_has_begun_is_not_glued_to_it() -> None:
    client = Client()

    async def plain(_request: Request, peer: Peer) -> None:
        await peer.plain(b'{"choices":[]}')

    async with stub(slow(client, plain, 1)) as s, gateway(s.url, wait_comment_s=OFTEN_S) as g:
        await g.ask(STREAM, client=client)
    assert split(client.body)[1].startswith(b'data: {"error"')
    assert client.cut


async def test_an_engine_that_dies_after_a_comment_is_told_in_an_event() -> None:
    client = Client()

    async def dies(_request: Request, peer: Peer) -> None:
        peer.reset()

    async with stub(slow(client, dies, 1)) as s, gateway(s.url, wait_comment_s=OFTEN_S) as g:
        await g.ask(STREAM, client=client)
    assert b"engine_failed" in split(client.body)[1]
    assert client.cut


async def test_another_engine_may_still_take_a_stream_that_has_only_comments() -> None:
    client = Client()

    async def full(_request: Request, peer: Peer) -> None:
        await peer.plain(b"{}", "503 Full")

    async with (
        stub(slow(client, full, 1)) as a,
        stub(streaming(FINISH)) as b,
        gateway(a.url, b.url, wait_comment_s=OFTEN_S) as g,
    ):
        with g.busy(1):
            await g.ask(STREAM, client=client)
    assert (split(client.body)[1], client.ended) == (FINISH, True)


async def test_a_client_that_leaves_while_it_waits_leaves_nothing_behind() -> None:
    before = asyncio.all_tasks()

    async def engine(request: Request, _peer: Peer) -> None:
        await request.gone.wait()

    async with stub(engine) as s, gateway(s.url, wait_comment_s=OFTEN_S) as g:
        client = Client()
        asking = asyncio.create_task(g.ask(STREAM, client=client))
        await client.arrived.wait()
        client.leave()
        await asking
    await asyncio.sleep(0)
    heard = len(client.sent)
    await asyncio.sleep(3 * OFTEN_S)
    assert len(client.sent) == heard
    assert asyncio.all_tasks() == before


def test_an_unknown_estimate_is_not_told() -> None:
    assert comment("loading m", 10.2) == b": loading m, 10 s so far\n\n"


def test_a_known_estimate_is() -> None:
    assert comment("loading m", 10.2, 0.2) == b": loading m, 10 s so far, about 1 s more\n\n"


def test_a_comment_is_one_line_whatever_is_in_it() -> None:
    assert comment("a\r\n\r\ndata: b", 1).count(b"\n") == 2


async def test_a_comment_that_is_half_said_is_finished_before_the_reply_begins() -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()
    said: list[str] = []

    async def say() -> None:
        begun.set()
        await go_on.wait()
        said.append("comment")

    waiting = Waiting(say, 0)
    waiting.begin()
    await begun.wait()
    ending = asyncio.create_task(waiting.end())
    await asyncio.sleep(0)
    go_on.set()
    await ending
    said.append("reply")
    await asyncio.sleep(0.01)
    assert said == ["comment", "reply"]


async def test_no_comment_comes_between_the_events_of_a_reply() -> None:
    async def engine(_request: Request, peer: Peer) -> None:
        await peer.stream_head()
        await peer.chunk(b'data: {"choices":[]}\n\n')
        await asyncio.sleep(10 * OFTEN_S)
        await peer.chunk(FINISH)
        await peer.end()

    async with stub(engine) as s, gateway(s.url, wait_comment_s=2 * OFTEN_S) as g:
        client = await g.ask(STREAM)
    assert split(client.body)[1] == b'data: {"choices":[]}\n\n' + FINISH
