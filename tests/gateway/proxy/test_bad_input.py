"""Whatever a client sends to the real process: a 4xx that says what to do, or it passes. Never a 5xx."""

from __future__ import annotations

import gzip
import json
from collections.abc import AsyncIterator, Sequence

import pytest
import pytest_asyncio

from engines.doubles import Double
from tests.engines.doubles.client import Came
from tests.gateway.proxy.scene import APIS, CHAT, MESSAGES, OLLAMA_CHAT, RESPONSES, Api
from tests.gateway.proxy.served import Served, served

pytestmark = pytest.mark.asyncio(loop_scope="module")
EACH_API = pytest.mark.parametrize("api", APIS, ids=[a.name for a in APIS])
MIB = 1024 * 1024
SERVER_SAYS: Sequence[str] = ()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    folder = tmp_path_factory.mktemp("bad-input")
    async with served(folder, Double("ollama", models=["fast:latest"], speed=1000)) as it:
        yield it


def request(
    target: str = CHAT.path, body: bytes = b"", *headers: bytes, method: str = "POST", host: bytes = b"here",
    length: bool = True,
) -> bytes:  # fmt: skip
    lines = [f"{method} {target} HTTP/1.1".encode("latin-1"), b"Host: " + host, *headers]
    if length:
        lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def sent_on(server: Served) -> bytes:
    return [r for r in server.doubles[0].requests if r.method == "POST"][-1].body


def passed(came: Came) -> bool:
    return (came.status, came.whole) == (200, True)


def with_field(api: Api, field: str) -> bytes:
    """A good request with one more member, as raw JSON."""
    return (
        api.body("fast", stream=False, tokens=2)[:-1]
        + b", "
        + field.encode("utf-8", "surrogateescape")
        + b"}"
    )


# -- what is no request of a model -------------------------------------------------------------

REFUSED = {
    "nothing": (b"", "empty"),
    "blanks": (b" \r\n\t ", "empty"),
    "half": (b'{"model": "fast",', "not JSON"),
    "half a string": (b'{"model": "fa', "not JSON"),
    "single quotes": (b"{'model': 'fast'}", "not JSON"),
    "a form": (b"model=fast&stream=true", "not JSON"),
    "bytes after it": (b'{"model": "fast"} x', "not JSON"),
    "two of them": (b'{"model": "fast"}{"model": "fast"}', "not JSON"),
    "a comma too many": (b'{"model": "fast",}', "not JSON"),
    "a list": (b'[{"model": "fast"}]', "must be a JSON object"),
    "a text": (b'"fast"', "must be a JSON object"),
    "a number": (b"17", "must be a JSON object"),
    "null": (b"null", "must be a JSON object"),
    "UTF-16": ('{"model": "fast"}'.encode("utf-16"), "not JSON"),
    "zeros": (bytes(64), "not JSON"),
    "no model": (b'{"messages": []}', 'add "model"'),
    "null for a model": (b'{"model": null}', "name of a model"),
    "a number for a model": (b'{"model": 5}', "name of a model"),
    "a list for a model": (b'{"model": ["fast"]}', "name of a model"),
    "an object for a model": (b'{"model": {"id": "fast"}}', "name of a model"),
    "an empty model": (b'{"model": ""}', "name of a model"),
    "half a character for a model": (rb'{"model": "\ud83d"}', "name of a model"),
    "a model twice": (b'{"model": "fast", "model": "slow"}', "twice"),
    "a model twice, once in disguise": (rb'{"model": "fast", "mod\u0065l": "slow"}', "twice"),
    "a stream twice": (b'{"model": "fast", "stream": true, "stream": false}', "twice"),
    "a model in capitals": (b'{"model": "fast", "Model": "slow"}', "must be written 'model'"),
    "only a model in capitals": (b'{"MODEL": "fast"}', "must be written 'model'"),
    "a stream in capitals": (b'{"model": "fast", "STREAM": true}', "must be written 'stream'"),
    "a long s": ('{"model": "fast", "\u017ftream": true}'.encode(), "must be written 'stream'"),
    "an unknown model": (b'{"model": "fats"}', "served now: fast:latest"),
    "a path for a model": (b'{"model": "../../etc/passwd"}', "served now: fast:latest"),
    "line breaks in a model": (rb'{"model": "a\r\nX-Evil: 1"}', "served now: fast:latest"),
    "a megabyte of a model": (b'{"model": "%s"}' % (b"x" * MIB), "served now: fast:latest"),
    "10,000 lists for a model": (b'{"model": %s}' % (b"[" * 10_000 + b"]" * 10_000), "nested too deeply"),
    "10,000 lists in a field": (b'{"model": "fast", "x": %s}' % (b"[" * 10_000 + b"]" * 10_000), "nested too deeply"),
    "10,000 objects in a field": (
        b'{"model": "fast", "x": %s}' % (b'{"a":' * 10_000 + b"1" + b"}" * 10_000),
        "nested too deeply",
    ),
    "10,000 lists": (b"[" * 10_000 + b"]" * 10_000, ""),
    "10,000 open lists": (b"[" * 10_000, ""),
    "10,000 open objects": (b'{"a":' * 10_000, ""),
}  # fmt: skip


