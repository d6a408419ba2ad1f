"""Requests that recorded clients might have sent, had they been broken: a seeded stream of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.gateway.proxy.recorded import Sent

TOKENS = [
    b"{", b"}", b"[", b"]", b":", b",", b'"', b"\\", b"\\u0000", b"\\ud83d", b"null", b"true", b"false", b"-0", b"1e999",
    b"NaN", b"9" * 400, b"\xff", b"\xed\xa0\x80", b"\x00", b"\r\n", b"\n", b'"model"', b'"Model"', b'"stream":true', b"[" * 3000,
    b'{"a":' * 1500, b"/", b"..", b"%00", b"%2f", b"?", b"#", b" ", b"\t", b";", b"'", b"<b>",
]  # fmt: skip
METHODS = [b"GET", b"HEAD", b"PUT", b"DELETE", b"OPTIONS", b"PATCH", b"post", b"X"]
HEADERS = [
    b"Content-Encoding: gzip", b"Expect: 100-continue", b"Expect: x", b"Connection: close", b"Upgrade: websocket", b"X-Odd: \xff",
    b"Content-Length: 5", b"Content-Length: -1", b"Transfer-Encoding: chunked", b"Transfer-Encoding: x", b"Host: other", b" folded: 1",
    b"no colon", b"Accept: */*", b"Authorization: Bearer \xfe", b"X-Request-Id: a b", b"Connection: x-odd, keep-alive", b"Range: bytes=1-2",
    b"X-Conversation-Id: 1", b"Content-Type: text/plain",
]  # fmt: skip


@dataclass(frozen=True)
class Broken:
    data: bytes
    framed: bool  # the server will answer it and read the next one
    method: bytes = b"POST"


class Mutator:
    def __init__(self, seeds: Sequence[Sent], seed: int) -> None:
        self.seeds, self.rng = seeds, random.Random(seed)
        self.on_bytes: Sequence[Callable[[bytes], bytes]] = (
            self._flip, self._cut, self._repeat, self._insert, self._insert, self._end_early, self._swap,
        )  # fmt: skip

    def next(self) -> Broken:
        rng, sent = self.rng, self.rng.choice(self.seeds)
        method, target, body = sent.method.encode(), sent.target.encode(), sent.body
        headers = [
            k + b": " + v for k, v in sent.headers if k not in (b"content-length", b"transfer-encoding")
        ]
        if rng.random() < 0.75:
            body = self._some(body)
        if rng.random() < 0.1:
            method = rng.choice(METHODS)
        framed = True
        if rng.random() < 0.1:
            target, framed = self._some(target), False
        if rng.random() < 0.15:
            headers.insert(rng.randrange(len(headers) + 1), rng.choice(HEADERS))
            framed = False
        lines = [method + b" " + target + b" HTTP/1.1", *headers, b"Content-Length: %d" % len(body)]
        data = b"\r\n".join(lines) + b"\r\n\r\n" + body
        if rng.random() < 0.05:
            data, framed = self._some(data), False
        return Broken(data, framed, method)

    def _some(self, data: bytes) -> bytes:
        for _ in range(self.rng.choice((1, 1, 1, 2, 3, 8))):
            data = self.rng.choice(self.on_bytes)(data)
        return data

    def _at(self, data: bytes) -> int:
        return self.rng.randrange(len(data) + 1)

    def _flip(self, data: bytes) -> bytes:
        at = self._at(data)
        return data[:at] + bytes([self.rng.randrange(256)]) + data[at + 1 :]

    def _cut(self, data: bytes) -> bytes:
        at = self._at(data)
        return data[:at] + data[at + self.rng.choice((1, 3, 50, 1000)) :]

    def _repeat(self, data: bytes) -> bytes:
        at, size = self._at(data), self.rng.choice((1, 10, 200))
        return data[:at] + data[at : at + size] * 2 + data[at + size :]

    def _insert(self, data: bytes) -> bytes:
        at = self._at(data)
        return data[:at] + self.rng.choice(TOKENS) + data[at:]

    def _end_early(self, data: bytes) -> bytes:
        return data[: self._at(data)]

    def _swap(self, data: bytes) -> bytes:
        """A value of another type."""
        at = data.find(b":", self._at(data))
        return data if at < 0 else data[: at + 1] + self.rng.choice(TOKENS) + data[at + 1 :]
