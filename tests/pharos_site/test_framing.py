"""What a client may send, and what is refused before anything behind the server sees it."""

from __future__ import annotations

import pytest

from tests.pharos_site.raw import Client, Process

REFUSED = {
    "length and chunked": b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked and length": b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "two lengths": b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
    "lengths in a list": b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5, 6\r\n\r\nhello!",
    "signed length": b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: +5\r\n\r\nhello",
    "chunked in HTTP/1.0": b"POST / HTTP/1.0\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "identity": b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: identity\r\nContent-Length: 1\r\n\r\nx",
    "gzip, chunked": b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "folded header": b"GET / HTTP/1.1\r\nHost: h\r\nX-A: b\r\n c: d\r\n\r\n",
    "folded length": b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length:\r\n 5\r\n\r\nhello",
    "bare line feeds": b"GET / HTTP/1.1\nHost: h\n\n",
    "a bare line feed in a header": b"GET / HTTP/1.1\r\nHost: h\r\nX-A: b\nX-C: d\r\n\r\n",
    "a bare carriage return": b"GET / HTTP/1.1\r\nHost: h\r\nX-A: b\rX-C: d\r\n\r\n",
    "NUL in a name": b"GET / HTTP/1.1\r\nHost: h\r\nX\0A: b\r\n\r\n",
    "an escape in a value": b"GET / HTTP/1.1\r\nHost: h\r\nX-A: \x1b[2J\r\n\r\n",
    "NUL in a value": b"GET / HTTP/1.1\r\nHost: h\r\nX-A: b\0\r\n\r\n",
    "space before the colon": b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length : 5\r\n\r\nhello",
    "no colon": b"GET / HTTP/1.1\r\nHost: h\r\nnonsense\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\nHost: h\r\nHost: i\r\n\r\n",
    "chunk size no number": b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n\r\n",
    "chunk size signed": b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n0\r\n\r\n",
    "chunk size 0x5": b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n",
    "chunk longer than said": b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhello\r\n0\r\n\r\n",
    "target not ASCII": b"GET /\xa0 HTTP/1.1\r\nHost: h\r\n\r\n",
    "target no path": b"GET here HTTP/1.1\r\nHost: h\r\n\r\n",
    "unknown version": b"GET / HTTP/2.0\r\nHost: h\r\n\r\n",
    "TLS on a plain port": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n",
}


@pytest.mark.parametrize("sent", REFUSED.values(), ids=REFUSED)
def test_ambiguous_or_malformed_requests_get_400_and_the_connection_closes(
    sent: bytes, client: Client
) -> None:
    client.send(sent + b"GET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n")
    reply = client.reply()
    assert (reply.status, reply.error, reply.headers["connection"]) == (400, "bad_request", "close")
    assert client.closed()


def test_lines_that_end_in_bare_line_feeds_are_refused_at_once_and_not_waited_for(client: Client) -> None:
    client.send(b"GET / HTTP/1.1\nHost: h\n\n")
    assert client.reply().status == 400


def test_a_request_line_that_is_too_long_is_refused(client: Client) -> None:
    client.send(b"GET /" + b"a" * 17_000)
    assert client.reply().status == 414
    assert client.closed()


@pytest.mark.parametrize(
    "headers",
    [b"X-A: " + b"a" * 17_000, b"".join(b"X-%d: a\r\n" % i for i in range(101)), b"X-A: aaaa\r\n" * 99],
    ids=["one long", "many", "99 small ones pass"],
)
def test_headers_that_are_too_large_are_refused(headers: bytes, client: Client) -> None:
    client.send(b"GET / HTTP/1.1\r\nHost: h\r\n" + headers.rstrip() + b"\r\n\r\n")
    assert client.reply().status == (200 if headers.startswith(b"X-A: aaaa\r\n") else 431)


def test_a_header_block_of_more_than_64_kib_is_refused(client: Client) -> None:
    client.send(
        b"GET / HTTP/1.1\r\nHost: h\r\n" + b"".join(b"X-%d: %s\r\n" % (i, b"a" * 15_000) for i in range(5))
    )
    assert client.reply().status == 431
    assert client.closed()