@EACH_API
async def test_what_asks_nothing_of_a_model_is_told_so(server: Served, api: Api) -> None:
    for name, (body, hint) in REFUSED.items():
        came = await server.raw(request(api.path, body))
        assert came.status in (400, 404), name
        assert came.whole, name
        assert hint in api.message(came.body), (name, came.body[:300])
        assert len(came.body) < 1000, name
        assert came.header("x-request-id"), name
    assert not any(r.method == "POST" for r in server.doubles[0].requests[-1:])
    await server.at_rest()


# -- what is odd and an engine's business ------------------------------------------------------

ODD = {
    "200 lists": '"x": ' + "[" * 200 + "]" * 200,
    "half a character": r'"x": "\ud83d", "\udc00": "\udfff\ud800"',
    "a huge number": '"x": 1e999999, "y": -1E+400',
    "4,000 digits": '"x": ' + "9" * 4000,
    "NaN": '"x": [NaN, Infinity, -Infinity]',
    "escaped": r'"x": "\u0000\/\b\f\n\r\t\"\\"',
    "an empty name": '"": ""',
    "1,000 fields": ", ".join(f'"f{i}": {i}' for i in range(1000)),
    "a model inside": '"metadata": {"model": "slow", "Model": 5}',
    "odd types": '"stop": {"a": [1]}, "temperature": "hot", "n": null',
}


@EACH_API
async def test_what_is_odd_passes_byte_for_byte(server: Served, api: Api) -> None:
    for name, field in ODD.items():
        body = with_field(api, field)
        came = await server.raw(request(api.path, body))
        assert passed(came), (name, came.status, came.body[:300])
        assert sent_on(server) == body, name
    await server.at_rest()


@EACH_API
@pytest.mark.parametrize("odd", ['"yes"', "1", "null", "[]", "{}", '"false"'])
async def test_a_stream_of_a_wrong_type_is_never_a_5xx(server: Served, api: Api, odd: str) -> None:
    body = json.dumps({"model": "fast", **api.more}).encode()[:-1] + b', "stream": %s}' % odd.encode()
    came = await server.raw(request(api.path, body))
    assert came.status in (200, 400)
    assert came.whole
    await server.at_rest()


@pytest.mark.parametrize(
    "messages", ['"hi"', "5", "null", "{}", "[5]", "[[]]", '[{"role": 5, "content": {"a": 1}}]']
)
async def test_messages_of_a_wrong_type_are_never_a_5xx(server: Served, messages: str) -> None:
    for api in (CHAT, MESSAGES, OLLAMA_CHAT):
        came = await server.raw(request(api.path, b'{"model": "fast", "messages": %s}' % messages.encode()))
        assert came.status in (200, 400), (api.name, came.body[:200])
    await server.at_rest()


