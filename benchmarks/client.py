"""A client as thin as the stand-in engine: raw sockets on asyncio, one timestamp per first byte."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field

from benchmarks.standin import MODEL

KIB = 1024
REQUEST_BYTES = 32 * KIB
END = b"0\r\n\r\n"


def request(port: int, size: int = REQUEST_BYTES, asking: str = "") -> bytes:
    """A streamed chat of `size` bytes, headers apart. `asking` is a query for the stand-in engine."""
    body = {"model": MODEL, "stream": True, "messages": [{"role": "user", "content": ""}]}
    padding = max(0, size - len(json.dumps(body)))
    body["messages"] = [{"role": "user", "content": "x" * padding}]
    data = json.dumps(body).encode()
    head = (
        f"POST /v1/chat/completions{asking} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


@dataclass(slots=True)
class Times:
    """Milliseconds, one entry a request; `elapsed_s` and `cpu_s` for all of them together."""

    first_byte: list[float] = field(default_factory=list)
    total: list[float] = field(default_factory=list)
    elapsed_s: float = 0.0
    cpu_s: float = 0.0

    def add(self, more: Times) -> None:
        self.first_byte += more.first_byte
        self.total += more.total
        self.elapsed_s += more.elapsed_s
        self.cpu_s += more.cpu_s


class Connection:
    """One kept-alive connection."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, data: bytes, times: Times, since: float | None = None) -> None:
        """One request and its whole reply, timed from `since`, or from now. Raises ConnectionError."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 20)
        reader, writer = self._streams
        began = time.perf_counter() if since is None else since
        writer.write(data)
        reply = await reader.read(65536)
        first = (time.perf_counter() - began) * 1000
        if reply and not reply.startswith(b"HTTP/1.1 200"):
            raise ConnectionError(f"port {self.port} answered {reply[:600]!r}")
        while not reply.endswith(END):
            piece = await reader.read(65536)
            if not piece:
                raise ConnectionError(f"port {self.port} closed inside a reply: {reply[-200:]!r}")
            reply += piece
        times.first_byte.append(first)
        times.total.append((time.perf_counter() - began) * 1000)

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()


async def closed_loop(port: int, connections: int, requests: int, data: bytes) -> Times:
    """`requests` in all; each connection asks again as soon as it was answered."""
    times = Times()
    began = time.perf_counter()

    async def one() -> None:
        connection = Connection(port)
        for _ in range(requests // connections):
            await connection.ask(data, times)
        connection.close()

    await asyncio.gather(*(one() for _ in range(connections)))
    times.elapsed_s = time.perf_counter() - began
    return times


async def open_loop(port: int, rate: float, seconds: float, data: bytes) -> Times:
    """A request every 1/`rate` seconds, whatever became of those before: no queue of the client's making."""
    times = Times()
    began = time.perf_counter()
    idle: list[Connection] = []

    async def one(at: float) -> None:
        connection = idle.pop() if idle else Connection(port)
        await connection.ask(data, times)
        idle.append(connection)

    asks = []
    for number in range(int(rate * seconds)):
        at = began + number / rate
        await asyncio.sleep(max(0.0, at - time.perf_counter()))
        asks.append(asyncio.ensure_future(one(at)))
    await asyncio.gather(*asks)
    for connection in idle:
        connection.close()
    times.elapsed_s = time.perf_counter() - began
    return times
