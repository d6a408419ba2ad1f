"""One GET at a time over real sockets: what hangs is given up, what trickles does not hold a poll."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx
import pytest

from engines.fetch import MAX_BODY, Fault, FetchError, HttpFetch

OK = b"HTTP/1.1 200 OK\r\nServer: Test\r\nContent-Length: 2\r\n\r\nok"
Behaviour = Callable[["Connection"], Awaitable[None]]


@dataclass
class Connection:
    number: int  # 1 is the first
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def request(self) -> bytes:
        return await self.reader.readuntil(b"\r\n\r\n")

    async def say(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def hang(self) -> None:
        await self.reader.read()  # until the client gives up


@dataclass
class Server:
    url: str = ""
    requests: list[bytes] = field(default_factory=list)
    connections: int = 0


@asynccontextmanager
async def serving(behave: Behaviour) -> AsyncIterator[Server]:
    server = Server()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.connections += 1
        connection = Connection(server.connections, reader, writer)
        read = connection.request

        async def request() -> bytes:
            server.requests.append(head := await read())
            return head

        connection.request = request  # type: ignore[method-assign]
        try:
            await behave(connection)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = listener.sockets[0].getsockname()
    server.url = f"http://{host}:{port}"
    try:
        yield server
    finally:
        listener.close()
        await listener.wait_closed()


@asynccontextmanager
async def fetching(server: Server, timeout_s: float = 0.2) -> AsyncIterator[HttpFetch]:
    async with httpx.AsyncClient(trust_env=False) as client:
        yield HttpFetch(client, server.url, {"authorization": "Bearer s3cret"}, timeout_s=timeout_s)


async def answers(c: Connection) -> None:
    while True:
        await c.request()
        await c.say(OK)


async def test_an_answer_has_its_status_body_and_headers_in_lower_case() -> None:
    async with serving(answers) as server, fetching(server) as get:
        answer = await get("/x")
    assert (answer.status, answer.body, answer.headers["server"]) == (200, b"ok", "Test")


async def test_the_backends_own_headers_are_sent_and_no_compression_is_asked_for() -> None:
    async with serving(answers) as server, fetching(server) as get:
        await get("/x?y=1")
    head = server.requests[0].lower()
    assert head.startswith(b"get /x?y=1 ")
    assert b"authorization: bearer s3cret" in head
    assert b"accept-encoding: identity" in head


async def test_a_scrape_that_hangs_once_on_a_new_connection_is_asked_again_on_another() -> None:
    async def behave(c: Connection) -> None:
        await (c.hang() if c.number == 1 else answers(c))

    async with serving(behave) as server, fetching(server) as get:
        assert (await get("/metrics")).body == b"ok"
        assert server.connections == 2


async def test_a_scrape_that_hangs_on_a_kept_connection_is_asked_again_on_a_fresh_one() -> None:
    async def behave(c: Connection) -> None:
        if c.number > 1:
            return await answers(c)
        await c.request()
        await c.say(OK)
        return await c.hang()

    async with serving(behave) as server, fetching(server) as get:
        await get("/metrics")
        assert (await get("/metrics")).body == b"ok"
        assert server.connections == 2


async def test_a_connection_that_breaks_is_tried_once_more() -> None:
    async def behave(c: Connection) -> None:
        if c.number > 1:
            await answers(c)
        await c.request()

    async with serving(behave) as server, fetching(server) as get:
        assert (await get("/x")).body == b"ok"


async def fault_of(get: HttpFetch) -> Fault:
    with pytest.raises(FetchError) as e:
        await get("/x")
    assert "s3cret" not in str(e.value)
    return e.value.fault


async def test_an_engine_that_never_answers_is_asked_twice_and_called_busy() -> None:
    async with serving(Connection.hang) as server, fetching(server) as get:
        assert await fault_of(get) is Fault.TIMEOUT
        assert server.connections == 2


async def test_an_answer_that_trickles_in_does_not_hold_the_poll() -> None:
    async def behave(c: Connection) -> None:
        await c.request()
        await c.say(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n")
        for _ in range(100):
            await c.say(b".")
            await asyncio.sleep(0.02)

    async with serving(behave) as server, fetching(server) as get:
        assert await fault_of(get) is Fault.TIMEOUT


async def test_a_page_without_an_end_is_broken_off() -> None:
    async def behave(c: Connection) -> None:
        await c.request()
        await c.say(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (MAX_BODY * 4))
        await c.say(b"x" * (MAX_BODY + 1))
        await c.hang()

    async with serving(behave) as server, fetching(server, timeout_s=10) as get:
        assert await fault_of(get) is Fault.BROKEN


async def test_an_address_where_nobody_listens_refuses() -> None:
    async with serving(answers) as server:
        pass
    async with fetching(server) as get:
        assert await fault_of(get) is Fault.REFUSED


@pytest.mark.parametrize("key", ["schl\u00fcssel", "k3y\nmore"])
async def test_a_key_that_cannot_be_sent_is_told_and_not_shown(key: str) -> None:
    async with serving(answers) as server, httpx.AsyncClient(trust_env=False) as client:
        get = HttpFetch(client, server.url, {"authorization": f"Bearer {key}"})
        with pytest.raises(FetchError, match="cannot be asked") as told:
            await get("/props")
    assert told.value.fault is Fault.BROKEN
    assert key[:3] not in str(told.value)


async def test_nothing_is_posted_twice_and_its_body_names_no_model() -> None:
    async def behave(c: Connection) -> None:
        head = await c.request()
        assert b"\r\ncontent-length: 2\r\n" in head.lower()
        assert await c.reader.readexactly(2) == b"{}"
        c.writer.close()

    async with serving(behave) as server, fetching(server) as get:
        with pytest.raises(FetchError):
            await get.post_nothing("/v1/completions")
    assert [r.split()[:2] for r in server.requests] == [[b"POST", b"/v1/completions"]]


async def test_what_is_no_http_is_broken() -> None:
    async def behave(c: Connection) -> None:
        await c.request()
        await c.say(b"220 mail ready\r\n")

    async with serving(behave) as server, fetching(server) as get:
        assert await fault_of(get) is Fault.BROKEN


async def test_two_that_ask_at_once_are_answered_one_after_the_other() -> None:
    at_work, most = 0, 0

    async def behave(c: Connection) -> None:
        nonlocal at_work, most
        while True:
            await c.request()
            at_work += 1
            most = max(most, at_work)
            await asyncio.sleep(0.02)
            at_work -= 1
            await c.say(OK)

    async with serving(behave) as server, fetching(server, timeout_s=5) as get:
        await asyncio.gather(*(get(f"/{n}") for n in range(4)))
    assert most == 1


async def test_a_host_that_does_not_even_connect_is_not_busy() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        waiting = [socket.socket() for _ in range(4)]
        for each in waiting:  # they fill the kernel's queue, so that nobody else is connected
            each.setblocking(False)
            each.connect_ex(full.getsockname())
        url = f"http://127.0.0.1:{full.getsockname()[1]}"
        async with httpx.AsyncClient() as http:
            with pytest.raises(FetchError, match="is that host on") as e:
                await HttpFetch(http, url, timeout_s=0.4)("/")
        for each in waiting:
            each.close()
    assert e.value.fault is Fault.REFUSED