@EACH_API
async def test_bytes_that_are_no_text_are_never_a_5xx(server: Served, api: Api) -> None:
    for odd in (b"\xff", b"\xc3\x28", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"\x00"):
        body = with_field(api, '"x": "@"').replace(b"@", odd)
        came = await server.raw(request(api.path, body))
        assert came.status in (200, 400), odd
        if came.status == 200:
            assert sent_on(server) == body
    came = await server.raw(request(api.path, b"\xef\xbb\xbf" + api.body("fast", stream=False)))
    assert came.status in (200, 400)
    await server.at_rest()


# -- how it is sent ----------------------------------------------------------------------------

GOOD = CHAT.body("fast", stream=False, tokens=2)


def chunked(*pieces: bytes, end: bytes = b"0\r\n\r\n", extension: bytes = b"") -> bytes:
    return b"".join(b"%x%s\r\n%s\r\n" % (len(p), extension, p) for p in pieces) + end


@pytest.mark.parametrize(
    "body",
    [
        chunked(GOOD),
        chunked(*(GOOD[i : i + 1] for i in range(len(GOOD)))),
        chunked(GOOD, extension=b";name=value"),
        chunked(GOOD, end=b"0\r\nX-Trailer: 1\r\n\r\n"),
    ],
    ids=["one", "by byte", "extension", "trailer"],
)
async def test_a_chunked_body_passes_as_one(server: Served, body: bytes) -> None:
    came = await server.raw(request(CHAT.path, b"", b"Transfer-Encoding: chunked", length=False) + body)
    assert passed(came)
    assert sent_on(server) == GOOD
    await server.at_rest()


@EACH_API
async def test_a_compressed_body_is_told_to_come_plain(server: Served, api: Api) -> None:
    body = gzip.compress(api.body("fast", stream=False))
    came = await server.raw(request(api.path, body, b"Content-Encoding: gzip"))
    assert came.status == 415
    assert "without Content-Encoding" in api.message(came.body)
    await server.at_rest()


async def test_a_body_that_is_called_identity_passes(server: Served) -> None:
    assert passed(await server.raw(request(CHAT.path, GOOD, b"Content-Encoding: identity")))


async def test_a_client_that_waits_for_100_continue_gets_it(server: Served) -> None:
    async with server.talk() as t:
        t.writer.write(request(CHAT.path, GOOD, b"Expect: 100-continue")[: -len(GOOD)])
        assert (await t.head()).startswith("HTTP/1.1 100 ")
        t.writer.write(GOOD)
        assert passed(await t.came())
    await server.at_rest()


@pytest.mark.parametrize("expect", [b"", b"Expect: 100-continue"], ids=["plain", "expect"])
async def test_33_mib_are_refused_before_they_are_read(server: Served, expect: bytes) -> None:
    headers = [b"Content-Length: %d" % (33 * MIB), *([expect] if expect else [])]
    came = await server.raw(request(CHAT.path, b"", *headers, length=False))
    assert came.status == 413
    assert "limits" in CHAT.message(came.body)
    await server.at_rest(*SERVER_SAYS)


async def test_33_mib_in_chunks_are_refused_as_soon_as_they_are_too_many(server: Served) -> None:
    head = request(CHAT.path, b"", b"Transfer-Encoding: chunked", length=False)
    async with server.talk() as t:
        t.writer.write(head)
        for _ in range(33):
            t.writer.write(chunked(b" " * MIB, end=b""))
        came = await t.came()
    assert came.status == 413
    await server.at_rest(*SERVER_SAYS)


async def test_31_mib_pass(server: Served) -> None:
    body = GOOD[:-1] + b', "x": "' + b"y" * (31 * MIB) + b'"}'
    assert passed(await server.raw(request(CHAT.path, body)))
    assert sent_on(server) == body
    server.doubles[0].requests.clear()
    await server.at_rest()


@pytest.mark.parametrize(
    "kind",
    [b"", b"text/plain", b"application/x-www-form-urlencoded", b"multipart/form-data; boundary=x", b"\xff\xfe", b"a" * 2000],
    ids=["empty", "text", "form", "multipart", "no text", "long"],
)  # fmt: skip
async def test_the_content_type_does_not_matter(server: Served, kind: bytes) -> None:
    assert passed(await server.raw(request(CHAT.path, GOOD, b"Content-Type: " + kind)))
    await server.at_rest()


