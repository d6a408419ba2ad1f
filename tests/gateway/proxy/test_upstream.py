"""The way to an engine, over real sockets: connections kept, given up, and lost."""

from __future__ import annotations

import asyncio

import pytest

from gateway.proxy.upstream import EngineFault, Fault, Upstream
from tests.stub import Peer, Request, stub

JSON = [(b"content-type", b"application/json")]


async def ask(upstream: Upstream, own_connection: bool = False) -> bytes:
    async with await upstream.send("/v1/x", JSON, b'{"model":"m"}', own_connection=own_connection) as reply:
        return b"".join([piece async for piece in reply.pieces()])


async def fault(upstream: Upstream) -> Fault:
    with pytest.raises(EngineFault) as e:
        await ask(upstream)
    await upstream.close()
    return e.value.fault


async def test_an_idle_connection_is_used_again() -> None:
    async def engine(_request: Request, peer: Peer) -> None:
        await peer.plain(b"ok")

    async with stub(engine) as s:
        upstream = Upstream(s.url, 5, 5)
        assert [await ask(upstream), await ask(upstream)] == [b"ok", b"ok"]
        await upstream.close()
    assert [r.connection for r in s.requests] == [1, 1]


async def test_an_own_connection_is_closed_after_its_request() -> None:
    async def engine(_request: Request, peer: Peer) -> None:
        await peer.plain(b"ok")

    async with stub(engine) as s:
        upstream = Upstream(s.url, 5, 5)
        await ask(upstream, own_connection=True)
        await ask(upstream)
        await upstream.close()
    assert [r.connection for r in s.requests] == [1, 2]
    assert s.requests[0].header("connection") == ["close"]


async def test_a_request_that_lost_the_race_with_a_closing_connection_is_sent_again() -> None:
    async def engine(request: Request, peer: Peer) -> None:
        if request.connection == 1 and len(s.requests) > 1:
            peer.reset()
        else:
            await peer.plain(b"ok")

    async with stub(engine) as s:
        upstream = Upstream(s.url, 5, 5)
        assert [await ask(upstream), await ask(upstream)] == [b"ok", b"ok"]
        await upstream.close()
    assert [r.connection for r in s.requests] == [1, 1, 2]


async def test_a_request_that_kills_a_fresh_connection_is_not_sent_again() -> None:
    async def engine(_request: Request, peer: Peer) -> None:
        peer.close()

    async with stub(engine) as s:
        assert await fault(Upstream(s.url, 5, 5)) is Fault.DIED
    assert len(s.requests) == 1


LARGE = bytes(range(256)) * 16 * 1024  # 4 MiB


async def test_a_large_body_arrives_whole_and_with_its_length() -> None:
    async def engine(_request: Request, peer: Peer) -> None:
        await peer.plain(b"ok")

    async with stub(engine) as s:
        upstream = Upstream(s.url, 5, 5)
        async with await upstream.send("/v1/x", JSON, LARGE):
            pass
        await upstream.close()
    [request] = s.requests
    assert request.body == LARGE
    assert request.header("content-length") == [str(len(LARGE))]
    assert request.header("transfer-encoding") == []


async def test_a_large_body_is_sent_again_whole_after_the_race_with_a_closing_connection() -> None:
    async def engine(request: Request, peer: Peer) -> None:
        if request.connection == 1 and len(s.requests) > 1:
            peer.reset()
        else:
            await peer.plain(b"ok")

    async with stub(engine) as s:
        upstream = Upstream(s.url, 5, 5)
        await ask(upstream)
        async with await upstream.send("/v1/x", JSON, LARGE):
            pass
        await upstream.close()
    assert [(r.connection, r.body == LARGE) for r in s.requests] == [(1, False), (1, True), (2, True)]


async def test_nobody_listening_is_refused() -> None:
    async with stub(lambda _r, p: p.plain(b"")) as s:
        pass
    assert await fault(Upstream(s.url, 5, 5)) is Fault.REFUSED


async def test_a_reply_that_does_not_begin_in_time_is_a_stall() -> None:
    async def engine(request: Request, _peer: Peer) -> None:
        await request.gone.wait()

    async with stub(engine) as s:
        assert await fault(Upstream(s.url, 0.1, 5)) is Fault.STALLED


async def test_a_reply_that_goes_silent_is_a_stall() -> None:
    async def engine(request: Request, peer: Peer) -> None:
        await peer.stream_head()
        await peer.chunk(b"data: 1\n\n")
        await request.gone.wait()

    async with stub(engine) as s:
        assert await fault(Upstream(s.url, 5, 0.1)) is Fault.STALLED


@pytest.mark.parametrize("how", ["close", "reset"])
async def test_a_reply_that_ends_early_is_a_death(how: str) -> None:
    async def engine(_request: Request, peer: Peer) -> None:
        await peer.stream_head()
        await peer.chunk(b"data: 1\n\n")
        getattr(peer, how)()

    async with stub(engine) as s:
        assert await fault(Upstream(s.url, 5, 5)) is Fault.DIED


async def test_a_reply_that_ends_early_is_told_without_the_words_of_our_library() -> None:
    async def engine(_request: Request, peer: Peer) -> None:
        await peer.stream_head()
        await peer.chunk(b"data: 1\n\n")
        peer.close()

    async with stub(engine) as s:
        upstream = Upstream(s.url, 5, 5)
        with pytest.raises(EngineFault) as e:
            await ask(upstream)
        await upstream.close()
    assert str(e.value) == "the engine's reply ended early (the engine closed it in the middle)"


async def test_what_is_not_http_is_a_death() -> None:
    async def engine(_request: Request, peer: Peer) -> None:
        await peer.send(b"\x00\x01 not http\r\n\r\n")
        peer.close()

    async with stub(engine) as s:
        assert await fault(Upstream(s.url, 5, 5)) is Fault.DIED


async def test_pieces_come_as_the_engine_sends_them() -> None:
    next_piece = asyncio.Event()

    async def engine(_request: Request, peer: Peer) -> None:
        await peer.stream_head()
        for text in (b"data: 1\n\n", b"data: 2\n\n"):
            await peer.chunk(text)
            await next_piece.wait()
        await peer.end()

    async with stub(engine) as s:
        upstream = Upstream(s.url, 5, 5)
        got = []
        async with await upstream.send("/", JSON, b"{}") as reply:
            async for piece in reply.pieces():
                got.append(piece)
                next_piece.set()
        await upstream.close()
    assert got == [b"data: 1\n\n", b"data: 2\n\n"]


async def test_the_engine_gets_host_length_and_the_path_as_it_is() -> None:
    async with stub(lambda _r, p: p.plain(b"ok")) as s:
        upstream = Upstream(s.url, 5, 5)
        async with await upstream.send("/v1/a%2Fb?beta=true", JSON, b"12345") as reply:
            assert reply.status == 200
        await upstream.close()
    request = s.requests[0]
    assert request.line == "POST /v1/a%2Fb?beta=true HTTP/1.1"
    assert request.header("host") == [s.url.removeprefix("http://")]
    assert (request.header("content-length"), request.body) == (["5"], b"12345")
    assert request.header("user-agent") == request.header("accept") == []
