"""Each route in front of engines on real sockets: who is asked, with what, and what comes back."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from engines.recipes.base import Recipe
from gateway.proxy.routes import ROUTES
from tests.gateway.proxy.bench import OLLAMA, PLAIN, Client, gateway, listing
from tests.stub import Handler, Peer, Request, stub

POSTS = list(ROUTES)
NATIVE = [p for p in ROUTES if p.startswith("/api/")]
OPTIONAL = [p for p in ROUTES if "messages" in p or "responses" in p]


async def answers(_request: Request, peer: Peer) -> None:
    await peer.plain(b'{"ok":1}')


def refusing(status: str, body: bytes, kind: str = "application/json", **headers: str) -> Handler:
    async def engine(_request: Request, peer: Peer) -> None:
        more = "".join(f"{k.replace('_', '-')}: {v}\r\n" for k, v in headers.items())
        head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n{more}Content-Length: {len(body)}\r\n\r\n"
        await peer.send(head.encode() + body)

    return engine


def error_of(client: Client) -> str:
    said: Any = json.loads(client.body)["error"]
    return str(said if isinstance(said, str) else said["message"])


@pytest.mark.parametrize("path", POSTS)
async def test_the_clients_bytes_go_to_the_same_path_and_the_engines_come_back(path: str) -> None:
    body = b'{ "model":"m", "x" :1.50}'
    async with stub(answers) as s, gateway(s.url, recipe=OLLAMA) as g:
        client = await g.ask(body, path=path + "?beta=true")
    assert (client.status, client.body) == (200, b'{"ok":1}')
    assert (s.requests[0].line, s.requests[0].body) == (f"POST {path}?beta=true HTTP/1.1", body)


@pytest.mark.parametrize("path", NATIVE)
async def test_ollamas_own_routes_reach_only_engines_that_speak_them(path: str) -> None:
    async with stub(answers) as other, stub(answers) as ollama, gateway(other.url, ollama.url) as g:
        listing(g.backends[1], OLLAMA, ["m"])
        for _ in range(3):
            assert (await g.ask(b'{"model":"m"}', path=path)).status == 200
    assert (len(other.requests), len(ollama.requests)) == (0, 3)


@pytest.mark.parametrize("path", NATIVE)
async def test_a_model_no_ollama_has_is_a_404_that_names_the_other_api(path: str) -> None:
    async with gateway("http://127.0.0.1:1") as g:
        client = await g.ask(b'{"model":"m"}', path=path)
    assert client.status == 404
    assert "model 'm' not found" in error_of(client)
    assert "/v1/chat/completions" in error_of(client)


@pytest.mark.parametrize("path", OPTIONAL)
@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        ("404 Not Found", b'{"detail":"Not Found"}', "application/json"),
        ("404 Not Found", b"404 page not found", "text/plain"),
        ("405 Method Not Allowed", b'{"detail":"Method Not Allowed"}', "application/json"),
        ("501 Not Implemented", b'{"error":{"code":501,"message":"not here"}}', "application/json"),
        ("200 OK", b'{"error":"Unexpected endpoint or method. (POST /v1/x)"}', "application/json"),
    ],
)
async def test_an_engine_without_the_route_leaves_it_to_another(
    path: str, status: str, body: bytes, kind: str
) -> None:
    async with stub(refusing(status, body, kind)) as a, stub(answers) as b, gateway(a.url, b.url) as g:
        with g.busy(1):
            client = await g.ask(path=path)
    assert (client.status, client.body) == (200, b'{"ok":1}')
    assert len(a.requests) == 1


@pytest.mark.parametrize("path", OPTIONAL)
async def test_with_nobody_who_has_the_route_the_engine_is_named(path: str) -> None:
    async with stub(refusing("404 Not Found", b'{"detail":"Not Found"}')) as a, gateway(a.url) as g:
        client = await g.ask(path=path)
    assert client.status == 400
    assert a.url in error_of(client)
    assert [(d.status, d.outcome) for d in g.done] == [(400, "route_not_served")]


async def test_two_engines_without_the_route_do_not_hide_a_third() -> None:
    lacking = refusing("404 Not Found", b'{"detail":"Not Found"}')
    async with (
        stub(lacking) as a, stub(lacking) as b, stub(answers) as c, gateway(a.url, b.url, c.url) as g,
    ):  # fmt: skip
        clients = [await g.ask(path="/v1/messages") for _ in range(3)]
    assert [c.status for c in clients] == [200, 200, 200]


async def test_a_404_about_the_model_is_the_engines_answer() -> None:
    said = b'{"error":{"message":"The model `m` does not exist.","code":404}}'
    async with stub(refusing("404 Not Found", said)) as s, gateway(s.url) as g:
        client = await g.ask(path="/v1/messages")
    assert (client.status, client.body) == (404, said)


async def test_a_502_and_then_a_dead_engine_brings_the_502s_words() -> None:
    async with stub(answers) as gone:
        pass
    said = b'{"error":{"message":"tools need --jinja"}}'
    async with stub(refusing("500 Oops", said)) as a, gateway(a.url, gone.url) as g:
        with g.busy(1):
            client = await g.ask()
    assert (client.status, client.body) == (500, said)
    assert g.done[0].backend == a.url


async def test_a_401_is_only_ever_about_the_clients_own_key() -> None:
    async with stub(refusing("401 Unauthorized", b'{"error":"bad key"}')) as s, gateway(s.url) as g:
        client = await g.ask()
    assert (client.status, client.error["code"]) == (502, "engine_refused_key")
    assert "api_key" in client.error["message"]


@pytest.mark.parametrize(
    ("engines", "clients"),
    [
        (None, b"1"),
        ("7", b"7"),
        ("0", b"1"),
        ("3600", b"60"),
        ("Fri, 31 Dec 1999 23:59:59 GMT", b"1"),
        ("-3", b"1"),
    ],
)
async def test_retry_after_is_a_whole_number_of_seconds_that_clients_obey(
    engines: str | None, clients: bytes
) -> None:
    more = {} if engines is None else {"Retry_After": engines}
    async with stub(refusing("429 Too Many", b'{"error":"full"}', **more)) as s, gateway(s.url) as g:
        client = await g.ask()
    assert [v for k, v in client.sent[0]["headers"] if k == b"retry-after"] == [clients]


async def test_a_websocket_on_responses_is_refused_so_that_codex_speaks_http() -> None:
    async with gateway("http://127.0.0.1:1") as g:
        client = await g.ask(path="/v1/responses", method="GET", headers=[(b"upgrade", b"websocket")])
    assert client.status == 426


async def test_a_get_of_a_post_route_is_405() -> None:
    async with gateway("http://127.0.0.1:1") as g:
        client = await g.ask(path="/v1/responses", method="GET")
    assert (client.status, client.headers[b"allow"]) == (405, b"POST")


@pytest.mark.parametrize("asked", ["x", "x:latest"])
@pytest.mark.parametrize("listed", ["x", "x:latest"])
@pytest.mark.parametrize("path", ["/api/chat", "/v1/chat/completions"])
async def test_ollamas_two_names_of_a_model_are_one(asked: str, listed: str, path: str) -> None:
    body = json.dumps({"model": asked}).encode()
    async with stub(answers) as s, gateway(s.url, recipe=OLLAMA, models=[listed]) as g:
        client = await g.ask(body, path=path)
    assert client.status == 200
    assert s.requests[0].body == body, "Ollama takes both, so nothing is rewritten"


async def test_other_engines_know_no_second_name() -> None:
    async with gateway("http://127.0.0.1:1", models=["x:latest"]) as g:
        assert (await g.ask(b'{"model":"x"}')).status == 404


async def test_a_name_with_a_port_in_it_has_no_tag_yet() -> None:
    async with stub(answers) as s, gateway(s.url, recipe=OLLAMA, models=["host:5000/x:latest"]) as g:
        assert (await g.ask(b'{"model":"host:5000/x"}', path="/api/chat")).status == 200


async def test_an_exact_name_goes_before_ollamas_other_one() -> None:
    async with stub(answers) as a, stub(answers) as b, gateway(a.url, b.url) as g:
        listing(g.backends[0], OLLAMA, ["x:latest"])
        listing(g.backends[1], PLAIN, ["x"])
        for _ in range(2):
            await g.ask(b'{"model":"x"}')
    assert (len(a.requests), len(b.requests)) == (0, 2)


async def ollama_chat(request: Request, peer: Peer) -> None:
    """Streams unless told not to, as Ollama does."""
    if json.loads(request.body).get("stream") is False:
        await peer.plain(b'{"message":{"content":"x"},"done":true}')
        return
    head = "HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n"
    await peer.send(head.encode())
    await peer.chunk(b'{"message":{"content":"x"},"done":false}\n')
    if b"die" not in request.body:
        await peer.chunk(b'{"message":{"content":""},"done":true}\n')
    await peer.end()


async def test_an_ollama_stream_nobody_asked_for_is_whole_only_if_it_says_so() -> None:
    async with stub(ollama_chat) as s, gateway(s.url, recipe=OLLAMA) as g:
        whole = await g.ask(b'{"model":"m"}', path="/api/chat")
        cut = await g.ask(b'{"model":"m","x":"die"}', path="/api/chat")
    assert (whole.ended, whole.cut) == (True, False)
    assert (cut.ended, cut.cut) == (False, True)
    assert "error" in json.loads(cut.body.splitlines()[-1])


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/api/generate", b'{"model":"m","response":"","done":true,"done_reason":"load"}'),
        (
            "/api/chat",
            b'{"model":"m","message":{"role":"assistant","content":""},"done":true,"done_reason":"unload"}',
        ),
    ],
)
async def test_loading_and_unloading_calls_pass(path: str, said: bytes) -> None:
    async def engine(_request: Request, peer: Peer) -> None:
        await peer.plain(said, kind="application/json; charset=utf-8")

    async with stub(engine) as s, gateway(s.url, recipe=OLLAMA) as g:
        client = await g.ask(b'{"model":"m","keep_alive":0}', path=path)
    assert (client.status, client.body, client.ended) == (200, said, True)


@pytest.mark.parametrize("recipe", [OLLAMA, PLAIN])
async def test_an_alias_of_an_ollama_name_is_rewritten(recipe: Recipe) -> None:
    async with stub(answers) as s, gateway(s.url, recipe=recipe, models=["q:7b"], aliases={"q:7b": "q"}) as g:
        await g.ask(b'{"model":"q","x":1}')
    assert s.requests[0].body == b'{"model":"q:7b","x":1}'


async def test_replies_may_keep_the_backend_to_themselves() -> None:
    async with stub(answers) as s, gateway(s.url, show_backend=False) as g:
        client = await g.ask()
    assert not {b"x-pharos-backend", b"x-pharos-reason"} & set(client.headers)


async def test_anthropics_clients_find_the_id_of_a_reply_where_they_look() -> None:
    async with stub(answers) as s, gateway(s.url) as g:
        client = await g.ask(path="/v1/messages", headers=[(b"x-request-id", b"mine")])
    assert client.headers[b"request-id"] == client.headers[b"x-request-id"] == b"mine"


async def test_every_request_is_told_of_once_and_by_path() -> None:
    async with stub(answers) as s, gateway(s.url) as g:
        await g.ask()
        await g.ask(path="/v1/models", method="GET")
        await g.ask(path="/nope")
    assert [(d.method, d.path, d.model, d.status) for d in g.done] == [
        ("POST", "/v1/chat/completions", "m", 200),
        ("GET", "/v1/models", None, 200),
        ("POST", "/nope", None, 404),
    ]


async def test_the_client_may_leave_while_an_engines_error_is_read() -> None:
    asked = asyncio.Event()

    async def engine(request: Request, peer: Peer) -> None:
        await peer.send(b"HTTP/1.1 500 X\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{")
        asked.set()
        await request.gone.wait()

    async with stub(engine) as s, gateway(s.url) as g:
        client = Client()
        asking = asyncio.create_task(g.ask(client=client))
        await asked.wait()
        client.leave()
        await asking
    assert [d.outcome for d in g.done] == ["client_left"]