ODD_HEADERS = {
    "bytes that are no text": b"X-Odd: \xff\xfe\xe2\x82",
    "a tab": b"X-Odd: a\tb",
    "an empty one": b"X-Odd:",
    "a long one": b"X-Odd: " + b"a" * 15_000,
    "an odd name": b"!#$%&'*+-.^_`|~: 1",
    "an underscore": b"X_Odd: 1",
    "a named hop": b"Connection: keep-alive, x-odd",
    "websocket on no such path": b"X-Upgrade: websocket",
    "an upgrade": b"Upgrade: h2c",
    "odd credentials": b"Authorization: \xff\xff",
    "empty credentials": b"Authorization: ",
    "two credentials": b"Authorization: Bearer a\r\nAuthorization: Bearer b",
    "an odd id": b"X-Request-Id: a\tb",
    "a length in another": b"X-Content-Length: 5",
    "a cookie": b"Cookie: a=b; c=\xff",
    "a conversation": b"X-Conversation-Id: 1",
    "an engine's own": b"X-Pharos-Backend: http://evil",
    "ranges": b"Range: bytes=0-1",
    "a condition": b"If-None-Match: *",
}


@pytest.mark.parametrize("header", ODD_HEADERS.values(), ids=ODD_HEADERS)
async def test_odd_headers_pass_or_are_dropped(server: Served, header: bytes) -> None:
    assert passed(await server.raw(request(CHAT.path, GOOD, header)))
    await server.at_rest()


