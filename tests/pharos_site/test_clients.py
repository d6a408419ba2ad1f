"""Clients that send too much, read too little, leave, or just wait."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

import pytest

from pharos_site import channel
from tests.pharos_site.conftest import Start
from tests.pharos_site.raw import Client, Process

MIB = 1 << 20


def soon(value: Callable[[], Any], within: float = 3) -> Any:
    """The first true `value()`."""
    deadline = time.monotonic() + within
    while not (got := value()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return got


# -- too much -----------------------------------------------------------------------------------


def test_an_upload_of_40_mib_is_refused_before_it_is_sent(client: Client) -> None:
    client.send(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % (40 * MIB))
    reply = client.reply()
    assert (reply.status, reply.error) == (413, "request_too_large")
    assert client.closed()


def test_chunks_are_refused_as_soon_as_they_pass_the_limit(client: Client) -> None:
    client.send(b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n")
    for _ in range(32):
        client.send(b"100000\r\n" + b"x" * MIB + b"\r\n")
    client.send(b"1\r\nx\r\n")
    assert client.reply().status == 413


def test_a_body_of_exactly_the_limit_passes(client: Client) -> None:
    client.ask("POST", "/", b"x" * (32 * MIB))
    assert client.reply().json["size"] == 32 * MIB


def test_a_client_that_first_sends_everything_can_read_its_413(server: Process) -> None:
    before = server.rss()
    with server.client() as client:
        client.ask("POST", "/", b"x" * (40 * MIB))
        assert client.reply().status == 413
    assert server.rss() - before < 20 * MIB


def test_what_follows_a_refusal_is_never_read_as_a_request(client: Client) -> None:
    client.send(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % (40 * MIB))
    client.send(b"GET /second HTTP/1.1\r\nHost: h\r\n\r\n")
    assert client.reply().status == 413
    assert client.closed()


# -- too little ---------------------------------------------------------------------------------


def test_a_client_that_does_not_read_costs_little_memory_and_is_cut(server: Process) -> None:
    before = server.rss()
    with server.client(receive_buffer=8192) as client:
        client.ask("GET", "/stream?n=3200&size=65536")  # 200 MiB
        client.until(b"000000 ")
        grown = []
        while server.get("/debug/held")["running"]:
            grown.append(server.rss() - before)
            assert len(grown) < 60, "not cut after 6 s; the limit is 1 s"
            time.sleep(0.1)
        assert len(grown) > 5, "cut before its second"
        assert max(grown) < 20 * MIB


def test_a_client_that_reads_slowly_gets_everything(server: Process) -> None:
    """It takes more than twice the second that a stalled client has."""
    with server.client(receive_buffer=8192) as client:
        client.ask("GET", "/stream?n=200&size=65536")
        for _ in range(24):
            time.sleep(0.1)
            client.buffer += client.socket.recv(4096)
        reply = client.reply()
    assert reply.whole
    assert len(reply.body) == 200 * 65536


def test_a_client_that_never_reads_the_last_bytes_does_not_keep_its_connection(server: Process) -> None:
    with server.client(receive_buffer=4096) as client:
        held = server.get("/debug/held")["channels"]
        client.ask("GET", "/stream?n=1&size=8000000", None, "Connection: close")
        assert soon(lambda: server.get("/debug/held")["channels"] < held, 6)


# -- gone -----------------------------------------------------------------------------------------


def leave_by_close(client: Client) -> None:
    client.socket.close()


def leave_by_reset(client: Client) -> None:
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.socket.close()


def leave_by_half(client: Client) -> None:
    client.socket.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize("quiet", ["", "&quiet"], ids=["in its reply", "before its reply"])
@pytest.mark.parametrize("leave", [leave_by_close, leave_by_reset, leave_by_half])
def test_a_client_that_leaves_is_noticed_within_100_ms(
    leave: Callable[[Client], None], quiet: str, server: Process
) -> None:
    name = f"{leave.__name__}{len(quiet)}"
    with server.client() as client:
        client.ask("GET", f"/watch?id={name}{quiet}")
        if quiet:
            assert soon(lambda: server.get("/debug/held")["running"])
        else:
            client.until(b"here")
        left = time.time()
        leave(client)
        told = soon(lambda: server.get(f"/told?id={name}"))
    assert told - left < 0.1
    assert soon(lambda: server.get("/debug/held")["running"] == 0)


def test_a_client_that_closed_its_sending_side_still_gets_what_is_answered(client: Client) -> None:
    client.ask("GET", "/")
    client.socket.shutdown(socket.SHUT_WR)
    assert client.reply().status == 200
    assert client.closed()


def test_a_late_answer_reaches_a_half_closed_client(client: Client) -> None:
    client.ask("GET", "/watch?id=late&quiet&answer")
    client.socket.shutdown(socket.SHUT_WR)
    assert client.reply().json == {"late": True}


def test_pipelined_requests_before_a_half_close_are_all_answered(client: Client) -> None:
    client.send(b"GET /deaf?s=0.1 HTTP/1.1\r\nHost: h\r\n\r\nGET /two HTTP/1.1\r\nHost: h\r\n\r\n")
    client.socket.shutdown(socket.SHUT_WR)
    assert client.reply().json == "at last"
    assert client.reply().json["path"] == "/two"
    assert client.closed()


def test_a_stream_to_a_stalled_client_that_leaves_ends_at_once(server: Process) -> None:
    client = server.client(receive_buffer=8192)
    client.ask("GET", "/stream?n=3200&size=65536")
    client.until(b"000000 ")
    time.sleep(0.3)
    leave_by_reset(client)
    assert soon(lambda: server.get("/debug/held")["running"] == 0, 1)


def test_a_client_that_leaves_with_half_a_request_leaves_nothing(server: Process) -> None:
    held = server.get("/debug/held")["channels"]
    with server.client() as client:
        client.send(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\nhalf")
        time.sleep(0.05)
    assert soon(lambda: server.get("/debug/held")["channels"] <= held)
    assert server.get("/debug/held")["exchanges"] == 0


# -- waiting ----------------------------------------------------------------------------------------


def test_idle_connections_outlive_what_clients_and_balancers_keep() -> None:
    assert channel.IDLE_S >= 75
    assert channel.HEAD_S == 30


@pytest.mark.slow
def test_a_connection_that_is_idle_for_75_s_serves_another_request(server: Process) -> None:
    with server.client() as used, server.client() as fresh:
        used.ask("GET", "/one")
        used.reply()
        time.sleep(75)
        for client in (used, fresh):
            client.ask("GET", "/two")
            assert client.reply().json["path"] == "/two"


@pytest.mark.slow
def test_a_head_that_trickles_for_30_s_is_refused(server: Process) -> None:
    with server.client() as client:
        begun = time.monotonic()
        with contextlib.suppress(OSError):
            for byte in b"GET / HTTP/1.1\r\n" + b"X-A: " + b"a" * 100:
                client.send(bytes([byte]))
                client.socket.settimeout(0.5)
                with contextlib.suppress(TimeoutError):
                    if client.closed(0.5) or client.buffer:
                        break
        client.socket.settimeout(10)
        assert client.reply().status == 408
        assert 29 < time.monotonic() - begun < 33
        assert client.closed()


@pytest.mark.slow
def test_a_stream_longer_than_every_timer_of_a_connection_is_left_alone(server: Process) -> None:
    with server.client() as client:
        client.socket.settimeout(150)
        client.ask("GET", "/deaf?s=130")
        assert client.reply().json == "at last"


def test_200_clients_at_once_are_all_served(server: Process) -> None:
    clients = [server.client() for _ in range(200)]
    for client in clients:
        client.ask("GET", "/stream?n=3&gap=0.1")
    bodies = {client.reply().body for client in clients}
    for client in clients:
        client.socket.close()
    assert bodies == {b"000000 x000001 x000002 x"}
    assert soon(lambda: server.get("/debug/held")["exchanges"] == 0)


def test_an_application_that_goes_on_for_nobody_is_ended_after_its_time(start: Start) -> None:
    server = start(
        command=(
            "daphne",
            "--application-close-timeout",
            "1",
            "-p",
            "0",
            "tests.pharos_site.app:application",
        ),
        wait=False,
    )
    port = int(soon(lambda: server.said().partition("http://127.0.0.1:")[2], 15))
    with Client(port) as client:
        client.ask("GET", "/deaf?s=60")
    server.port = port
    assert soon(lambda: server.get("/debug/held")["running"] == 0, 3)
