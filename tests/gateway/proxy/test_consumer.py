"""A chat through the request path, in front of an engine on a real socket."""

from __future__ import annotations

import asyncio
import json

import pytest

from gateway.proxy.answer import ReplyCut
from tests.gateway.proxy.bench import BODY, CLOSING, FINISH, STREAM, Client, chat, gateway
from tests.stub import Peer, Request, stub


async def test_a_plain_reply_comes_back_as_it_is() -> None:
    async with stub(chat) as s, gateway(s.url) as g:
        client = await g.ask()
    assert (client.status, client.body, client.ended) == (200, b'{"ok":1}', True)
    assert client.headers[b"content-length"] == b"8"
    assert s.requests[0].body == BODY


async def test_a_reply_says_which_engine_gave_it_and_why() -> None:
    async with stub(chat) as s, gateway(s.url) as g:
        client = await g.ask(headers=[(b"x-request-id", b"mine-1")])
    assert client.headers[b"x-pharos-backend"] == s.url.encode()
    assert client.headers[b"x-pharos-reason"].startswith(
        b"the only backend with the model now: 2 of 2 places"
    )
    assert client.headers[b"x-request-id"] == b"mine-1"


async def test_a_request_id_that_could_break_a_header_is_replaced() -> None:
    async with stub(chat) as s, gateway(s.url) as g:
        client = await g.ask(headers=[(b"x-request-id", b"a b\xff")])
    assert len(client.headers[b"x-request-id"]) == 32


async def test_a_stream_comes_back_chunk_by_chunk() -> None:
    go_on = asyncio.Event()

    async def engine(_request: Request, peer: Peer) -> None:
        await peer.stream_head()
        await peer.chunk(b"data: 1\n\n")
        await go_on.wait()
        await peer.chunk(FINISH)
        await peer.end()

    async with stub(engine) as s, gateway(s.url) as g:
        client = Client()
        asking = asyncio.create_task(g.ask(STREAM, client=client))
        while client.body != b"data: 1\n\n":
            client.arrived.clear()
            await client.arrived.wait()
        go_on.set()
        await asking
    assert client.body == b"data: 1\n\n" + FINISH
    assert client.headers[b"content-type"] == b"text/event-stream"
    assert client.headers[b"x-accel-buffering"] == b"no"


async def test_an_engines_own_error_comes_back_as_it_is() -> None:
    async def engine(_request: Request, peer: Peer) -> None:
        await peer.plain(b'{"error":"too long"}', "400 Bad Request")

    async with stub(engine) as s, gateway(s.url) as g:
        client = await g.ask()
    assert (client.status, client.body) == (400, b'{"error":"too long"}')


async def test_a_client_that_leaves_ends_the_engines_work() -> None:
    stopped = asyncio.Event()

    async def engine(request: Request, peer: Peer) -> None:
        await peer.stream_head()
        await peer.chunk(b"data: 1\n\n")
        await request.gone.wait()
        stopped.set()

    async with stub(engine) as s, gateway(s.url) as g:
        client = Client()
        asking = asyncio.create_task(g.ask(STREAM, client=client))
        await client.arrived.wait()
        client.leave()
        await asking
        async with asyncio.timeout(2):
            await stopped.wait()
        assert g.backends[0].up, "a client that leaves says nothing about the engine"
    assert g.done[0].outcome == "client_left"


async def test_a_client_that_leaves_before_the_reply_ends_the_engines_work() -> None:
    stopped, asked = asyncio.Event(), asyncio.Event()

    async def engine(request: Request, _peer: Peer) -> None:
        asked.set()
        await request.gone.wait()
        stopped.set()

    async with stub(engine) as s, gateway(s.url) as g:
        client = Client()
        asking = asyncio.create_task(g.ask(client=client))
        await asked.wait()
        client.leave()
        await asking
        async with asyncio.timeout(2):
            await stopped.wait()
    assert client.sent == []


async def test_a_stream_whose_engine_dies_is_cut_and_never_ended() -> None:
    async def engine(_request: Request, peer: Peer) -> None:
        await peer.stream_head()
        await peer.chunk(b"data: 1\n\n")
        peer.reset()

    async with stub(engine) as s, gateway(s.url) as g:
        client = await g.ask(STREAM)
        assert (client.cut, client.ended) == (True, False)
        assert not g.backends[0].up
    assert g.done[0].outcome == "died"


async def test_a_dying_stream_tells_why_in_an_event_of_its_own() -> None:
    async def engine(_request: Request, peer: Peer) -> None:
        await peer.stream_head()
        await peer.chunk(b"data: 1\n\n")
        peer.reset()

    async with stub(engine) as s, gateway(s.url) as g:
        client = await g.ask(STREAM)
    events = client.body.split(b"\n\n")
    assert events[0] == b"data: 1"
    assert s.url in json.loads(events[1].removeprefix(b"data: "))["error"]["message"]


