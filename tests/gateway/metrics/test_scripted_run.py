"""A gateway in front of two engines, a script of requests, and a count of our own beside the page's."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from gateway.accounts.keys import digest_of
from gateway.config import BackendConfig, Config, Digest, KeyConfig
from gateway.runtime import Gateway
from tests.gateway.metrics.read import Page, read
from tests.gateway.proxy.bench import FINISH, Client
from tests.stub import Peer, Request, Stub, stub

CHAT = "/v1/chat/completions"
SECRET, PROMPT = "sk-of-alice-only", "a word that nobody may read"
MODEL, ELSEWHERE = "m", "at-the-other"


def engine(model: str, *, usage: tuple[int, int, int] | None = None, refuses: bool = False) -> Any:
    """`usage`: tokens of prompt, of answer, and cached. `hold` in a prompt: it answers when it is abandoned."""

    async def answer(request: Request, peer: Peer) -> None:
        if request.line.startswith("GET /v1/models "):
            await peer.plain(json.dumps({"object": "list", "data": [{"id": model}]}).encode())
        elif not request.line.startswith("POST"):
            await peer.plain(b"{}", "404 Not Found")
        elif refuses:
            await peer.plain(b'{"error":{"message":"full"}}', "503 Service Unavailable")
        elif b"hold" in request.body:
            await request.gone.wait()
        elif b'"max_tokens":-1' in request.body:
            await peer.plain(b'{"error":{"message":"no"}}', "400 Bad Request")
        elif b'"stream":true' in request.body:
            await peer.stream_head()
            await peer.chunk(b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n')
            await peer.chunk(FINISH)
            if usage is not None:
                await peer.chunk(b'data: {"choices":[],"usage":%s}\n\n' % reported(usage))
            await peer.chunk(b"data: [DONE]\n\n")
            await peer.end()
        else:
            said = b"" if usage is None else b',"usage":%s' % reported(usage)
            await peer.plain(b'{"choices":[{"finish_reason":"stop"}]%s}' % said)

    return answer


def reported(usage: tuple[int, int, int]) -> bytes:
    prompt, completion, cached = usage
    return json.dumps(
        {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "prompt_tokens_details": {"cached_tokens": cached},
        }
    ).encode()


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass(slots=True)
class Run:
    gateway: Gateway
    came: Counter[tuple[str, str, str]] = field(default_factory=Counter)  # as clients saw it

    async def ask(
        self, path: str = CHAT, *, key: str = "alice", secret: str = SECRET, label: str | None = None,
        leaves: bool = False, method: str = "POST", **body: Any,
    ) -> Client:  # fmt: skip
        """`key` and `label` (of the model) are those under which the request is to be counted."""
        client = Client()
        body = {"messages": [{"role": "user", "content": PROMPT}], **body}
        client.inbox.put_nowait(
            {"type": "http.request", "body": json.dumps(body, separators=(",", ":")).encode()}
        )
        headers = [(b"authorization", f"Bearer {secret}".encode())] if secret else []
        work = asyncio.ensure_future(
            self.gateway(client.scope(path, method, headers, seam=True), client.inbox.get, client.send)
        )
        if leaves:
            await until(lambda: self.gateway.scheduler.in_flight_at(self.gateway.fleet.backends[0].url) == 1)
            client.leave()
        await work
        label = str(body.get("model", "")) if label is None else label
        self.came[key, label, "499" if leaves else str(client.status)] += 1
        return client

    async def page(self) -> Page:
        client = Client()
        await self.gateway(client.scope("/metrics", "GET", [], seam=True), client.inbox.get, client.send)
        assert (client.status, client.ended) == (200, True)
        assert client.headers[b"content-type"].startswith(b"text/plain; version=0.0.4")
        assert SECRET not in client.body.decode()
        assert PROMPT not in client.body.decode()
        return read(client.body)


async def until(true: Any) -> None:
    async with asyncio.timeout(10):
        while not true():
            await asyncio.sleep(0.005)


@asynccontextmanager
async def running(
    *engines: Stub, now: Callable[[], float] = time.monotonic, **config: Any
) -> AsyncIterator[Run]:
    keys = [
        KeyConfig(name="alice", sha256=Digest(digest_of(SECRET))),
        KeyConfig(name="bob", sha256=Digest(digest_of("sk-b")), rpm=1, models=[MODEL]),
    ]
    backends = [BackendConfig(url=s.url, kind="openai", capacity=2) for s in engines]
    gateway = Gateway(Config(backends=backends, keys=keys, **config), now)
    await gateway.start()
    await until(lambda: gateway.ready)
    try:
        yield Run(gateway)
    finally:
        await gateway.stop()


async def scripted(run: Run) -> None:
    for _ in range(3):
        await run.ask(model=MODEL)
    await run.ask(model=MODEL, stream=True)
    await run.ask(model=ELSEWHERE)
    await run.ask(model=MODEL, max_tokens=-1)
    await run.ask(model=MODEL, stream=True, hold="hold", leaves=True)
    await run.ask(model=MODEL, secret="sk-b", key="bob")
    await run.ask(model=MODEL, secret="sk-b", key="bob")  # its second in a minute
    await run.ask(model=ELSEWHERE, secret="sk-b", key="bob")  # not for it
    await run.ask(model=MODEL, secret="sk-wrong", key="", label="")  # nothing of it was read
    for i in range(20):
        await run.ask(model=f"guess-{i}", label="other")
    await run.ask()  # it names no model
    await run.ask("/v1/models", method="GET", label="")
    await run.ask("/", method="GET", secret="", key="", label="")


@pytest.fixture
async def ran() -> AsyncIterator[tuple[Run, Page]]:
    async with (
        stub(engine(MODEL, usage=(100, 7, 40))) as a,
        stub(engine(ELSEWHERE)) as b,
        running(a, b) as run,
    ):
        await scripted(run)
        yield run, await run.page()


async def test_requests_are_those_that_clients_made(ran: tuple[Run, Page]) -> None:
    run, page = ran
    assert page.table("pharos_requests_total", "key", "model", "status") == run.came


async def test_tokens_are_those_that_engines_reported(ran: tuple[Run, Page]) -> None:
    _, page = ran
    told = page.table("pharos_tokens_total", "key", "model", "type")
    assert {k: v for k, v in told.items() if v} == {
        ("alice", MODEL, "prompt"): 400, ("alice", MODEL, "completion"): 28, ("alice", MODEL, "cached"): 160,
        ("bob", MODEL, "prompt"): 100, ("bob", MODEL, "completion"): 7, ("bob", MODEL, "cached"): 40,
    }  # fmt: skip


async def test_the_page_and_the_usage_of_the_day_say_the_same(ran: tuple[Run, Page]) -> None:
    run, page = ran
    accounts = run.gateway.accounts
    for key in ("alice", "bob"):
        table = page.table("pharos_tokens_total", "key", "model", "type")
        charged = sum(v for (k, _, kind), v in table.items() if k == key and kind != "cached")
        assert charged == accounts.usage.tokens(accounts.today, key)


async def test_what_no_engine_told_is_unmetered_and_not_0_tokens(ran: tuple[Run, Page]) -> None:
    _, page = ran
    table = page.table("pharos_unmetered_requests_total", "key", "model")
    assert {k: v for k, v in table.items() if v} == {("alice", ELSEWHERE): 1, ("alice", MODEL): 1}
    assert page("pharos_tokens_total", key="alice", model=ELSEWHERE, type="prompt") is None


async def test_times_are_of_as_many_requests_as_there_were(ran: tuple[Run, Page]) -> None:
    _, page = ran
    reached = {"alice": 7, "bob": 1}
    assert page("pharos_ttft_seconds_count", model=MODEL) == 1, "one stream came to its first token"
    assert page("pharos_overhead_seconds_count") == sum(reached.values())
    assert page.table("pharos_queue_wait_seconds_count", "key") == {(k,): v for k, v in reached.items()}
    assert page("pharos_queue_wait_seconds_sum", key="alice") == 0, "nobody waited"


async def test_decisions_are_those_of_the_script(ran: tuple[Run, Page]) -> None:
    _, page = ran
    table = page.table("pharos_decisions_total", "stage", "outcome")
    asked = ("admission", "usage", "route", "queue", "load", "upstream")
    assert {k: v for k, v in table.items() if v and k[0] in asked} == {
        ("admission", "ok"): 8, ("admission", "rate_limited"): 1, ("admission", "model_not_allowed"): 1,
        ("admission", "unauthorized"): 1, ("admission", "bad_request"): 1,
        ("usage", "pharos_asked"): 2,
        ("route", "only_choice"): 8, ("route", "unknown_model"): 20,
        ("queue", "immediate"): 8,
        ("upstream", "ok"): 6, ("upstream", "error_status"): 1, ("upstream", "client_left"): 1,
    }  # fmt: skip
    assert (table["resolve", "new_plan"], table["resolve", "failed"]) == (2, 0)


async def test_what_is_so_now_is_there_for_each_backend_and_target(ran: tuple[Run, Page]) -> None:
    run, page = ran
    a, b = (x.url for x in run.gateway.fleet.backends)
    assert page.table("pharos_backend_up", "backend", "kind") == {(a, "openai"): 1, (b, "openai"): 1}
    targets = {(a, MODEL), (b, ELSEWHERE)}
    assert page.table("pharos_target_inflight", "backend", "model") == dict.fromkeys(targets, 0)
    unknown = page.table("pharos_target_signals_unknown", "backend", "model")
    assert unknown == dict.fromkeys(targets, 3), "the config tells capacity, and their replies residency"
    assert page("pharos_queue_waiting") == 0


async def test_no_name_that_only_a_client_said_is_on_the_page(ran: tuple[Run, Page]) -> None:
    _, page = ran
    assert page.where(lambda v: "guess" in v or "sk-" in v) == set()


async def test_a_backend_that_is_taken_out_is_gone_and_what_it_did_stays(ran: tuple[Run, Page]) -> None:
    run, before = ran
    kept, gone = run.gateway.fleet.backends
    run.gateway.set_backends([kept.config])
    page = await run.page()
    assert page.where(lambda v: v == gone.url) == set()
    assert page.where(lambda v: v == kept.url) == {kept.url}
    assert page.of("pharos_requests_total") == before.of("pharos_requests_total")


async def test_requests_at_an_engine_and_in_the_queue_are_seen_while_they_are_there() -> None:
    async with stub(engine(MODEL)) as a, running(a) as run:
        held = [asyncio.create_task(run.ask(model=MODEL, hold="hold")) for _ in range(3)]
        await until(lambda: run.gateway.scheduler.waiting == 1)
        page = await run.page()
        for task in held:
            task.cancel()
        await asyncio.gather(*held, return_exceptions=True)
    assert page("pharos_target_inflight", backend=a.url, model=MODEL) == 2
    assert page("pharos_queue_waiting") == 1


async def test_a_wait_for_a_place_is_no_overhead() -> None:
    clock = Clock()
    async with stub(engine(MODEL)) as a, running(a, now=clock) as run:
        held = [asyncio.create_task(run.ask(model=MODEL, hold="hold")) for _ in range(2)]
        await until(lambda: run.gateway.scheduler.in_flight_at(a.url) == 2)
        waiter = asyncio.create_task(run.ask(model=MODEL))
        await until(lambda: run.gateway.scheduler.waiting == 1)
        clock.now += 10
        for task in held:
            task.cancel()
        await asyncio.gather(*held, return_exceptions=True)
        await waiter
        page = await run.page()
    assert page("pharos_queue_wait_seconds_sum", key="alice") == 10
    assert page("pharos_queue_wait_seconds_bucket", key="alice", le="0.001") == 2, "the two that held it up"
    assert page("pharos_overhead_seconds_sum") == 0, "by a clock that stood still but for the wait"
    assert page("pharos_decisions_total", stage="queue", outcome="waited") == 1


async def test_an_engine_that_is_full_and_another_that_is_not_are_two_attempts_of_one_request() -> None:
    async with (
        stub(engine(MODEL, refuses=True)) as full,
        stub(engine(MODEL)) as free,
        running(full, free, policy="least_load") as run,
    ):
        statuses = [(await run.ask(model=MODEL)).status for _ in range(8)]
        page = await run.page()
    refused = len([r for r in full.requests if r.line.startswith("POST")])
    table = page.table("pharos_decisions_total", "stage", "outcome")
    assert statuses == [200] * 8
    assert table["upstream", "busy_retried"] == refused
    assert table["queue", "immediate"] == 8 + refused
    assert page.table("pharos_requests_total", "key", "model", "status") == {("alice", MODEL, "200"): 8}


async def test_a_refusal_handed_over_after_all_is_no_further_attempt() -> None:
    async with (
        stub(engine(MODEL, refuses=True)) as one,
        stub(engine(MODEL, refuses=True)) as two,
        running(one, two) as run,
    ):
        assert (await run.ask(model=MODEL)).status == 503
        page = await run.page()
    table = page.table("pharos_decisions_total", "stage", "outcome")
    attempts = len([r for s in (one, two) for r in s.requests if r.line.startswith("POST")])
    assert (attempts, table["queue", "immediate"]) == (2, 2)
    assert sum(v for (stage, _), v in table.items() if stage == "upstream") == 2


async def test_the_time_an_engine_takes_to_refuse_is_no_overhead() -> None:
    clock = Clock()

    async def slow(request: Request, peer: Peer) -> None:
        clock.now += 5 if request.line.startswith("POST") else 0
        await engine(MODEL, refuses=True)(request, peer)

    async with stub(slow) as one, stub(slow) as two, running(one, two, now=clock) as run:
        assert (await run.ask(model=MODEL)).status == 503
        page = await run.page()
    assert (page("pharos_overhead_seconds_count"), page("pharos_overhead_seconds_sum")) == (1, 0)
