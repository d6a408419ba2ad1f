"""When a connection is given up, told on a clock of its own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.task import Clock

from pharos_site.channel import BODY_QUIET_S, HEAD_S, IDLE_S, LINGER_QUIET_S, LINGER_S, Channel, Factory

STALL_S = 60.0


class Transport:
    """A socket whose client takes what the test says."""

    def __init__(self) -> None:
        self.dataBuffer, self.offset = b"", 0
        self.disconnected = self.disconnecting = 0
        self.written: list[bytes] = []
        self.closing = self.aborted = False

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def loseConnection(self) -> None:  # noqa: N802
        self.closing = True

    def loseWriteConnection(self) -> None:  # noqa: N802
        """As much of an end as these tests ask about."""

    def abortConnection(self) -> None:  # noqa: N802
        self.aborted = True

    def getPeer(self) -> str:  # noqa: N802
        return "a client"

    def getHost(self) -> str:  # noqa: N802
        return "here"

    def pauseProducing(self) -> None: ...  # noqa: N802

    def registerProducer(self, producer: object, streaming: bool) -> None: ...  # noqa: N802

    def unregisterProducer(self) -> None: ...  # noqa: N802


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def channel(clock: Clock) -> Channel:
    server: Any = SimpleNamespace(write_stall_s=STALL_S, body_limit=1000)
    made: Channel = Factory(server, clock.callLater).buildProtocol(None)
    transport: Any = Transport()
    made.makeConnection(transport)  # type: ignore[no-untyped-call]
    return made


def test_a_client_that_takes_nothing_for_the_stall_time_is_cut(clock: Clock, channel: Channel) -> None:
    channel.transport.dataBuffer = b"x" * 100_000
    channel.pauseProducing()
    clock.pump([1] * 59)
    assert not channel.transport.aborted
    clock.pump([1] * 10)
    assert channel.transport.aborted


def test_a_client_that_takes_a_byte_now_and_then_is_not_cut(clock: Clock, channel: Channel) -> None:
    channel.transport.dataBuffer = b"x" * 100_000
    channel.pauseProducing()
    for _ in range(20):
        channel.transport.offset += 1
        clock.pump([1] * 50)
    assert not channel.transport.aborted


def test_a_client_that_reads_again_starts_afresh(clock: Clock, channel: Channel) -> None:
    for _ in range(3):
        channel.pauseProducing()
        clock.pump([1] * 50)
        channel.resumeProducing()
    assert not channel.transport.aborted
    assert channel.writable.is_set()


def test_a_client_that_never_takes_the_last_bytes_is_cut_too(clock: Clock, channel: Channel) -> None:
    channel.transport.dataBuffer = b"x" * 1000
    channel.loseConnection()
    clock.pump([1] * 70)
    assert channel.transport.aborted


def test_an_idle_connection_is_closed_after_its_time_and_not_before(clock: Clock, channel: Channel) -> None:
    clock.advance(IDLE_S - 1)
    assert not channel.transport.closing
    clock.advance(2)
    assert channel.transport.closing
    assert not channel.transport.written


def test_a_head_that_is_not_whole_in_30_s_is_refused_however_it_trickles(
    clock: Clock, channel: Channel
) -> None:
    for byte in b"GET / HTTP/1.1\r\nX-A: abcdef":
        channel.dataReceived(bytes([byte]))
        clock.advance(1)
    assert not channel.transport.written
    clock.advance(HEAD_S)
    assert channel.transport.written[0].startswith(b"HTTP/1.1 408 ")


def refused(channel: Channel) -> None:
    channel.dataReceived(b"nonsense\r\n")
    assert channel.transport.written[0].startswith(b"HTTP/1.1 400 ")


def test_a_refused_client_that_is_quiet_is_let_go_after_5_s(clock: Clock, channel: Channel) -> None:
    refused(channel)
    clock.advance(LINGER_QUIET_S + 1)
    assert channel.transport.closing


def test_a_refused_client_that_never_ends_is_cut_after_30_s(clock: Clock, channel: Channel) -> None:
    refused(channel)
    for _ in range(int(LINGER_S) - 1):
        channel.dataReceived(b"x" * 1000)
        clock.advance(1)
    assert not channel.transport.closing
    assert not channel.transport.aborted
    clock.advance(2)
    assert channel.transport.aborted
    assert len(channel.transport.written) == 1


def test_a_body_that_stops_coming_is_refused(clock: Clock, channel: Channel) -> None:
    channel.dataReceived(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\n")
    for _ in range(3):
        clock.advance(BODY_QUIET_S - 1)
        channel.dataReceived(b"x")
    assert not channel.transport.written
    clock.advance(BODY_QUIET_S + 1)
    assert channel.transport.written[0].startswith(b"HTTP/1.1 408 ")
