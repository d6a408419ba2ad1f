"""An engine on a real socket that does exactly what a test tells it, byte for byte."""

from __future__ import annotations

import asyncio
import re
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass(slots=True)
class Request:
    head: bytes
    body: bytes
    connection: int  # 1 for the first connection
    gone: asyncio.Event = field(default_factory=asyncio.Event)  # the peer closed while this was open

    @property
    def line(self) -> str:
        return self.head.split(b"\r\n", 1)[0].decode()

    def header(self, name: str) -> list[str]:
        pattern = rb"(?im)^" + re.escape(name.encode()) + rb":[ \t]*(.*?)\r$"
        return [v.decode() for v in re.findall(pattern, self.head)]


@dataclass(slots=True)
class Peer:
    """The engine's end of the connection of one request."""

    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def plain(self, body: bytes, status: str = "200 OK", kind: str = "application/json") -> None:
        head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
        await self.send(head.encode() + body)

    async def stream_head(self) -> None:
        await self.send(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        )

    async def chunk(self, data: bytes) -> None:
        await self.send(b"%x\r\n%s\r\n" % (len(data), data))

    async def end(self) -> None:
        await self.send(b"0\r\n\r\n")

    def close(self) -> None:
        self.writer.close()

    def reset(self) -> None:
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


Handler = Callable[[Request, Peer], Awaitable[None]]


@dataclass(slots=True)
class Stub:
    url: str
    requests: list[Request]
    close_listener: Callable[[], None] = lambda: None


@asynccontextmanager
async def stub(handler: Handler) -> AsyncIterator[Stub]:
    requests: list[Request] = []
    connections = 0
    tasks: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        me = connections
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"(?i)content-length: *(\d+)", head)
                body = await reader.readexactly(int(length[1])) if length else b""
                request = Request(head, body, me)
                requests.append(request)
                watch = asyncio.ensure_future(_watch(reader, request.gone))
                await handler(request, Peer(writer))
                watch.cancel()
                await asyncio.gather(watch, return_exceptions=True)
                if writer.is_closing():
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            tasks.discard(task)
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    try:
        yield Stub(f"http://{host}:{port}", requests, server.close)
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _watch(reader: asyncio.StreamReader, gone: asyncio.Event) -> None:
    """One request at a time on a connection, so whatever comes now is its end."""
    if not await reader.read(1):
        gone.set()
