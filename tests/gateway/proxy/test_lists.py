"""What is told of all engines together."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from gateway.proxy import native
from gateway.proxy.aggregates import oldest
from tests.gateway.proxy.bench import OLLAMA, PLAIN, Client, Setup, gateway, listing
from tests.stub import Handler, Peer, Request, stub

ANTHROPIC = [(b"anthropic-version", b"2023-06-01")]


def telling(*names: str, **more: Any) -> Handler:
    async def engine(_request: Request, peer: Peer) -> None:
        await peer.plain(json.dumps({"models": [{"name": n, "model": n, **more} for n in names]}).encode())

    return engine


async def get(g: Setup, path: str, headers: list[tuple[bytes, bytes]] | None = None) -> Any:
    client = await g.ask(path=path, method="GET", headers=headers)
    return json.loads(client.body)


async def names(g: Setup, path: str = "/api/tags") -> list[str]:
    return [m["name"] for m in (await get(g, path))["models"]]


# -- OpenAI's and Anthropic's ------------------------------------------------------------------

IDS = ["m", "org/model", "a/b/c:q4", "odd%2Fname", "x y", "é"]
PATHS = [
    "m",
    "org/model",
    "org%2Fmodel",
    "org%2fmodel",
    "a/b/c:q4",
    "a%2Fb%2Fc%3Aq4",
    "odd%2Fname",
    "x%20y",
    "%C3%A9",
]


@pytest.mark.parametrize("path", PATHS)
async def test_every_listed_model_can_be_looked_up_plain_or_encoded(path: str) -> None:
    async with gateway("http://127.0.0.1:1", models=IDS) as g:
        listed = {m["id"]: m for m in (await get(g, "/v1/models"))["data"]}
        one = await get(g, f"/v1/models/{path}")
    assert set(listed) == set(IDS)
    assert one == listed[one["id"]]


async def test_anthropics_clients_get_their_list_on_one_page() -> None:
    async with gateway("http://127.0.0.1:1", models=["b", "a"]) as g:
        listed = await get(g, "/v1/models?limit=1000", ANTHROPIC)
        one = await get(g, "/v1/models/a", ANTHROPIC)
        none = await get(g, "/v1/models/zzz", ANTHROPIC)
    assert [m["id"] for m in listed["data"]] == ["a", "b"]
    assert (listed["has_more"], listed["first_id"], listed["last_id"]) == (False, "a", "b")
    assert one == listed["data"][0]
    assert (one["type"], one["display_name"]) == ("model", "a")
    assert (none["type"], none["error"]["type"]) == ("error", "not_found_error")


async def test_an_alias_is_the_name_in_the_lists() -> None:
    async with stub(telling("long")) as s, gateway(
        s.url, recipe=OLLAMA, models=["long"], aliases={"long": "short"}
    ) as g:  # fmt: skip
        assert [m["id"] for m in (await get(g, "/v1/models"))["data"]] == ["short"]
        assert await names(g) == ["short"]
        assert (await get(g, "/api/ps"))["models"][0]["model"] == "short"


@pytest.mark.parametrize("name", ["x", "x:latest"])
async def test_ollamas_other_name_can_be_looked_up_too(name: str) -> None:
    async with gateway("http://127.0.0.1:1", recipe=OLLAMA, models=["x:latest"]) as g:
        assert (await get(g, f"/v1/models/{name}"))["id"] == name


async def test_only_ollama_has_a_second_name_to_look_up() -> None:
    async with gateway("http://127.0.0.1:1", recipe=PLAIN, models=["x:latest"]) as g:
        assert (await g.ask(path="/v1/models/x", method="GET")).status == 404


# -- Ollama's ----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/api/tags", "/api/ps"])
async def test_the_lists_of_several_engines_are_one_and_name_a_model_once(path: str) -> None:
    async with (
        stub(telling("a:7b", "x:latest")) as s,
        stub(telling("x", "b:7b")) as t,
        gateway(s.url, t.url, recipe=OLLAMA) as g,
    ):
        assert await names(g, path) == ["a:7b", "x:latest", "b:7b"]


async def test_what_an_engine_tells_of_a_model_is_all_there() -> None:
    async with stub(telling("a", digest="d", details={"family": "llama"})) as s, gateway(
        s.url, recipe=OLLAMA
    ) as g:  # fmt: skip
        listed = await get(g, "/api/tags")
    assert listed == {"models": [{"name": "a", "model": "a", "digest": "d", "details": {"family": "llama"}}]}


async def test_other_engines_are_not_asked_for_ollamas_lists() -> None:
    async with stub(telling("a")) as s, stub(telling("b")) as t, gateway(s.url, t.url, recipe=OLLAMA) as g:
        listing(g.backends[1], PLAIN, ["b"])
        assert await names(g) == ["a"]
    assert t.requests == []


async def test_an_engine_that_is_down_is_not_waited_for() -> None:
    async with stub(telling("a")) as s, gateway(s.url, "http://127.0.0.1:1", recipe=OLLAMA) as g:
        g.backends[1].lost("refused")
        assert await names(g) == ["a"]


async def frozen(request: Request, _peer: Peer) -> None:
    await request.gone.wait()


async def test_of_a_frozen_engine_the_list_has_what_the_last_round_knew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(native, "LIST_S", 0.05)
    async with stub(telling("a")) as s, stub(frozen) as t, gateway(s.url, t.url, recipe=OLLAMA) as g:
        listing(g.backends[1], OLLAMA, ["b:7b"])
        async with asyncio.timeout(5):
            assert await names(g) == ["a", "b:7b"]
            assert await names(g, "/api/ps") == ["a"]
        assert g.backends[1].up


async def test_of_an_engine_that_froze_later_the_list_has_what_it_said_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(native, "KNOWN_LIST_S", 0.05)
    said = [telling("a", digest="d"), frozen]

    async def engine(request: Request, peer: Peer) -> None:
        await said.pop(0)(request, peer)

    async with stub(engine) as s, gateway(s.url, recipe=OLLAMA) as g:
        async with asyncio.timeout(5):
            assert await get(g, "/api/tags") == await get(g, "/api/tags")
    assert said == []


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"[]", b"{}", b'{"models":7}', b'{"models":[1,{"name":2},{}]}', b"[" * 9999]
)
async def test_a_list_that_is_none_costs_only_that_engines_models(body: bytes) -> None:
    async def engine(_request: Request, peer: Peer) -> None:
        await peer.plain(body)

    async with stub(engine) as s, stub(telling("a")) as t, gateway(s.url, t.url, recipe=OLLAMA) as g:
        client = await g.ask(path="/api/ps", method="GET")
    assert [m["name"] for m in json.loads(client.body)["models"]] == ["a"]


async def test_an_engines_error_is_no_list() -> None:
    async def engine(_request: Request, peer: Peer) -> None:
        await peer.plain(b'{"models":[{"name":"ghost"}]}', "500 Oops")

    async with stub(engine) as s, gateway(s.url, recipe=OLLAMA) as g:
        assert await names(g) == ["m"], "what the last round knew"


@pytest.mark.parametrize("path", ["/api/tags", "/api/ps", "/api/version"])
async def test_with_no_ollama_up_there_is_no_empty_list_but_a_time_to_come_back(path: str) -> None:
    async with gateway("http://127.0.0.1:1") as g:
        client = await g.ask(path=path, method="GET")
    assert (client.status, client.headers[b"retry-after"]) == (503, b"5")
    assert isinstance(json.loads(client.body)["error"], str)


async def test_the_version_is_that_of_the_oldest_ollama() -> None:
    async with gateway("http://127.0.0.1:1", "http://127.0.0.1:2", "http://127.0.0.1:3") as g:
        listing(g.backends[0], OLLAMA, ["m"], "0.32.15")
        listing(g.backends[1], OLLAMA, ["m"], "0.9.1")
        listing(g.backends[2], PLAIN, ["m"], "0.1")
        assert await get(g, "/api/version") == {"version": "0.9.1"}


@pytest.mark.parametrize(
    ("versions", "first"),
    [
        (["0.10.0", "0.9.9"], "0.9.9"),
        (["0.32.15-rc1", "0.33.0"], "0.32.15-rc1"),
        (["x", "0.1"], "x"),
        ([], None),
    ],
)
def test_versions_are_ordered_as_numbers(versions: list[str], first: str | None) -> None:
    assert oldest(versions) == first


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_ollamas_clients_are_told_that_ollama_is_running(method: str) -> None:
    async with gateway("http://127.0.0.1:1") as g:
        client = await g.ask(path="/", method=method)
    assert (client.status, client.headers[b"content-length"]) == (200, b"17")
    assert client.body == (b"Ollama is running" if method == "GET" else b"")


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/m", "/api/tags", "/api/ps", "/api/version"])
async def test_head_has_the_headers_of_get(path: str) -> None:
    async with stub(telling("m")) as s, gateway(s.url) as g:
        listing(g.backends[0], OLLAMA, ["m"], "0.1")
        got, head = [await g.ask(path=path, method=m) for m in ("GET", "HEAD")]
    assert got.body
    assert not head.body
    assert head.headers[b"content-length"] == got.headers[b"content-length"]


# -- /api/show ---------------------------------------------------------------------------------


async def shows(request: Request, peer: Peer) -> None:
    await peer.plain(b'{"capabilities":["completion"]}')


@pytest.mark.parametrize("field", ["name", "model"])
@pytest.mark.parametrize("asked", ["x", "x:latest"])
async def test_a_model_is_shown_under_either_field_and_name(field: str, asked: str) -> None:
    body = json.dumps({field: asked}).encode()
    async with stub(shows) as s, gateway(s.url, recipe=OLLAMA, models=["x:latest"]) as g:
        client = await g.ask(body, path="/api/show")
    assert (client.status, client.body) == (200, b'{"capabilities":["completion"]}')
    assert s.requests[0].body == body


@pytest.mark.parametrize("field", ["name", "model"])
async def test_an_alias_is_shown_under_the_engines_name(field: str) -> None:
    async with stub(shows) as s, gateway(s.url, recipe=OLLAMA, models=["q:7b"], aliases={"q:7b": "q"}) as g:
        await g.ask(json.dumps({field: "q"}).encode(), path="/api/show")
    assert json.loads(s.requests[0].body) == {field: "q:7b"}


async def test_a_field_in_another_case_is_refused() -> None:
    async with gateway("http://127.0.0.1:1", recipe=OLLAMA) as g:
        client = await g.ask(b'{"model":"m","Name":"other"}', path="/api/show")
    assert client.status == 400


async def test_an_unknown_model_is_told_in_ollamas_words() -> None:
    async with gateway("http://127.0.0.1:1", recipe=OLLAMA) as g:
        client = await g.ask(b'{"name":"zzz"}', path="/api/show")
    assert client.status == 404
    assert "model 'zzz' not found" in json.loads(client.body)["error"]


async def test_a_model_is_shown_by_the_next_engine_when_the_first_does_not_answer() -> None:
    async with stub(shows) as gone:
        pass
    async with stub(shows) as s, gateway(gone.url, s.url, recipe=OLLAMA) as g:
        client = await g.ask(path="/api/show")
    assert client.status == 200


async def test_showing_a_model_takes_no_place() -> None:
    seen: list[int] = []

    async def engine(_request: Request, peer: Peer) -> None:
        seen.append(g.scheduler.in_flight_at(g.backends[0].url))
        await peer.plain(b"{}")

    async with stub(engine) as s, gateway(s.url, recipe=OLLAMA) as g:
        client: Client = await g.ask(path="/api/show")
    assert (client.status, seen) == (200, [0])
