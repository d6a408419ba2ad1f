"""What a finished request is known to have cost, from a client on one end and an engine on the other."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from gateway.proxy.done import Done
from tests.gateway.proxy.bench import BODY, CLOSING, FINISH, OLLAMA, STREAM, Client, gateway
from tests.gateway.proxy.recorded import OLLAMA as OLLAMA_FOLDER
from tests.gateway.proxy.recorded import VLLM as VLLM_FOLDER
from tests.gateway.proxy.recorded import said
from tests.stub import Handler, Peer, Request, stub

TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"x"}}]}\n\n'
ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
USAGE = (
    b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":0,'
    b'"prompt_tokens_details":{"cached_tokens":4}}}\n\n'
)
EMBEDDER_FOLDER = VLLM_FOLDER.parent / "embeddings-mode" / "streams"
DONE = b"data: [DONE]\n\n"
ASKING = b'{"model":"m","stream":true,"stream_options":{"include_usage":true},"messages":[]}'


def streaming(*pieces: bytes, kind: str = "text/event-stream", pause: float = 0) -> Handler:
    async def engine(_request: Request, peer: Peer) -> None:
        await peer.send(
            f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
        )
        for piece in pieces:
            await peer.chunk(piece)
            await asyncio.sleep(pause)
        await peer.end()

    return engine


async def openai(request: Request, peer: Peer) -> None:
    """An engine that reports usage to those who ask, as all of them do."""
    options = json.loads(request.body).get("stream_options") or {}
    more = [USAGE] if options.get("include_usage") else []
    await streaming(ROLE, TOKEN, FINISH, *more, DONE)(request, peer)


async def asked(engine: Handler, body: bytes, path: str = "/v1/chat/completions") -> tuple[Client, Done]:
    async with stub(engine) as s, gateway(s.url, recipe=OLLAMA if path.startswith("/api") else CLOSING) as g:
        client = await g.ask(body, path=path)
    (done,) = g.done
    return client, done


def tokens(done: Done) -> tuple[int | None, int | None, int | None]:
    return done.prompt_tokens, done.completion_tokens, done.cached_tokens


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_a_client_that_did_not_ask_sees_no_usage_and_is_counted(path: str) -> None:
    client, done = await asked(openai, STREAM, path)
    assert (client.body, client.ended) == (ROLE + TOKEN + FINISH + DONE, True)
    assert tokens(done) == (7, 0, 4)
    assert done.finished is True


async def test_a_client_that_asked_gets_the_usage_byte_for_byte() -> None:
    client, done = await asked(openai, ASKING)
    assert client.body == ROLE + TOKEN + FINISH + USAGE + DONE
    assert tokens(done) == (7, 0, 4)


async def test_a_client_that_declined_sees_none_and_is_counted() -> None:
    client, done = await asked(openai, ASKING.replace(b":true},", b":false},"))
    assert client.body == ROLE + TOKEN + FINISH + DONE
    assert tokens(done) == (7, 0, 4)


async def test_what_was_held_back_is_handed_over_when_the_stream_ends_without_the_rest() -> None:
    client, _ = await asked(streaming(TOKEN, FINISH, USAGE[:20]), STREAM)
    assert (client.body, client.ended) == (TOKEN + FINISH + USAGE[:20], True)


async def test_an_engine_that_reports_nothing_leaves_it_unknown() -> None:
    client, done = await asked(streaming(TOKEN, FINISH, DONE), STREAM)
    assert client.body == TOKEN + FINISH + DONE
    assert tokens(done) == (None, None, None)
    assert (done.prefill_s, done.decode_s, done.load_s) == (None, None, None)


async def test_a_length_that_an_engine_gives_its_stream_is_not_that_of_what_is_left() -> None:
    body = TOKEN + FINISH + USAGE + DONE

    async def engine(_request: Request, peer: Peer) -> None:
        await peer.plain(body, kind="text/event-stream")

    client, _ = await asked(engine, STREAM)
    assert client.body == TOKEN + FINISH + DONE
    assert b"content-length" not in client.headers
    client, _ = await asked(engine, ASKING)
    assert client.headers[b"content-length"] == str(len(body)).encode()


async def test_the_first_token_is_timed_apart_from_the_first_byte() -> None:
    _, done = await asked(streaming(b": ping\n\n", ROLE, TOKEN, FINISH, pause=0.05), STREAM)
    assert done.first_byte_s is not None
    assert done.first_token_s is not None
    assert done.first_byte_s < done.first_token_s < done.total_s


async def test_a_stream_without_a_token_has_no_first_one() -> None:
    _, done = await asked(streaming(ROLE, FINISH, DONE), STREAM)
    assert done.first_byte_s is not None
    assert done.first_token_s is None


async def test_a_plain_reply_is_counted() -> None:
    async def engine(_request: Request, peer: Peer) -> None:
        await peer.plain(b'{"usage":{"prompt_tokens":7,"completion_tokens":0}}')

    client, done = await asked(engine, BODY)
    assert client.body == b'{"usage":{"prompt_tokens":7,"completion_tokens":0}}'
    assert tokens(done) == (7, 0, None)
    assert done.finished is True


async def test_an_error_costs_nothing_that_is_known() -> None:
    async def engine(_request: Request, peer: Peer) -> None:
        await peer.plain(b'{"error":{"message":"no"},"usage":{"prompt_tokens":7}}', "400 Bad Request")

    _, done = await asked(engine, BODY)
    assert tokens(done) == (None, None, None)
    assert done.finished is None


async def test_what_a_stream_told_before_it_broke_is_kept() -> None:
    start = b'event: message_start\ndata: {"type":"message_start","message":{"usage":{"input_tokens":9}}}\n\n'

    async def engine(_request: Request, peer: Peer) -> None:
        await peer.stream_head()
        await peer.chunk(start)
        await asyncio.sleep(0.05)
        peer.reset()

    client, done = await asked(engine, STREAM, "/v1/messages")
    assert client.cut
    assert (tokens(done), done.finished) == ((9, None, None), False)


async def test_what_a_stream_told_before_its_client_left_is_kept() -> None:
    start = b'event: message_start\ndata: {"type":"message_start","message":{"usage":{"input_tokens":9}}}\n\n'

    async def engine(request: Request, peer: Peer) -> None:
        await peer.stream_head()
        await peer.chunk(start)
        await request.gone.wait()

    async with stub(engine) as s, gateway(s.url) as g:
        client = Client()
        work = asyncio.ensure_future(g.ask(STREAM, path="/v1/messages", client=client))
        while not client.body:
            client.arrived.clear()
            await asyncio.wait_for(client.arrived.wait(), 5)
        client.leave()
        await work
    (done,) = g.done
    assert done.outcome != "ok"
    assert (tokens(done), done.finished) == ((9, None, None), False)


@pytest.mark.parametrize(
    ("path", "folder", "name", "counts", "load_s"),
    [
        ("/v1/chat/completions", VLLM_FOLDER, "chat", (41, 31, 0), None),
        ("/v1/chat/completions", VLLM_FOLDER, "chat-stream-usage", (41, 31, 0), None),
        ("/v1/completions", VLLM_FOLDER, "completion", (4, 24, 0), None),
        ("/v1/completions", VLLM_FOLDER, "completion-stream-usage", (4, 24, 0), None),
        ("/v1/messages", VLLM_FOLDER, "messages", (41, 19, 0), None),
        ("/v1/messages", VLLM_FOLDER, "messages-stream", (41, 13, 0), None),
        ("/v1/responses", VLLM_FOLDER, "responses", (41, 16, 0), None),
        ("/v1/responses", VLLM_FOLDER, "responses-stream", (41, 8, 0), None),
        ("/v1/embeddings", EMBEDDER_FOLDER, "embeddings", (4, 0, None), None),
        ("/api/embed", OLLAMA_FOLDER.parent / "embedding-model", "api-embed", (2, 0, None), 0.802710955),
        ("/api/chat", OLLAMA_FOLDER, "api-chat", (20, 46, None), 0.000678743),
        ("/api/chat", OLLAMA_FOLDER, "api-chat-stream", (20, 46, None), 0.000653205),
        ("/api/generate", OLLAMA_FOLDER, "api-generate", (20, 46, None), 0.000751061),
        ("/api/generate", OLLAMA_FOLDER, "api-generate-stream", (20, 46, None), 0.000651211),
    ],
)
async def test_each_route_is_counted_from_what_an_engine_was_recorded_to_say(
    path: str, folder: Path, name: str, counts: tuple[int | None, ...], load_s: float | None
) -> None:
    """The numbers are read from the recordings by eye."""
    reply = said(folder, name)
    body = json.dumps({"model": "m", "stream": "stream" in name}).encode()
    client, done = await asked(streaming(reply.body, kind=reply.kind), body, path)
    assert client.ended
    assert (tokens(done), done.load_s, done.finished) == (counts, load_s, True)
    assert (done.first_token_s is not None) == ("stream" in name)