async def test_nothing_is_glued_to_half_an_event() -> None:
    async def engine(_request: Request, peer: Peer) -> None:
        await peer.stream_head()
        await peer.chunk(b'data: {"half')
        peer.reset()

    async with stub(engine) as s, gateway(s.url) as g:
        client = await g.ask(STREAM)
    assert (client.body, client.cut) == (b'data: {"half', True)


async def test_a_stream_that_ends_cleanly_without_finishing_is_cut() -> None:
    async def engine(_request: Request, peer: Peer) -> None:
        await peer.stream_head()
        await peer.chunk(b'data: {"choices":[{"delta":{"content":"x"},"finish_reason":null}]}\n\n')
        await peer.chunk(b"data: [DONE]\n\n")
        await peer.end()

    async with stub(engine) as s, gateway(s.url) as g:
        client = await g.ask(STREAM)
    assert (client.cut, client.ended) == (True, False)


async def test_a_stream_whose_engine_said_that_it_failed_ends_as_the_engine_ended_it() -> None:
    async def engine(_request: Request, peer: Peer) -> None:
        await peer.stream_head()
        await peer.chunk(b'data: {"error":{"message":"core died","code":500}}\n\ndata: [DONE]\n\n')
        await peer.end()

    async with stub(engine) as s, gateway(s.url) as g:
        client = await g.ask(STREAM)
    assert (client.cut, client.ended) == (False, True)


async def test_without_the_servers_extension_a_dying_stream_raises() -> None:
    async def engine(_request: Request, peer: Peer) -> None:
        await peer.stream_head()
        await peer.chunk(b"data: 1\n\n")
        peer.reset()

    async with stub(engine) as s, gateway(s.url) as g:
        with pytest.raises(ReplyCut):
            await g.ask(STREAM, seam=False)


async def test_a_refused_connection_goes_to_the_next_backend() -> None:
    async with stub(chat) as gone:
        pass
    async with stub(chat) as s, gateway(gone.url, s.url) as g:
        with g.busy(1):  # the dead one looks better
            client = await g.ask()
        assert [b.up for b in g.backends] == [False, True]
    assert client.status == 200
    assert len(g.done) == 1


async def test_an_engine_that_is_full_leaves_the_request_to_another() -> None:
    async def full(_request: Request, peer: Peer) -> None:
        await peer.plain(b"{}", "503 Service Unavailable")

    async with stub(full) as a, stub(chat) as b, gateway(a.url, b.url) as g:
        with g.busy(1):
            client = await g.ask()
        assert all(x.up for x in g.backends), "a full engine is not dead"
    assert client.status == 200
    assert client.headers[b"x-pharos-backend"] == b.url.encode()


async def test_when_every_engine_refuses_the_client_gets_an_engines_own_words() -> None:
    async def refuses(_request: Request, peer: Peer) -> None:
        await peer.plain(b'{"error":{"message":"tools need --jinja"}}', "503 Service Unavailable")

    async with stub(refuses) as a, stub(refuses) as b, gateway(a.url, b.url) as g:
        client = await g.ask()
    assert (client.status, client.error["message"]) == (503, "tools need --jinja")
    assert client.headers[b"retry-after"] == b"1"
    assert len(a.requests) + len(b.requests) == 2


async def test_an_error_page_becomes_an_error() -> None:
    async def engine(_request: Request, peer: Peer) -> None:
        await peer.plain(b"<html><h1>502 Bad Gateway</h1></html>", "502 Bad Gateway", "text/html")

    async with stub(engine) as s, gateway(s.url) as g:
        client = await g.ask()
    assert (client.status, client.error["code"]) == (502, "engine_error")
    assert "answered 502: 502 Bad Gateway" in client.error["message"]


async def test_a_request_that_kills_its_engine_on_a_kept_connection_stays_there() -> None:
    async def engine(request: Request, peer: Peer) -> None:
        if b"poison" in request.body:
            server_a.close_listener()
            peer.reset()
        else:
            await peer.plain(b"{}")

    async with stub(engine) as server_a, stub(engine) as server_b, gateway(server_a.url, server_b.url) as g:
        with g.busy(1):
            await g.ask()  # leaves a kept connection
            client = await g.ask(b'{"model":"m","x":"poison"}')
    assert (client.status, client.error["code"]) == (502, "engine_failed")
    assert server_b.requests == []


async def test_a_request_its_engine_died_of_is_not_given_to_the_next() -> None:
    async def engine(_request: Request, peer: Peer) -> None:
        peer.reset()

    async with stub(engine) as a, stub(engine) as b, gateway(a.url, b.url) as g:
        client = await g.ask()
    assert (client.status, client.error["code"]) == (502, "engine_failed")
    assert len(a.requests) + len(b.requests) == 1