BROKEN = {
    "no host": (b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 0\r\n\r\n", 400),
    "two hosts": (request(CHAT.path, GOOD, b"Host: there"), 400),
    "two lengths": (request(CHAT.path, GOOD, b"Content-Length: 3"), 400),
    "a negative length": (request(CHAT.path, b"", b"Content-Length: -1", length=False), 400),
    "a signed length": (request(CHAT.path, b"", b"Content-Length: +5", length=False), 400),
    "length and chunks": (request(CHAT.path, GOOD, b"Transfer-Encoding: chunked"), 400),
    "gzip chunks": (request(CHAT.path, b"", b"Transfer-Encoding: gzip, chunked", length=False), 400),
    "a chunk of no size": (request(CHAT.path, b"", b"Transfer-Encoding: chunked", length=False) + b"zz\r\n", 400),
    "a folded header": (request(CHAT.path, GOOD, b"X-A: b\r\n c"), 400),
    "a header without a colon": (request(CHAT.path, GOOD, b"nonsense"), 400),
    "200 headers": (request(CHAT.path, GOOD, *[b"X-%d: 1" % i for i in range(200)]), 431),
    "a header of 20 KiB": (request(CHAT.path, GOOD, b"X: " + b"a" * 20_000), 431),
    "a line of 20 KiB": (request("/" + "a" * 20_000), 414),
    "a blank in the path": (request("/v1/chat completions"), 400),
    "no path": (request("v1/chat/completions"), 400),
    "no HTTP": (b"hello there\r\n\r\n", 400),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "TLS": (bytes.fromhex("16030100a5010000a10303") + bytes(60) + b"\r\n\r\n", 400),
}  # fmt: skip


@pytest.mark.parametrize(("data", "status"), BROKEN.values(), ids=BROKEN)
async def test_what_is_no_http_is_told_so(server: Served, data: bytes, status: int) -> None:
    came = await server.raw(data)
    assert came.status == status
    assert json.loads(came.body)["error"]["message"]
    await server.at_rest(*SERVER_SAYS)


# -- where it is sent --------------------------------------------------------------------------

PATHS = [
    "/v1/../v1/chat/completions", "/v1/chat/completions/..", "//v1/chat/completions", "/v1/chat/completions/",
    "/v1/chat/completions//", "/v1/chat/completions;x=1", "/V1/Chat/Completions", "/v1/chat/completions%00",
    "/v1/chat/completions%2f", "/v1%2fchat%2fcompletions%3f", "/%ff%fe", "/%", "/%zz", "/\\..\\..\\etc\\passwd",
    "/..%2f..%2fetc%2fpasswd", "/v1/models/..%2f..%2fapi%2ftags", "/v1/models/%00", "/v1/models/%ff",
    "/v1/models/" + "a" * 8000, "/api/blobs/sha256:%0d%0a", "/api/../metrics", "*", "http://evil/nothing", "/'\"<script>",
    "/v1/messages/../x", "/v1/responses/resp_1", "/v1/responses/resp_1/cancel", "/api/delete", "/static/../settings.py",
    "/v1/chat/completions%0d%0aX-Evil:%201",
]  # fmt: skip


@pytest.mark.parametrize("path", PATHS, ids=lambda p: p[:40])
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_path_that_there_is_not_is_a_4xx_in_words(server: Served, path: str, method: str) -> None:
    came = await server.raw(request(path, GOOD, method=method))
    assert 400 <= came.status < 500 or came.status == 501
    assert json.loads(came.body)["error"]
    assert "x-evil" not in came.head.lower()
    await server.at_rest()


@pytest.mark.parametrize(
    "target",
    [
        "/v1/chat/completions?x=%00%0d%0a", "/v1/chat/completions?" + "x" * 8000, "/v1/chat/completions?[]{}|\\^`<>\"'",
        "/v1/chat/completions?x=\x01\x1f", "/v1/chat/completions?#", "/v1/chat/completions??x=/../&&==", "/v1/chat/completions?x=\x7f",
        "http://here/v1/chat/completions", "/%76%31/chat/completions", "/v1/chat/completions?x=%zz%",
    ],
    ids=lambda t: repr(t[:40]),
)  # fmt: skip
async def test_an_odd_way_to_a_route_passes_or_is_a_400(server: Served, target: str) -> None:
    came = await server.raw(request(target, GOOD))
    assert came.status in (200, 400)
    if came.status == 200:
        sent = [r for r in server.doubles[0].requests if r.method == "POST"][-1]
        assert sent.path == CHAT.path
    await server.at_rest(*SERVER_SAYS)


@pytest.mark.parametrize(
    "method", ["PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "HEAD", "post", "X" * 200, "GET"]
)
async def test_another_method_is_a_405_that_names_the_right_one(server: Served, method: str) -> None:
    async with server.talk() as t:
        t.writer.write(request(RESPONSES.path, b"", method=method))
        head = await t.head()
    assert " 405 " in head.split("\r\n")[0]
    assert "allow: POST" in head
    await server.at_rest()


@pytest.mark.parametrize(
    "host",
    [b"", b"evil.example", b"a b", b"here:99999999", b"[::1]:80", b"user:pw@here", b"\xff", b"<script>", b"x" * 4000],
    ids=lambda h: repr(h[:20]),
)  # fmt: skip
async def test_an_odd_host_changes_nothing(server: Served, host: bytes) -> None:
    assert passed(await server.raw(request(CHAT.path, GOOD, host=host)))
    lost = await server.raw(request("/v1/nope", b"", host=host))
    assert lost.status == 404
    assert b"<script>" not in lost.body
    await server.at_rest()


async def test_a_websocket_is_refused_so_that_the_client_goes_on_without(server: Served) -> None:
    upgrade = (b"Upgrade: websocket", b"Connection: Upgrade", b"Sec-WebSocket-Key: x")
    came = await server.raw(request(RESPONSES.path, b"", *upgrade, method="GET"))
    assert came.status == 426
    await server.at_rest()


@pytest.mark.parametrize("cut", [1, 20, 60, 120, len(request(CHAT.path, GOOD)) - 1])
async def test_a_client_that_goes_within_its_request_leaves_nothing(server: Served, cut: int) -> None:
    async with server.talk() as t:
        t.writer.write(request(CHAT.path, GOOD)[:cut])
        await t.writer.drain()
        t.leave()
    await server.at_rest()
