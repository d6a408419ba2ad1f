"""Keys as clients meet them: on every route, in each API's words, and never at an engine."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import dataclass, field
from typing import Any

import pytest

from gateway.accounts.admission import Accounts
from gateway.proxy.routes import ROUTES
from tests.gateway.accounts.clocks import Clocks, entry, secret
from tests.gateway.proxy.bench import BODY, FINISH, OLLAMA, STREAM, Client, Setup, chat, gateway, listing
from tests.stub import Peer, Request, stub

NOWHERE = "http://127.0.0.1:1"
CLOSED = [*ROUTES, "/api/show", "/v1/models", "/v1/models/m", "/api/tags", "/api/ps"]
POSTS = {*ROUTES, "/api/show"}


def bearer(name: str) -> list[tuple[bytes, bytes]]:
    return [(b"authorization", b"Bearer " + secret(name).encode())]


def accounts(**more: Any) -> Accounts:
    return Clocks(now=0).accounts(
        entry("alice", **more),
        entry("bob"),
        entry("onlym", models=["m"]),
        entry("only-other", models=["gone"]),
    )


@dataclass(slots=True)
class Held:
    """An engine that answers when it is told to."""

    open: asyncio.Event = field(default_factory=asyncio.Event)
    came: int = 0

    async def __call__(self, request: Request, peer: Peer) -> None:
        self.came += 1
        await self.open.wait()
        await chat(request, peer)

    async def until(self, came: int) -> None:
        async with asyncio.timeout(5):
            while self.came < came:
                await asyncio.sleep(0.001)


def used(of: Accounts) -> Any:
    return of.usage.history().total(of.today, of.today)


async def ask(g: Setup, path: str, headers: list[tuple[bytes, bytes]]) -> Client:
    return await g.ask(path=path, method="POST" if path in POSTS else "GET", headers=headers)


# -- 401 ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("headers", [[], bearer("mallory"), [(b"x-api-key", b"sk-no")]])
@pytest.mark.parametrize("path", CLOSED)
async def test_no_route_to_a_model_is_open_without_a_key(
    path: str, headers: list[tuple[bytes, bytes]]
) -> None:
    async with stub(chat) as s, gateway(s.url, recipe=OLLAMA, accounts=accounts()) as g:
        client = await ask(g, path, headers)
    assert client.status == 401
    assert client.headers[b"www-authenticate"] == b"Bearer"
    error = json.loads(client.body)
    if path.startswith("/api"):
        assert isinstance(error["error"], str)
    elif path.startswith("/v1/messages"):
        assert (error["type"], error["error"]["type"]) == ("error", "authentication_error")
    else:
        assert (error["error"]["code"], error["error"]["type"]) == ("invalid_api_key", "authentication_error")
    assert s.requests == []
    assert g.done[0].key is None
    assert b"mallory" not in client.body


@pytest.mark.parametrize("path", ["/", "/api/version"])
async def test_what_ollamas_command_line_asks_first_needs_no_key(path: str) -> None:
    async with gateway(NOWHERE, recipe=OLLAMA, accounts=accounts()) as g:
        listing(g.backends[0], OLLAMA, ["m"], "0.32.15")
        assert (await g.ask(path=path, method="GET")).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        bearer("alice"),
        [(b"x-api-key", secret("alice").encode())],
        [(b"X-Api-Key", secret("alice").encode()), (b"Authorization", b"Bearer dummy")],
        [(b"Authorization", b"bearer  " + secret("alice").encode())],
    ],
)
async def test_a_key_is_taken_however_clients_send_it_and_never_reaches_the_engine(
    headers: list[tuple[bytes, bytes]],
) -> None:
    async with stub(chat) as s, gateway(s.url, accounts=accounts()) as g:
        client = await g.ask(headers=[*headers, (b"api-key", secret("alice").encode())])
    assert client.status == 200
    assert secret("alice").encode() not in s.requests[0].head + s.requests[0].body
    assert g.done[0].key == "alice"


async def test_without_keys_any_key_will_do() -> None:
    async with stub(chat) as s, gateway(s.url) as g:
        assert (await g.ask(headers=bearer("whoever"))).status == 200
    assert g.done[0].key == "anonymous"


async def test_a_key_is_never_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with stub(chat) as s, gateway(s.url, accounts=accounts(rpm=1)) as g:
        for headers in (bearer("alice"), bearer("alice"), bearer("mallory")):
            await g.ask(headers=headers)
        assert [d.status for d in g.done] == [200, 429, 401]
        assert secret("alice") not in caplog.text + repr(g.done)
    assert secret("mallory") not in caplog.text


# -- allow-lists -------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(POSTS))
async def test_a_model_outside_the_allow_list_is_as_unknown_as_one_that_nobody_has(path: str) -> None:
    async def answer(g: Setup, model: str) -> tuple[int, bytes]:
        body = json.dumps({"model": model, "prompt": "x"}).encode()
        client = await g.ask(body, path, headers=bearer("onlym"))
        return client.status, client.body.replace(model.encode(), b"?")

    async with stub(chat) as s, gateway(s.url, recipe=OLLAMA, models=["m", "nn"], accounts=accounts()) as g:
        hidden, unknown = await answer(g, "nn"), await answer(g, "qq")
    assert hidden == unknown
    assert hidden[0] == 404
    assert b"nn" not in hidden[1]
    assert s.requests == []


async def test_the_lists_name_only_what_exists_for_the_key() -> None:
    async def engine(_request: Request, peer: Peer) -> None:
        await peer.plain(b'{"models":[{"name":"m:latest"},{"name":"n"}]}')

    async with (
        stub(engine) as s,
        gateway(s.url, recipe=OLLAMA, models=["m:latest", "n"], accounts=accounts()) as g,
    ):
        for key, expected in (("onlym", ["m:latest"]), ("bob", ["m:latest", "n"]), ("only-other", [])):
            client = await ask(g, "/v1/models", bearer(key))
            assert [m["id"] for m in json.loads(client.body)["data"]] == expected
            for path in ("/api/tags", "/api/ps"):
                client = await ask(g, path, bearer(key))
                assert [m["name"] for m in json.loads(client.body)["models"]] == expected
        for key, name, status in (("onlym", "m", 200), ("onlym", "n", 404), ("bob", "n", 200)):
            assert (await ask(g, f"/v1/models/{name}", bearer(key))).status == status


@pytest.mark.parametrize("name", ["m", "m:latest"])
async def test_an_allow_list_takes_ollamas_names_of_a_model_for_one(name: str) -> None:
    async with stub(chat) as s, gateway(s.url, recipe=OLLAMA, models=["m:latest"], accounts=accounts()) as g:
        body = json.dumps({"model": name, "messages": []}).encode()
        assert (await g.ask(body, headers=bearer("onlym"))).status == 200


# -- 429 ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(ROUTES))
async def test_over_its_requests_a_key_is_told_in_each_apis_words_when_to_come_back(path: str) -> None:
    async with stub(chat) as s, gateway(s.url, recipe=OLLAMA, accounts=accounts(rpm=1)) as g:
        await g.ask(headers=bearer("alice"))
        client = await ask(g, path, bearer("alice"))
        assert (await g.ask(headers=bearer("bob"))).status == 200
    assert client.status == 429
    assert client.headers[b"retry-after"] == b"60"
    assert client.headers[b"x-ratelimit-remaining-requests"] == b"0"
    error = json.loads(client.body)
    if path.startswith("/api"):
        assert "may make 1 requests a minute" in error["error"]
    elif path.startswith("/v1/messages"):
        assert error["error"]["type"] == "rate_limit_error"
    else:
        assert error["error"]["code"] == "rate_limit_exceeded"
    assert len(s.requests) == 2


async def test_a_reply_says_what_the_key_has_left() -> None:
    async with stub(chat) as s, gateway(s.url, accounts=accounts(rpm=5, tokens_per_day=9000)) as g:
        client = await g.ask(headers=bearer("alice"))
        plain = await g.ask(headers=bearer("bob"))
    assert client.headers[b"x-ratelimit-remaining-requests"] == b"4"
    assert client.headers[b"x-ratelimit-limit-tokens"] == b"9000"
    assert not [h for h in plain.headers if h.startswith(b"x-ratelimit")]


async def test_the_limits_of_pharos_at_an_engine_are_not_passed_off_as_the_clients() -> None:
    async def engine(_request: Request, peer: Peer) -> None:
        await peer.plain(b"{}", "200 OK\r\nx-ratelimit-remaining-requests: 7")

    async with stub(engine) as s, gateway(s.url) as g:
        client = await g.ask()
    assert b"x-ratelimit-remaining-requests" not in client.headers


async def test_out_of_tokens_for_the_day_is_no_reason_to_try_again_soon() -> None:
    own = accounts(tokens_per_day=500)
    async with stub(chat) as s, gateway(s.url, accounts=own) as g:
        body = json.dumps({"model": "m", "prompt": "word " * 800}).encode()
        long = await g.ask(body, headers=bearer("alice"))
        own.usage.add(own.today, "alice", "m", used(own).__class__(1, 300, 200))
        client = await g.ask(headers=bearer("alice"))
    assert (client.status, client.error["code"]) == (429, "insufficient_quota")
    assert client.headers[b"x-should-retry"] == b"false"
    assert "has used all of its 500 tokens a day: a new day begins in 12h0m0s" in client.error["message"]
    assert "more than the 500 that the key alice has left" in long.error["message"]
    assert s.requests == []


async def test_counting_tokens_needs_none() -> None:
    own = accounts(tokens_per_day=1)
    async with stub(chat) as s, gateway(s.url, accounts=own) as g:
        client = await g.ask(BODY, "/v1/messages/count_tokens", headers=bearer("alice"))
    assert client.status == 200
    assert (used(own).requests, used(own).unmetered) == (1, 0)


# -- what is counted ---------------------------------------------------------------------------


async def test_a_request_is_counted_once_and_what_nobody_told_as_unmetered() -> None:
    own = accounts(tokens_per_day=10_000)
    async with stub(chat) as s, gateway(s.url, accounts=own) as g:
        await g.ask(headers=bearer("alice"))
        await g.ask(STREAM, headers=bearer("alice"))
    assert (used(own).requests, used(own).unmetered, used(own).tokens) == (2, 2, 0)
    assert own.quota.held(own.today, "alice") == 0


USAGE = b'"usage":{"prompt_tokens":30,"completion_tokens":20,"prompt_tokens_details":{"cached_tokens":16}}'


async def metered(request: Request, peer: Peer) -> None:
    if b'"stream":true' in request.body:
        await peer.stream_head()
        await peer.chunk(FINISH)
        await peer.chunk(b'data: {"choices":[],' + USAGE + b"}\n\ndata: [DONE]\n\n")
        await peer.end()
    else:
        await peer.plain(b'{"choices":[{"finish_reason":"stop","message":{}}],' + USAGE + b"}")


@pytest.mark.parametrize("body", [BODY, STREAM])
async def test_tokens_that_an_engine_reports_are_counted_and_use_up_the_day(body: bytes) -> None:
    own = accounts(tokens_per_day=100)
    async with stub(metered) as s, gateway(s.url, accounts=own) as g:
        statuses = [(await g.ask(body, headers=bearer("alice"))).status for _ in range(3)]
        other = await g.ask(body, headers=bearer("bob"))
    assert (statuses, other.status) == ([200, 200, 429], 200)
    assert own.usage.tokens(own.today, "alice") == 100
    total = used(own)
    assert (total.prompt_tokens, total.completion_tokens, total.cached_tokens) == (90, 60, 48)
    assert (total.requests, total.unmetered) == (3, 0)


async def test_a_burst_does_not_overshoot_the_tokens_of_the_day() -> None:
    own = accounts(tokens_per_day=1000)
    body = json.dumps({"model": "m", "prompt": "four" * 26, "max_tokens": 24}).encode()
    async with stub(metered) as s, gateway(s.url, accounts=own, capacity=64) as g:
        clients = await asyncio.gather(*(g.ask(body, headers=bearer("alice")) for _ in range(200)))
    assert 0 < [c.status for c in clients].count(200) <= 20
    assert own.usage.tokens(own.today, "alice") <= 1000
    assert own.quota.held(own.today, "alice") == 0


async def test_what_the_gateway_refuses_uses_nothing_up() -> None:
    own = accounts(rpm=1, tokens_per_day=100_000)
    async with gateway(NOWHERE, accounts=own) as g:
        for _ in range(3):
            g.backends[0].lost("gone")
            assert (await g.ask(headers=bearer("alice"))).status == 503
            assert (await g.ask(b"{", headers=bearer("alice"))).status == 400
            body = b'{"model":"unknown","prompt":"x"}'
            assert (await g.ask(body, headers=bearer("alice"))).status == 404
    assert used(own).requests == 0
    assert own.quota.windows.used("alice") == 0
    assert own.quota.held(own.today, "alice") == 0


async def test_an_engine_that_is_full_uses_nothing_up() -> None:
    async def engine(_request: Request, peer: Peer) -> None:
        await peer.plain(b'{"error":{"message":"busy"}}', "503 Service Unavailable")

    own = accounts(rpm=1)
    async with stub(engine) as s, gateway(s.url, accounts=own) as g:
        for _ in range(3):
            assert (await g.ask(headers=bearer("alice"))).status == 503
    assert used(own).requests == 0


async def test_a_request_that_an_engine_failed_counts_as_one() -> None:
    async def engine(_request: Request, peer: Peer) -> None:
        peer.reset()

    own = accounts(rpm=5)
    async with stub(engine) as s, gateway(s.url, accounts=own) as g:
        assert (await g.ask(headers=bearer("alice"))).status == 502
    assert (used(own).requests, used(own).unmetered) == (1, 1)


async def test_an_engines_own_refusal_counts_as_a_request_without_tokens() -> None:
    async def engine(_request: Request, peer: Peer) -> None:
        await peer.plain(b'{"error":{"message":"too long"}}', "400 Bad Request")

    own = accounts()
    async with stub(engine) as s, gateway(s.url, accounts=own) as g:
        await g.ask(headers=bearer("alice"))
    assert (used(own).requests, used(own).unmetered) == (1, 0)


async def test_a_request_that_its_client_left_is_counted_as_that() -> None:
    async def engine(request: Request, peer: Peer) -> None:
        await peer.stream_head()
        await peer.chunk(b"data: 1\n\n")
        await request.gone.wait()

    own = accounts(tokens_per_day=5000)
    async with stub(engine) as s, gateway(s.url, accounts=own) as g:
        client = Client()
        asking = asyncio.create_task(g.ask(STREAM, headers=bearer("alice"), client=client))
        await client.arrived.wait()
        assert own.quota.held(own.today, "alice") > 1000
        client.leave()
        await asking
    assert (used(own).requests, used(own).abandoned, used(own).unmetered) == (1, 1, 1)
    assert own.quota.held(own.today, "alice") == 0


async def test_a_client_that_leaves_the_queue_has_used_nothing() -> None:
    own, gate = accounts(tokens_per_day=5000), Held()
    async with stub(gate) as s, gateway(s.url, capacity=1, accounts=own) as g:
        first = asyncio.create_task(g.ask(headers=bearer("bob")))
        await gate.until(1)
        client = Client()
        asking = asyncio.create_task(g.ask(headers=bearer("alice"), client=client))
        while not g.scheduler.waiting:
            await asyncio.sleep(0)
        client.leave()
        await asking
        gate.open.set()
        await first
    row = next(r for r in own.usage.history().rows(0, own.today, key=True) if r.key == "alice")
    assert (row.counts.requests, row.counts.abandoned, row.counts.unmetered) == (1, 1, 0)
    assert own.quota.held(own.today, "alice") == 0


async def test_a_full_queue_uses_nothing_up() -> None:
    own, gate = accounts(rpm=5), Held()
    async with stub(gate) as s, gateway(s.url, capacity=1, queue=0, accounts=own) as g:
        first = asyncio.create_task(g.ask(headers=bearer("bob")))
        await gate.until(1)
        client = await g.ask(headers=bearer("alice"))
        gate.open.set()
        await first
    assert (client.status, client.error["code"]) == (429, "queue_full")
    assert own.quota.windows.used("alice") == 0


async def test_keys_wait_in_turn_by_their_weights() -> None:
    own, gate = Clocks().accounts(entry("alice"), entry("carol", weight=3), entry("bob")), Held()
    async with stub(gate) as s, gateway(s.url, capacity=1, accounts=own) as g:
        asks = [asyncio.create_task(g.ask(headers=bearer("bob")))]
        await gate.until(1)
        for n in range(4):
            for name in ("alice", "carol"):
                body = json.dumps({"model": "m", "user": name, "prompt": "x"}).encode()
                asks.append(asyncio.create_task(g.ask(body, headers=bearer(name))))
                while g.scheduler.waiting < 2 * n + 1 + (name == "carol"):
                    await asyncio.sleep(0)
        gate.open.set()
        await asyncio.gather(*asks)
    order = ["carol" if b"carol" in r.body else "alice" for r in s.requests[1:]]
    assert order[:4].count("carol") == 3, order


async def test_keys_that_change_apply_to_the_next_request() -> None:
    own = accounts()
    async with stub(chat) as s, gateway(s.url, accounts=own) as g:
        assert (await g.ask(headers=bearer("alice"))).status == 200
        own.replace([entry("bob")])
        assert (await g.ask(headers=bearer("alice"))).status == 401
        assert (await g.ask(headers=bearer("bob"))).status == 200


async def test_200_at_once_get_no_more_than_the_quota() -> None:
    own = accounts(rpm=7)
    async with stub(chat) as s, gateway(s.url, accounts=own) as g:
        clients = await asyncio.gather(*(g.ask(headers=bearer("alice")) for _ in range(200)))
    assert [c.status for c in clients].count(429) == 193
    assert len(s.requests) == used(own).requests == 7