async def test_an_engine_that_does_not_answer_in_time_is_named_and_stays_up() -> None:
    async def engine(request: Request, _peer: Peer) -> None:
        await request.gone.wait()

    async with stub(engine) as s, gateway(s.url) as g:
        client = await g.ask()
        assert g.backends[0].up
    assert (client.status, client.error["code"]) == (504, "engine_timeout")
    assert s.url in client.error["message"]


async def test_an_unknown_model_is_a_404_that_helps() -> None:
    async with gateway("http://127.0.0.1:1") as g:
        client = await g.ask(b'{"model":"mm"}')
    assert (client.status, client.error["code"]) == (404, "model_not_found")
    assert "did you mean 'm'?" in client.error["message"]


async def test_a_known_model_with_no_engine_up_is_a_503_with_a_time_to_come_back() -> None:
    async with gateway("http://127.0.0.1:1") as g:
        g.backends[0].lost("refused")
        client = await g.ask()
    assert (client.status, client.error["code"]) == (503, "model_unavailable")
    assert client.headers[b"retry-after"] == b"5"


async def test_a_bad_body_is_refused_and_counted_once() -> None:
    async with gateway("http://127.0.0.1:1") as g:
        client = await g.ask(b"{")
    assert client.status == 400
    assert [(d.status, d.outcome) for d in g.done] == [(400, "invalid_request")]


async def test_a_body_over_the_limit_is_refused_where_the_server_did_not() -> None:
    async with gateway("http://127.0.0.1:1") as g:
        client = await g.ask(b" " * (33 * 1024 * 1024))
    assert (client.status, client.error["code"]) == (413, "request_too_large")


async def test_an_engine_gets_its_own_key_and_never_the_clients() -> None:
    async with stub(chat) as s, gateway(s.url, api_key="engine") as g:
        await g.ask(headers=[(b"authorization", b"Bearer client")])
    assert s.requests[0].header("authorization") == ["Bearer engine"]


async def test_an_aliased_model_reaches_the_engine_under_its_own_name() -> None:
    async with stub(chat) as s, gateway(s.url, aliases={"m": "friendly"}) as g:
        client = await g.ask(b'{"model":"friendly","x":1.0}')
    assert client.status == 200
    assert s.requests[0].body == b'{"model":"m","x":1.0}'


async def test_a_connection_that_carried_a_llamacpp_stream_is_not_used_again() -> None:
    async with stub(chat) as s, gateway(s.url, recipe=CLOSING) as g:
        await g.ask(STREAM)
        await g.ask(STREAM)
    assert [r.connection for r in s.requests] == [1, 2]


async def test_models_are_listed_with_what_is_routable_now() -> None:
    async with gateway("http://127.0.0.1:1") as g:
        listed = json.loads((await g.ask(path="/v1/models", method="GET")).body)
        one = json.loads((await g.ask(path="/v1/models/m", method="GET")).body)
        none = await g.ask(path="/v1/models/x", method="GET")
    assert [m["id"] for m in listed["data"]] == ["m"]
    assert one == listed["data"][0]
    assert none.status == 404


async def test_head_has_the_headers_of_get_and_no_body() -> None:
    async with gateway("http://127.0.0.1:1") as g:
        client = await g.ask(path="/v1/models", method="HEAD")
    assert int(client.headers[b"content-length"]) > 0
    assert client.body == b""


@pytest.mark.parametrize("path", ["/chat/completions", "/v1/v1/chat/completions", "/v1/nope"])
async def test_an_unknown_path_names_the_right_base_url(path: str) -> None:
    async with gateway("http://127.0.0.1:1") as g:
        client = await g.ask(path=path)
    assert client.status == 404
    assert "/v1" in client.error["message"]


async def test_a_wrong_method_is_named() -> None:
    async with gateway("http://127.0.0.1:1") as g:
        client = await g.ask(path="/v1/chat/completions", method="GET")
    assert (client.status, client.error["message"]) == (405, "This path takes POST, not GET.")


async def test_a_redirect_is_not_passed_on() -> None:
    async def engine(_request: Request, peer: Peer) -> None:
        await peer.send(
            b"HTTP/1.1 307 Temporary Redirect\r\nLocation: http://other:1/x\r\nContent-Length: 0\r\n\r\n"
        )

    async with stub(engine) as s, gateway(s.url) as g:
        client = await g.ask()
    assert (client.status, client.error["code"]) == (502, "engine_redirects")
    assert "redirects to http://other:1/x" in client.error["message"]
    assert b"location" not in client.headers
