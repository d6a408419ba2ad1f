"""HTTP/1.1 on one connection, as little of it as a double needs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from email.utils import formatdate

MAX_HEAD = 64 * 1024
MAX_BODY = 64 * 1024 * 1024


class BadRequest(Exception):
    """What came is not HTTP that a double understands."""


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    target: str
    version: str
    headers: tuple[tuple[str, str], ...]
    body: bytes

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    def header(self, name: str) -> str:
        return next((v for k, v in self.headers if k.lower() == name), "")

    @property
    def keeps_alive(self) -> bool:
        asked = self.header("connection").lower()
        return "close" not in asked and (self.version == "HTTP/1.1" or "keep-alive" in asked)


class WatchedReader(asyncio.StreamReader):
    """A reader that says at once, also while nobody reads, that the peer is gone."""

    def __init__(self) -> None:
        super().__init__(limit=MAX_HEAD)
        self.gone = asyncio.Event()

    def feed_eof(self) -> None:
        super().feed_eof()
        self.gone.set()

    def set_exception(self, exc: BaseException) -> None:
        super().set_exception(exc)  # type: ignore[arg-type]  # typeshed leaves out what asyncio itself passes
        self.gone.set()


async def read_request(
    reader: WatchedReader, writer: asyncio.StreamWriter, idle_s: float | None
) -> Request | None:
    """The next request; None when the peer has closed, or sent nothing for `idle_s`. Raises BadRequest."""
    try:
        async with asyncio.timeout(idle_s):
            first = await reader.readexactly(1)
        head = first + await reader.readuntil(b"\r\n\r\n")
    except TimeoutError:
        return None
    except asyncio.IncompleteReadError as e:
        if e.partial.strip():
            raise BadRequest("the head of the request is cut off") from None
        return None
    except asyncio.LimitOverrunError:
        raise BadRequest(f"the head of the request is larger than {MAX_HEAD} bytes") from None
    lines = head.decode("latin-1").strip().split("\r\n")
    words = lines[0].split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise BadRequest(f"no request line: {lines[0][:80]!r}")
    fields = tuple(_field(line) for line in lines[1:])
    bare = Request(words[0], words[1], words[2], fields, b"")
    if bare.header("expect").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    try:
        return replace(bare, body=await _body(reader, bare))
    except asyncio.IncompleteReadError:
        return None


def _field(line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    if not colon:
        raise BadRequest(f"no header: {line[:80]!r}")
    return name.strip(), value.strip()


async def _body(reader: WatchedReader, request: Request) -> bytes:
    if "chunked" in request.header("transfer-encoding").lower():
        return await _chunked(reader)
    length = request.header("content-length") or "0"
    if not length.isascii() or not length.isdigit() or int(length) > MAX_BODY:
        raise BadRequest(f"content-length is {length[:20]!r}")
    return await reader.readexactly(int(length))


async def _chunked(reader: WatchedReader) -> bytes:
    body = bytearray()
    while True:
        line = (await reader.readuntil(b"\n")).split(b";")[0].strip()
        try:
            size = int(line, 16)
        except ValueError:
            raise BadRequest(f"no chunk size: {line[:20]!r}") from None
        if size < 0 or len(body) + size > MAX_BODY:
            raise BadRequest(f"a body of more than {MAX_BODY} bytes")
        body += await reader.readexactly(size)
        end = await reader.readuntil(b"\n")
        if size == 0:
            while end.strip():  # trailers
                end = await reader.readuntil(b"\n")
            return bytes(body)


# -- heads of replies --------------------------------------------------------------------------

OURS = frozenset({"connection", "content-length", "date", "keep-alive", "transfer-encoding"})
"""Headers that are a connection's own, not the recording's."""


def head(
    version: str,
    status: int,
    reason: str,
    headers: Iterable[tuple[str, str]],
    *,
    now: float,
    ending: Sequence[tuple[str, str]],
) -> bytes:
    """Recorded headers in their order and case, dated `now`, with the connection's own (`ending`) last."""
    lines = [f"{version} {status} {reason}"]
    for name, value in headers:
        if name.lower() == "date":
            lines.append(f"{name}: {formatdate(now, usegmt=True)}")
        elif name.lower() not in OURS:
            lines.append(f"{name}: {value}")
    lines += [f"{name}: {value}" for name, value in ending]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


LAST_CHUNK = b"0\r\n\r\n"
