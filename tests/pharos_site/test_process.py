"""How the process starts, is told to stop, and ends."""

from __future__ import annotations

import signal
import time

import pytest

from tests.pharos_site.conftest import Start
from tests.pharos_site.raw import Client, Process, free_port
from tests.pharos_site.test_clients import soon

APP = "tests.pharos_site.app:application"


# -- the end ------------------------------------------------------------------------------------


def test_told_to_stop_it_ends_streams_whole_takes_new_requests_in_its_grace_and_exits_0(start: Start) -> None:
    server = start(TEST_GRACE="1")
    with server.client() as streaming, server.client() as idle, server.client() as quick:
        idle.ask("GET", "/idle")
        idle.reply()
        streaming.ask("GET", "/stream?n=30&gap=0.1")
        streaming.until(b"000000 x")
        server.signal()
        time.sleep(0.3)

        quick.ask("GET", "/new")  # on a connection from before
        reply = quick.reply()
        assert reply.json["draining"]
        assert reply.headers["connection"] == "close"
        assert server.get("/newer")["draining"]  # on a new one

        assert idle.closed(1.5)
        assert soon(lambda: not listens(server.port), 2)
        assert server.process.poll() is None, "ended before its stream"
        streaming.until(b"000029 x\r\n0\r\n\r\n")
    assert server.wait() == 0
    assert "stopped" in server.said()
    assert "Traceback" not in server.said()
    assert "destroyed" not in server.said()


def test_the_last_bytes_of_a_slow_reader_are_not_lost_when_the_process_ends(start: Start) -> None:
    server = start(TEST_GRACE="0.1")
    with server.client(receive_buffer=8192) as client:
        client.ask("GET", "/stream?n=1&size=16000000")
        client.until(b"000000 ")
        server.signal()
        time.sleep(0.6)
        reply_rest = b""
        while data := client.socket.recv(65536):
            reply_rest += data
    assert reply_rest.endswith(b"x\r\n0\r\n\r\n")
    assert server.wait() == 0


def test_a_second_signal_ends_at_once_with_a_stream_in_flight(start: Start) -> None:
    server = start()
    with server.client() as client:
        client.ask("GET", "/stream?n=1000&gap=0.1")
        client.until(b"000000 x")
        server.signal()
        time.sleep(0.2)
        assert server.process.poll() is None
        server.signal()
        assert server.wait(1) == -signal.SIGTERM


def test_a_closed_terminal_lets_a_stream_end_whole(start: Start) -> None:
    server = start(TEST_GRACE="0.1")
    with server.client() as client:
        client.ask("GET", "/stream?n=10&gap=0.05")
        client.until(b"000000 x")
        server.process.send_signal(signal.SIGHUP)
        client.until(b"000009 x\r\n0\r\n\r\n")
    assert server.wait() == 0


def test_ctrl_c_with_nothing_in_flight_ends_within_the_grace(start: Start) -> None:
    server = start(TEST_GRACE="0.1")
    with server.client() as idle:
        server.signal(signal.SIGINT)
        assert server.wait(3) == 0
        assert idle.closed()


def test_requests_that_outlast_the_drain_are_cut_and_the_process_still_ends_with_0(start: Start) -> None:
    server = start(TEST_GRACE="0.1", TEST_DRAIN="0.3")
    with server.client() as streaming, server.client() as waiting:
        streaming.ask("GET", "/stream?n=1000&gap=0.1")
        streaming.until(b"000000 x")
        waiting.ask("GET", "/deaf?s=60")
        assert soon(lambda: server.get("/debug/held")["running"] == 2)
        server.signal()
        assert server.wait(5) == 0
        assert not streaming.reply_rest_is_whole()
        reply = waiting.reply()
        assert (reply.status, reply.error, reply.headers["retry-after"]) == (503, "stopping", "1")


# -- the beginning ------------------------------------------------------------------------------


def test_a_failed_start_says_why_in_one_line_and_exits_1(start: Start) -> None:
    server = start(wait=False, TEST_FAIL="the state file /x cannot be read")
    assert server.wait() == 1
    assert "Pharos did not start: OSError: the state file /x cannot be read" in server.said()
    assert "Traceback" not in server.said()
    assert not listens(server.port)


def test_a_port_that_is_taken_says_so_and_exits_1(start: Start, server: Process) -> None:
    second = start(wait=False, port=server.port)
    assert second.wait() == 1
    assert f"127.0.0.1:{server.port}" in second.said()
    assert "in use" in second.said()
    assert "Traceback" not in second.said()
    assert "stopped" in second.said()


def test_without_an_address_on_the_command_line_the_configs_is_used(start: Start) -> None:
    port = free_port()
    server = start(command=("daphne", APP), port=port, TEST_LISTEN=str(port))
    assert server.get("/here")["path"] == "/here"
    assert f"Pharos serves http://127.0.0.1:{port}" in server.said()
    assert "8000" not in server.said()


def test_the_log_holds_no_requests_unless_asked(start: Start, server: Process) -> None:
    server.get("/secret?key=abc")
    assert "secret" not in server.said()
    port = free_port()
    asked = start(command=("daphne", "--access-log", "-", "-p", str(port), APP), port=port)
    asked.get("/seen")
    assert soon(lambda: '"GET /seen" 200' in asked.said())


@pytest.mark.parametrize("level", ["warning", "nonsense"])
def test_the_log_level_comes_from_the_environment(level: str, start: Start) -> None:
    if level == "nonsense":
        server = start(wait=False, PHAROS_LOG_LEVEL=level)
        assert server.wait() != 0
        assert "PHAROS_LOG_LEVEL" in server.said()
    else:
        server = start(PHAROS_LOG_LEVEL=level)
        assert "INFO" not in server.said()


# -- another server -------------------------------------------------------------------------------


def test_another_asgi_server_serves_the_same_application(start: Start) -> None:
    port = free_port()
    server = start(command=("uvicorn", "--port", str(port), "--lifespan", "on", APP), port=port)
    seen = server.get("/hello")
    assert (seen["path"], seen["extensions"]) == ("/hello", [])
    with server.client() as client:
        client.ask("GET", "/django/nothing")
        assert client.reply().status == 404
    server.signal()
    server.wait()
    assert "stopped" in server.said()


def test_another_asgi_server_tells_why_it_did_not_start(start: Start) -> None:
    server = start(command=("uvicorn", "--port", "0", APP), wait=False, TEST_FAIL="no such folder")
    assert server.wait() != 0
    assert "no such folder" in server.said()


def listens(port: int) -> bool:
    try:
        Client(port).socket.close()
    except OSError:
        return False
    return True