def test_a_length_of_thousands_of_digits_is_too_large_and_no_crash(client: Client) -> None:
    client.send(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n")
    assert client.reply().status == 413


def test_a_body_in_chunks_arrives_whole_in_one_message(client: Client) -> None:
    client.send(b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n")
    for piece in (b"5;x=y\r\nhel", b"lo\r\n", b"6\r\n world\r\n0\r\n", b"X-Trailer: dropped\r\n\r\n"):
        client.send(piece)
    seen = client.reply().json
    assert (seen["body"], seen["whole"]) == ("hello world", True)
    assert "x-trailer" not in dict(seen["headers"])


def test_a_large_body_arrives_in_one_message(client: Client) -> None:
    client.ask("POST", "/", b"x" * (20 << 20))
    seen = client.reply().json
    assert (seen["size"], seen["whole"]) == (20 << 20, True)


def test_a_form_or_multipart_body_is_handed_over_unread(client: Client) -> None:
    for kind in ("application/x-www-form-urlencoded", "multipart/form-data; boundary=b"):
        client.ask("POST", "/", b'{"model":"m"}', f"Content-Type: {kind}")
        assert client.reply().json["body"] == '{"model":"m"}'


def test_a_path_reaches_the_application_decoded_and_as_sent(client: Client) -> None:
    client.ask("GET", "/a%20b%2Fc/%C3%A9?x=%20&y")
    seen = client.reply().json
    assert (seen["path"], seen["raw_path"], seen["query"]) == ("/a b/c/é", "/a%20b%2Fc/%C3%A9", "x=%20&y")


def test_a_target_as_sent_to_a_proxy_is_read_as_its_path(client: Client) -> None:
    client.ask("GET", "http://elsewhere/some/path?q")
    assert client.reply().json["path"] == "/some/path"


def test_header_values_beyond_ascii_pass(client: Client) -> None:
    client.send("GET / HTTP/1.1\r\nHost: h\r\nX-A: Jürgen … Å\r\n\r\n".encode())
    assert dict(client.reply().json["headers"])["x-a"].encode("latin-1").decode() == "Jürgen … Å"


def test_expect_100_continue_is_answered(client: Client) -> None:
    client.send(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n")
    assert client.head().status == 100
    client.send(b"hello")
    assert client.reply().json["body"] == "hello"


def test_expect_100_continue_for_too_much_gets_413_at_once(client: Client) -> None:
    client.send(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 99999999\r\nExpect: 100-continue\r\n\r\n")
    assert client.head().status == 413


def test_pipelined_requests_are_answered_in_order(client: Client) -> None:
    client.send(
        b"GET /deaf?s=0.2 HTTP/1.1\r\nHost: h\r\n\r\n"
        b"POST /one HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nab"
        b"GET /two HTTP/1.1\r\nHost: h\r\n\r\n"
    )
    assert client.reply().json == "at last"
    assert client.reply().json["body"] == "ab"
    assert client.reply().json["path"] == "/two"


def test_a_connection_is_kept_until_the_client_asks_to_close_it(client: Client) -> None:
    client.ask("GET", "/a")
    assert "connection" not in client.reply().headers
    client.ask("GET", "/b", None, "Connection: close, TE")
    assert client.reply().headers["connection"] == "close"
    assert client.closed()


@pytest.mark.parametrize("upgrade", ["websocket", "h2c"])
def test_a_wish_to_upgrade_is_an_ordinary_request(upgrade: str, client: Client) -> None:
    client.ask(
        "GET",
        "/v1/responses",
        None,
        "Connection: Upgrade",
        f"Upgrade: {upgrade}",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Version: 13",
    )
    seen = client.reply().json
    assert dict(seen["headers"])["upgrade"] == upgrade


def test_a_client_cannot_set_where_the_application_lives(client: Client) -> None:
    client.ask("GET", "/x", None, "Daphne-Root-Path: /evil", "X_Forwarded_For: 1.2.3.4")
    seen = client.reply().json
    assert seen["path"] == "/x"
    assert "x_forwarded_for" not in dict(seen["headers"])


def test_http2_by_prior_knowledge_is_refused_and_the_server_lives_on(server: Process, client: Client) -> None:
    client.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    assert client.reply().status == 400
    assert server.get("/still")["path"] == "/still"
