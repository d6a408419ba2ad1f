"""One request and its reply: Twisted's calls on one side, ASGI messages on the other.

Rules it keeps:

- The application gets the whole body in one message. It was bounded while it was read, and it belongs to
  nobody else once handed over.
- `send` waits while the client does not read. After the client left it does nothing, as in other servers.
- A reply that was started ends as the application said, or visibly broken, never in between: too few or too
  many bytes, an exception, or an application that just returns cut the connection.
- Once the application has returned nothing refers to the exchange any more, so it goes without the garbage
  collector (a collection under load was seen to take 46 ms).

The extension `scope["extensions"]["pharos.connection"]` is a dict with one entry, `abort`: a callable without
arguments that ends the connection now. What was sent before still arrives; the reply's end does not, so the
client sees an incomplete read. `send` does nothing after it. Other servers do not offer it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, MutableMapping
from io import BytesIO
from time import perf_counter
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import daphne.server  # noqa: F401  (installs the asyncio reactor first)
from daphne.utils import parse_x_forwarded_for
from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.interfaces import IAddress
from twisted.python.failure import Failure
from twisted.web import http

from gateway.asgi import CONNECTION

from .refusal import Refusal, too_large

if TYPE_CHECKING:
    from .channel import Channel
    from .server import PharosServer

log = logging.getLogger(__name__)

BREAKS = b"\r\n\0"


class Exchange(http.Request):
    channel: Channel | None  # type: ignore[assignment]  # None once the exchange is over

    def __init__(self, channel: Channel, queued: object = False) -> None:
        super().__init__(channel, parsePOSTFormSubmission=False)  # bodies are the application's to read
        self.server: PharosServer = channel.factory.server
        self.gone = asyncio.Event()
        self._received = BytesIO()
        self.task: asyncio.Task[None] | None = None
        self._body: bytes | None = None
        self._started = False
        self._cut = False
        self._bodyless = False
        self._left: int | None = None  # bytes the reply still owes; None: not declared
        self._kill: asyncio.TimerHandle | None = None
        self._began = 0.0

    # -- what the channel tells us ------------------------------------------------------------------

    def gotLength(self, length: int | None) -> None:
        """Twisted would put a large body into a temporary file here."""

    def parseCookies(self) -> None:
        """Nobody asks for them."""

    def handleContentChunk(self, data: bytes) -> None:
        if self._received.tell() + len(data) > self.server.body_limit:
            raise too_large(self.server.body_limit)
        self._received.write(data)

    def requestReceived(self, command: bytes, path: bytes, version: bytes) -> None:
        self.method, self.uri, self.clientproto = command, path, version
        self._body = self._received.getvalue()
        del self._received
        self._began = perf_counter()
        self.server.answer(self)

    def connectionLost(self, reason: Failure) -> None:
        self.channel = None
        self.client_left()

    def client_left(self) -> None:
        """Tell the application, and end it if it does not care."""
        self.gone.set()
        if self.task is not None and self._kill is None:
            delay = self.server.application_close_timeout
            self._kill = asyncio.get_running_loop().call_later(delay, self.task.cancel)

    # -- what the application sees ------------------------------------------------------------------

    def scope(self) -> dict[str, Any]:
        target, _, query = self.uri.partition(b"?")
        if not target.startswith((b"/", b"*")):  # http://host/path, as sent to a proxy
            target = b"/" + target.partition(b"://")[2].partition(b"/")[2]
        client, scheme = self._client()
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": self.clientproto[5:].decode("ascii"),
            "method": self.method.decode("ascii"),
            "scheme": scheme,
            "path": unquote(target.decode("ascii")),
            "raw_path": target,
            "query_string": query,
            "root_path": self.server.root_path,
            "headers": [
                (name.lower(), value)
                for name, values in self.requestHeaders.getAllRawHeaders()
                if b"_"
                not in name  # X_Forwarded_For and X-Forwarded-For are one name to some (CVE-2015-0219)
                for value in values
            ],
            "client": client,
            "server": _address(self.host),
            "extensions": {CONNECTION: {"abort": self.abort}},
        }

    def _client(self) -> tuple[list[Any] | None, str]:
        client, scheme = _address(self.client), "https" if self.isSecure() else "http"
        server = self.server
        if server.proxy_forwarded_address_header:
            try:
                client, scheme = parse_x_forwarded_for(
                    self.requestHeaders,
                    server.proxy_forwarded_address_header,
                    server.proxy_forwarded_port_header,
                    server.proxy_forwarded_proto_header,
                    client,
                    scheme,
                )
            except ValueError:  # not text; the header is the proxy's, so its address will do
                log.debug("unreadable %s header", server.proxy_forwarded_address_header)
        return client, scheme

    async def receive(self) -> dict[str, Any]:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: MutableMapping[str, Any]) -> None:
        while self.channel is not None and not self.channel.writable.is_set():
            await self.channel.writable.wait()
        if self._cut or (self.channel is None and not self.finished):
            return
        kind = message["type"]
        if kind == "http.response.start" and not self._started:
            self._start(message["status"], message.get("headers", ()))
        elif kind == "http.response.body" and self._started and not self.finished:
            self._piece(bytes(message.get("body", b"")), message.get("more_body", False))
        else:
            raise RuntimeError(f"the application sent {kind!r} out of turn")

    def abort(self) -> None:
        if self._cut or self.finished or self.channel is None:
            return
        self._cut = True
        self.gone.set()
        if self.chunked or self._left:
            # The missing end shows in the framing, so what was written may still go out before the end: an
            # error event for people is worth more than the 0.1 ms that a reset would save.
            self.channel.loseConnection()
        else:
            self.channel.transport.abortConnection()

    # -- the reply ----------------------------------------------------------------------------------

    def _start(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        assert self.channel is not None
        self.code, lines = status, []
        close, name_us = self.server.draining, bool(self.server.server_name)
        for name, value in headers:
            line = name + b": " + value
            if len(line.translate(None, BREAKS)) != len(line):
                raise ValueError(f"the reply's header {name!r} holds a line break")
            match name.lower():
                case b"content-length":
                    self._left = int(value)
                case b"transfer-encoding":
                    continue  # framing is decided here
                case b"connection":
                    close = close or b"close" in value.lower()
                    continue
                case b"server":
                    name_us = False
            lines.append(line)
        self._started = True
        self._bodyless = self.method == b"HEAD" or status in http.NO_BODY_CODES or status < 200
        if self._left is None and not self._bodyless:
            self.chunked = int(self.clientproto == b"HTTP/1.1")
            if self.chunked:
                lines.append(b"transfer-encoding: chunked")
        if name_us:
            lines.append(b"server: " + self.server.server_name.encode())
        if close or not (self.chunked or self._bodyless or self._left is not None):
            self.channel.persistent = False
        if not self.channel.persistent:
            lines.append(b"connection: close")
        phrase = http.RESPONSES.get(status, b"")
        head = b"%s %d %s\r\n%s\r\n\r\n" % (self.clientproto, status, phrase, b"\r\n".join(lines))
        self.startedWriting = 1
        self.channel.write(head)

    def _piece(self, data: bytes, more: bool) -> None:
        assert self.channel is not None
        if self._bodyless:
            data, self._left = b"", None
        elif self._left is not None:
            self._left -= len(data)
            if self._left < 0 or (self._left and not more):
                raise RuntimeError(
                    f"the reply's body and its content-length differ by {abs(self._left)} bytes"
                )
        if data:
            self.sentLength += len(data)
            self.channel.writeSequence((b"%x\r\n" % len(data), data, b"\r\n") if self.chunked else (data,))
        if not more:
            self._finish()

    def _finish(self) -> None:
        assert self.channel is not None
        if self.chunked:
            self.channel.write(b"0\r\n\r\n")
        self.finished = 1
        self.gone.set()
        if self.server.action_logger is not None:
            self.server.log_action("http", "complete", self._access_line())
        channel, self.channel = self.channel, None
        channel.requestDone(self)

    def _access_line(self) -> dict[str, Any]:
        client = _address(self.client)
        return {
            "path": self.uri.decode("ascii"),
            "status": self.code,
            "method": self.method.decode("ascii"),
            "client": f"{client[0]}:{client[1]}" if client else None,
            "time_taken": perf_counter() - self._began,
            "size": self.sentLength,
        }

    # -- after the application ----------------------------------------------------------------------

    def ended(self, task: asyncio.Task[None]) -> None:
        """The application returned, raised or was cancelled: whatever it left open is closed here."""
        self.server.exchanges.discard(self)
        self.task = None
        self._body = None
        if self._kill is not None:
            self._kill.cancel()
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("%s %s failed: %s", self.method.decode(), self._path(), error, exc_info=error)
        if self.finished or self.channel is None:
            return
        if self._started or self.gone.is_set():
            if error is None and not self.gone.is_set():
                log.error("the reply to %s %s was never finished", self.method.decode(), self._path())
            self.abort()
        elif self.server.draining:
            self._answer(Refusal(503, "stopping", "The gateway is being stopped. Try again.", "server_error"))
        else:
            self._answer(
                Refusal(500, "internal_error", "The gateway failed; its log says why.", "server_error")
            )

    def _answer(self, refusal: Refusal) -> None:
        retry = [(b"retry-after", b"1")] if refusal.status == 503 else []
        self._start(refusal.status, [*refusal.headers(), *retry])
        self._piece(refusal.body(), more=False)

    def _path(self) -> str:
        return self.uri.partition(b"?")[0].decode("ascii", "replace")  # a query may hold a key


def _address(address: IAddress) -> list[Any] | None:
    """None for a Unix socket."""
    return [address.host, address.port] if isinstance(address, IPv4Address | IPv6Address) else None
