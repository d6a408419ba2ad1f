"""A client as thin as the stand-in engine: raw sockets on asyncio, one timestamp per first byte."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field

from benchmarks.standin import MODEL

REQUEST_BYTES = 32 * 1024
END = b"0\r\n\r\n"


def request(port: int) -> bytes:
    """A streamed chat of 32 KiB, headers apart."""
    body = {"model": MODEL, "stream": True, "messages": [{"role": "user", "content": ""}]}
    padding = REQUEST_BYTES - len(json.dumps(body))
    body["messages"] = [{"role": "user", "content": "x" * padding}]
    data = json.dumps(body).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


@dataclass(slots=True)
class Times:
    """Milliseconds, one entry a request."""

    first_byte: list[float] = field(default_factory=list)
    total: list[float] = field(default_factory=list)
    elapsed_s: float = 0.0


async def run(port: int, connections: int, requests: int) -> Times:
    """`requests` in all over `connections` kept-alive connections, each one request at a time."""
    times = Times()
    began = time.perf_counter()
    await asyncio.gather(*(_one(port, requests // connections, times) for _ in range(connections)))
    times.elapsed_s = time.perf_counter() - began
    return times


async def _one(port: int, requests: int, times: Times) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    data = request(port)
    try:
        for _ in range(requests):
            began = time.perf_counter()
            writer.write(data)
            reply = await reader.read(65536)
            times.first_byte.append((time.perf_counter() - began) * 1000)
            while not reply.endswith(END):
                piece = await reader.read(65536)
                if not piece:
                    raise ConnectionError(f"port {port} closed inside a reply: {reply[-200:]!r}")
                reply += piece
            times.total.append((time.perf_counter() - began) * 1000)
            if not reply.startswith(b"HTTP/1.1 200"):
                raise ConnectionError(f"port {port} answered {reply[:300]!r}")
    finally:
        writer.close()
