"""An engine that costs next to nothing: it lists one model and streams the same 22 chunks to everybody.

    python -m benchmarks.standin PORT

A process of its own, so that its time is nobody else's. Not a double of any engine: it is as quick as
asyncio allows, so that what is measured is the gateway.
"""

from __future__ import annotations

import asyncio
import json
import sys

MODEL = "stand-in"
CHUNKS = 22
GAP_S = 0.005
"""Between the first chunk and the rest. No engine sends two tokens in one instant; without the gap a
gateway would meet the whole reply at once, and its time to the first byte would be its time to the last."""


def event(delta: dict[str, str], finish: str | None = None) -> bytes:
    body = {
        "id": "chatcmpl-standin",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": MODEL,
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    }
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def chunked(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
STREAM = [
    chunked(event({"role": "assistant", "content": ""})),
    *(chunked(event({"content": f" word{n}"})) for n in range(CHUNKS - 3)),
    chunked(event({}, "stop")),
    chunked(b"data: [DONE]\n\n") + b"0\r\n\r\n",
]


def plain(status: str, body: bytes) -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (
        status.encode(),
        len(body),
        body,
    )


MODELS = plain("200 OK", json.dumps({"object": "list", "data": [{"id": MODEL, "object": "model"}]}).encode())
NOT_FOUND = plain("404 Not Found", b'{"error":{"message":"no such path"}}')


class Engine(asyncio.Protocol):
    """HTTP/1.1 with Content-Length bodies, keep-alive, one request at a time: what our clients send."""

    def __init__(self) -> None:
        self._waiting = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._waiting += data
        while (end := self._waiting.find(b"\r\n\r\n")) >= 0:
            head = self._waiting[:end]
            whole = end + 4 + content_length(head)
            if len(self._waiting) < whole:
                return
            self._waiting = self._waiting[whole:]
            self._answer(head)

    def _answer(self, head: bytes) -> None:
        if head.startswith(b"POST /v1/chat/completions "):
            self._transport.write(HEAD + STREAM[0])
            asyncio.get_running_loop().call_later(GAP_S, self._stream, 1)
        else:
            self._transport.write(MODELS if head.startswith(b"GET /v1/models ") else NOT_FOUND)

    def _stream(self, at: int) -> None:
        """One chunk a turn of the loop, so that each is a write of its own as with a real engine."""
        self._transport.write(STREAM[at])
        if at + 1 < len(STREAM):
            asyncio.get_running_loop().call_soon(self._stream, at + 1)


def content_length(head: bytes) -> int:
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length":
            return int(value)
    return 0


async def serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Engine, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
