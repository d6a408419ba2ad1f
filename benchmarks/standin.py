"""An engine that costs next to nothing: it lists one model and streams the same chunks to everybody.

    python -m benchmarks.standin PORT

A request may ask for another stream than the usual one: `?chunks=1000&gap_ms=250` is a thousand chunks, each
a quarter of a second after the one before.

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
LONGEST_HEAD = 64 * 1024


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
FIRST = chunked(event({"role": "assistant", "content": ""}))
WORD = chunked(event({"content": " word"}))
LAST = chunked(event({}, "stop"))
DONE = chunked(b"data: [DONE]\n\n") + b"0\r\n\r\n"


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
        self._head = b""
        self._owed = 0  # bytes of a body that are still to come

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Bodies are counted and dropped: a long one must cost no more than reading it."""
        if not self._owed:
            data = self._head + data
            end = data.find(b"\r\n\r\n")
            if end < 0:
                self._head = data[:LONGEST_HEAD]
                return
            self._head, data = data[:end], data[end + 4 :]
            self._owed = content_length(self._head)
        self._owed -= len(data)
        if not self._owed:
            head, self._head = self._head, b""
            self._answer(head)

    def _answer(self, head: bytes) -> None:
        method, target, _ = head.split(b" ", 2)
        path, _, query = target.partition(b"?")
        if (method, path) == (b"POST", b"/v1/chat/completions"):
            asked = dict(pair.split(b"=") for pair in query.split(b"&") if pair)
            chunks, gap_ms = int(asked.get(b"chunks", CHUNKS)), int(asked.get(b"gap_ms", 0))
            self._transport.write(HEAD + FIRST)
            self._later(gap_ms / 1000 or GAP_S, chunks - 1, gap_ms / 1000)
        else:
            self._transport.write(MODELS if (method, path) == (b"GET", b"/v1/models") else NOT_FOUND)

    def _later(self, wait_s: float, left: int, gap_s: float) -> None:
        loop = asyncio.get_running_loop()
        if wait_s:
            loop.call_later(wait_s, self._stream, left, gap_s)
        else:
            loop.call_soon(self._stream, left, gap_s)

    def _stream(self, left: int, gap_s: float) -> None:
        """One chunk a turn of the loop, so that each is a write of its own as with a real engine."""
        if self._transport.is_closing():
            return
        self._transport.write(WORD if left > 2 else LAST if left == 2 else DONE)
        if left > 1:
            self._later(gap_s, left - 1, gap_s)


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
