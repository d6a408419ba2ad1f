"""One client connection: HTTP/1.1 in, bounded in size and time; and how a connection is let go.

How it works. Twisted's HTTPChannel reads requests one after another and holds back what is pipelined.
This subclass adds what a gateway on an open port needs. A connection is in one `Phase` at a time:

    IDLE -> HEAD -> BODY -> REPLY -> IDLE ...        and from HEAD or BODY -> LINGER -> closed

Rules it keeps (each seen missing in Twisted 26.10):

- Whatever is wrong with a request is raised as a `Refusal` and caught in one place, `dataReceived`. A
  refused request never reaches the application, and nothing after it on that connection is read as one.
- A refused client may still be sending. Closing at once would reset the connection and take the reply with
  it, so we close our side, then read and drop what comes, for a bounded time.
- Every phase but REPLY has a timer, and bytes reset it only in BODY and LINGER: a head that trickles does not
  live longer than one that hangs.
- A client that does not read pauses `writable`; if it takes nothing for `write_stall` seconds it is cut.
- The end of the client's sending side means the client is gone: a closed connection looks the same until
  something is written to it, and an engine must not generate for nobody. What the application still answers
  is delivered all the same, so `printf 'GET /healthz ...' | nc` gets its reply.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import struct
import termios
from collections.abc import Callable, Iterable
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, NoReturn, cast

import daphne.server  # noqa: F401  (installs the asyncio reactor, before anything of Twisted's asks for one)
from twisted.internet.interfaces import IAddress, IHalfCloseableProtocol
from twisted.internet.protocol import connectionDone
from twisted.internet.tcp import Connection
from twisted.protocols.basic import LineReceiver
from twisted.python.failure import Failure
from twisted.web import http
from zope.interface import implementer  # type: ignore[attr-defined]  # says nothing of what it exports

from .exchange import Exchange
from .refusal import Refusal, head_too_large, malformed, too_large

if TYPE_CHECKING:
    from .server import PharosServer

log = logging.getLogger(__name__)

IDLE_S = (
    120.0  # clients' pools and balancers keep connections 60 s; the one who sends next should close first
)
HEAD_S = 30.0  # from the first byte of a request to the end of its headers
BODY_QUIET_S = 60.0  # between two pieces of a request's body
LINGER_QUIET_S = 5.0
LINGER_S = 30.0  # enough for 40 MiB at 11 Mbit/s

MAX_LINE_BYTES = 16 * 1024
MAX_HEAD_BYTES = 64 * 1024
MAX_HEADERS = 100

CONTROLS = bytes(c for c in range(32) if c != 9) + b"\x7f"


class Phase(Enum):
    IDLE = auto()
    HEAD = auto()
    BODY = auto()
    REPLY = auto()
    LINGER = auto()


@implementer(IHalfCloseableProtocol)
class Channel(http.HTTPChannel):
    MAX_LENGTH = MAX_LINE_BYTES
    totalHeadersSize = MAX_HEAD_BYTES
    maxHeaders = MAX_HEADERS
    requestFactory = Exchange  # type: ignore[assignment]
    _savedTimeOut = IDLE_S  # the timer Twisted sets again after each reply

    factory: Factory
    transport: Any  # a socket's, or TLS around one
    _path: bytes  # type: ignore[assignment]  # Twisted's own note of its type is wrong
    phase = Phase.IDLE
    timeOut: float | None  # type: ignore[assignment]  # seconds; Twisted notes whole ones
    _timer: Any = None
    _stall_call: Any = None
    _stalled_at: tuple[int, int] = (0, 0)
    _stalled_s = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.writable = asyncio.Event()
        self.writable.set()

    def connectionMade(self) -> None:
        super().connectionMade()
        self.factory.opened(self)

    # -- reading --------------------------------------------------------------------------------

    def dataReceived(self, data: bytes) -> None:
        if self.phase is Phase.LINGER:
            self.resetTimeout()
            return
        if self.phase is Phase.IDLE:
            self._enter(Phase.HEAD, HEAD_S)
        elif self.phase is Phase.BODY:
            self.resetTimeout()
        nested = self._busyReceiving
        try:
            LineReceiver.dataReceived(self, data)
            # Whole lines are taken by now, so a line feed that is left had no carriage return. Waiting for
            # one would read "GET / HTTP/1.1\nHost: ..." otherwise than a server in front of us may have.
            if not nested and self.line_mode and b"\n" in self._buffer:
                raise malformed("lines end with CR LF")
        except Refusal as refusal:
            self._refuse(refusal)

    def lineReceived(self, line: bytes) -> None:
        if line[:1] in (b" ", b"\t"):
            raise malformed("a header is folded over two lines")
        if self._receivedHeaderSize + len(line) > MAX_HEAD_BYTES:
            raise head_too_large(f"more than {MAX_HEAD_BYTES} bytes in all")
        super().lineReceived(line)

    def lineLengthExceeded(self, line: bytes) -> NoReturn:
        if not self.requests:
            raise Refusal(414, "uri_too_long", f"The request line is longer than {MAX_LINE_BYTES} bytes.")
        raise head_too_large(f"one is longer than {MAX_LINE_BYTES} bytes")

    def headerReceived(self, line: bytes) -> bool:
        if self._receivedHeaderCount >= MAX_HEADERS:
            raise head_too_large(f"more than {MAX_HEADERS} of them")
        name, _, value = line.partition(b":")
        name, value = name.lower(), value.strip(b" \t")
        if len(value.translate(None, CONTROLS)) != len(value):
            raise malformed("a header holds control characters")
        if name == b"transfer-encoding" and (value.lower() != b"chunked" or self._version != b"HTTP/1.1"):
            raise malformed("the only Transfer-Encoding taken is chunked, and only in HTTP/1.1")
        if name == b"content-length" and value.isdigit() and len(value) > 18:
            raise too_large(self.body_limit)
        return bool(super().headerReceived(line))

    def _failChooseTransferDecoder(self) -> NoReturn:
        raise malformed("the body's length must be given once: by one Content-Length or by chunked encoding")

    def _respondToBadRequestAndDisconnect(self) -> NoReturn:
        # Twisted calls this for all that it cannot parse. The line may hold a secret, so it is not quoted.
        raise malformed("the request line, a header or a chunk cannot be parsed")

    def allHeadersReceived(self) -> None:
        exchange: Exchange = self.requests[-1]
        hosts = exchange.requestHeaders.getRawHeaders(b"host") or []
        if len(hosts) > 1 or (not hosts and self._version == b"HTTP/1.1"):
            raise malformed("it needs exactly one Host header")
        if not self._path.isascii() or not self._path.startswith((b"/", b"http://", b"https://", b"*")):
            raise malformed("its target is not a path")
        if self.length is not None and self.length > self.body_limit:
            raise too_large(self.body_limit)
        super().allHeadersReceived()
        if self.length != 0:
            self._enter(Phase.BODY, BODY_QUIET_S)

    def checkPersistence(self, request: http.Request, version: bytes) -> bool:
        values = request.requestHeaders.getRawHeaders(b"connection") or []
        tokens = {token.strip().lower() for value in values for token in value.split(b",")}
        return version == b"HTTP/1.1" and b"close" not in tokens

    def allContentReceived(self) -> None:
        self._enter(Phase.REPLY, None)
        super().allContentReceived()

    def requestDone(self, request: http.Request) -> None:
        self.phase = Phase.IDLE
        super().requestDone(request)  # may start the next request, if it is here already

    @property
    def body_limit(self) -> int:
        return self.factory.server.body_limit

    # -- writing --------------------------------------------------------------------------------

    def writeSequence(self, iovec: Iterable[bytes]) -> None:
        """A chunk of a reply goes out now, if nothing waits before it. Twisted would first ask epoll whether
        the socket takes it: two system calls and a turn of the loop more for every token of every stream."""
        data, transport = b"".join(iovec), self.transport
        if isinstance(transport, Connection) and _nothing_waits(transport):
            sent = transport.writeSomeData(data)
            if isinstance(sent, int):  # else the connection is lost, which Twisted finds out by itself
                data = data[sent:]
        if data:
            transport.write(data)

    # -- the end --------------------------------------------------------------------------------

    # Twisted's own timers keep every cancelled call in a list until some timer fires; at a few calls for each
    # request that list was seen to cost 0.15 ms a request.

    def setTimeout(self, period: float | None) -> float | None:
        before, self.timeOut = self.timeOut, period
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if period is None else self.callLater(period, self._timed_out)
        return before

    def resetTimeout(self) -> None:
        if self._timer is not None:
            self.setTimeout(self.timeOut)

    def _timed_out(self) -> None:
        self._timer = None
        self.timeoutConnection()

    def _enter(self, phase: Phase, timeout_s: float | None) -> None:
        self.phase = phase
        self.setTimeout(timeout_s)

    def _refuse(self, refusal: Refusal) -> None:
        log.info("refused a request of %s: %d %s", self.getPeer(), refusal.status, refusal.message)
        self.requests.clear()
        self.clearLineBuffer()
        self.transport.write(refusal.reply())
        self._enter(Phase.LINGER, LINGER_QUIET_S)
        self._abortingCall = self.callLater(LINGER_S, self.forceAbortClient)
        # TLS cannot close one side alone.
        getattr(self.transport, "loseWriteConnection", self.loseConnection)()

    def timeoutConnection(self) -> None:
        if self.phase in (Phase.HEAD, Phase.BODY):
            self._refuse(
                Refusal(408, "request_timeout", "The request did not arrive in time. Send it again.")
            )
        else:
            self.loseConnection()

    def readConnectionLost(self) -> None:
        """The client closed its sending side (or everything: that looks the same from here)."""
        if self.phase is not Phase.REPLY:
            self.loseConnection()
            return
        # Reading stops now, and Twisted takes it up again after the reply: if nothing is left then, the end
        # is seen once more and closes the connection; if a pipelined request has begun, it is told as well.
        for exchange in self.requests:
            exchange.client_left()

    def writeConnectionLost(self) -> None:
        """We closed ours, in `_refuse`."""

    def loseConnection(self) -> None:
        super().loseConnection()
        self._watch_stall()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        super().connectionLost(reason)
        self.requests.clear()
        self.factory.closed(self)
        self._end_watch()
        self.writable.set()

    # -- clients that do not read -----------------------------------------------------------------

    def pauseProducing(self) -> None:
        super().pauseProducing()
        self.writable.clear()
        self._watch_stall()

    def resumeProducing(self) -> None:
        super().resumeProducing()
        self.writable.set()
        self._end_watch()

    def _watch_stall(self) -> None:
        if self._stall_call is None and self.transport is not None and not self.transport.disconnected:
            self._stalled_s, self._stalled_at = 0.0, self._unsent()
            self._stall_call = self.callLater(self._stall_step, self._check_stall)

    def _end_watch(self) -> None:
        if self._stall_call is not None:
            self._stall_call.cancel()
            self._stall_call = None

    @property
    def _stall_step(self) -> float:
        return self.factory.server.write_stall_s / 8

    def _check_stall(self) -> None:
        """A slow client is not a stalled one: it is cut when nothing at all went out for the whole time."""
        self._stall_call = None
        unsent = self._unsent()
        self._stalled_s = self._stalled_s + self._stall_step if unsent == self._stalled_at else 0.0
        self._stalled_at = unsent
        if self._stalled_s >= self.factory.server.write_stall_s:
            log.warning("%s has read nothing for %.0f s and is cut", self.getPeer(), self._stalled_s)
            self.transport.abortConnection()
        else:
            self._stall_call = self.callLater(self._stall_step, self._check_stall)

    def _unsent(self) -> tuple[int, int]:
        """Bytes waiting in Twisted's buffers, and in the kernel's (0 where it cannot be asked)."""
        transport = self.transport
        waiting = len(getattr(transport, "dataBuffer", b"")) - getattr(transport, "offset", 0)
        waiting += getattr(transport, "_tempDataLen", 0)
        try:
            answer = fcntl.ioctl(transport.getHandle().fileno(), termios.TIOCOUTQ, b"\0" * 4)
        except (OSError, AttributeError, ValueError):
            return waiting, 0
        return waiting, struct.unpack("i", answer)[0]


def _nothing_waits(transport: Connection) -> bool:
    return bool(
        transport.connected
        and not transport.TLS
        and not transport.disconnecting
        and not transport._writeDisconnected
        and not transport.dataBuffer
        and not transport._tempDataBuffer
    )


class Factory(http.HTTPFactory):
    """Makes channels. HTTP/2 and websocket protocols are never made: `Upgrade` is just a header."""

    protocol = Channel  # type: ignore[assignment]

    def __init__(self, server: PharosServer, later: Callable[..., Any]) -> None:
        """`later(seconds, call)` gives something with `cancel()`, as an event loop's `call_later` does."""
        super().__init__(timeout=IDLE_S)
        self.server = server
        self.later = later
        self.channels: set[Channel] = set()
        self.no_channels = asyncio.Event()
        self.no_channels.set()

    def buildProtocol(self, addr: IAddress | None) -> Channel:  # type: ignore[override]
        channel: Any = super().buildProtocol(addr)
        channel.callLater = self.later
        return cast(Channel, channel)

    def opened(self, channel: Channel) -> None:
        self.channels.add(channel)
        self.no_channels.clear()

    def closed(self, channel: Channel) -> None:
        self.channels.discard(channel)
        if not self.channels:
            self.no_channels.set()

    # Twisted formats a line of access log for every request, also when nobody reads it.
    def startFactory(self) -> None: ...

    def stopFactory(self) -> None: ...

    def log(self, request: http.Request) -> None: ...
