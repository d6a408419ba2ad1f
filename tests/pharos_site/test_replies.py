"""How a reply reaches the client, whole or visibly broken."""

from __future__ import annotations

import pytest

from tests.pharos_site.raw import Client, Process


def test_a_stream_arrives_piece_by_piece_and_ends_cleanly(client: Client) -> None:
    client.ask("GET", "/stream?n=3&gap=0.1")
    assert client.until(b"000000 x")
    assert b"000002" not in client.buffer  # the last piece was not waited for
    client.until(b"000002 x\r\n0\r\n\r\n")


def test_head_has_no_body_and_the_connection_lives_on(client: Client) -> None:
    for path in ("/", "/stream?n=5"):
        client.ask("HEAD", path)
        assert client.reply("HEAD").status == 200
    client.ask("GET", "/after")
    assert client.reply().json["path"] == "/after"


@pytest.mark.parametrize("status", [204, 304])
def test_statuses_without_a_body_have_none(status: int, client: Client) -> None:
    client.ask("GET", f"/empty?status={status}")
    assert client.reply().status == status
    client.ask("GET", "/after")
    assert client.reply().json["path"] == "/after"


def test_an_http_1_0_client_gets_no_chunks_and_a_close(client: Client) -> None:
    client.send(b"GET /stream?n=3 HTTP/1.0\r\n\r\n")
    reply = client.reply()
    assert "transfer-encoding" not in reply.headers
    assert reply.body == b"000000 x000001 x000002 x"


def test_a_reply_that_is_cut_is_an_incomplete_read_with_all_that_was_sent(client: Client) -> None:
    client.ask("GET", "/cut")
    reply = client.reply()
    assert (reply.body, reply.whole) == (b"before the end", False)


def test_a_cut_reply_of_declared_length_is_short(client: Client) -> None:
    client.ask("GET", "/cut?length")
    reply = client.reply()
    assert (reply.body, reply.whole) == (b"before the end", False)


def test_a_cut_reply_to_an_http_1_0_client_is_a_reset(client: Client) -> None:
    """Its end is the end of the connection, so a clean close would look like a whole reply."""
    client.send(b"GET /cut HTTP/1.0\r\n\r\n")
    received = iter(lambda: client.socket.recv(100), b"")
    with pytest.raises(ConnectionResetError):
        list(received)


@pytest.mark.parametrize("path", ["/raise", "/return", "/split"])
def test_an_application_that_fails_before_its_reply_is_a_500_in_json(path: str, client: Client) -> None:
    client.ask("GET", path)
    reply = client.reply()
    assert (reply.status, reply.error) == (500, "internal_error")
    assert b"mistake" not in reply.body
    client.ask("GET", "/after")
    assert client.reply().json["path"] == "/after"


@pytest.mark.parametrize("path", ["/raise?late", "/return?late"])
def test_an_application_that_fails_in_its_reply_cuts_it(path: str, client: Client) -> None:
    client.ask("GET", path)
    reply = client.reply()
    assert (reply.body, reply.whole) == (b"so far", False)


@pytest.mark.parametrize("says", ["5", "20"])
def test_a_body_that_differs_from_its_length_never_looks_whole(says: str, client: Client) -> None:
    client.ask("GET", f"/wrong-length?says={says}")
    assert not client.reply().whole


def test_a_path_of_django_that_does_not_exist_is_a_404_without_a_database(client: Client) -> None:
    client.ask("GET", "/django/nothing")
    assert client.reply().status == 404


def test_finished_requests_are_gone_at_once_and_without_the_garbage_collector(server: Process) -> None:
    server.get("/debug/gc?on=0")
    try:
        for _ in range(20):
            with server.client() as client:
                for _ in range(50):
                    client.ask("POST", "/", b"x" * 1000)
                    assert client.reply().status == 200
        held = server.get("/debug/held")
    finally:
        server.get("/debug/gc?on=1")
    assert (held["exchanges"], held["objects"], held["running"]) == (0, 0, 0)
    assert held["channels"] <= 2  # the one that asks, and one whose end is not read yet
    assert held["connection_objects"] <= 1


def test_everything_loaded_is_out_of_the_garbage_collectors_sight(server: Process) -> None:
    assert server.get("/debug/held")["frozen"] > 10_000
