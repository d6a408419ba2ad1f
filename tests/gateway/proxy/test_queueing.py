"""What a request meets when every place is taken."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from tests.gateway.proxy.bench import BODY, STREAM, STREAM_SENT_ON, Client, Setup, chat, gateway
from tests.stub import Handler, Peer, Request, stub


@dataclass(slots=True)
class Gate:
    """An engine that answers each request when it is told to."""

    order: list[bytes] = field(default_factory=list)
    open: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, request: Request, peer: Peer) -> None:
        self.order.append(request.body)
        await self.open.wait()
        await chat(request, peer)


def asking(
    g: Setup, body: bytes = BODY, client: Client | None = None, key: bytes | None = None
) -> asyncio.Task[Client]:
    headers = [(b"authorization", b"Bearer " + key)] if key else []
    return asyncio.create_task(g.ask(body, client=client, headers=headers))


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not true():
            await asyncio.sleep(0.001)


async def settled(g: Setup, gate: Gate, *, at_work: int = 1, waiting: int) -> None:
    await until(lambda: (len(gate.order), g.scheduler.waiting) == (at_work, waiting))


@asynccontextmanager
async def one_place(engine: Handler, queue: int = 1000) -> AsyncIterator[Setup]:
    async with stub(engine) as s, gateway(s.url, capacity=1, queue=queue) as g:
        yield g


async def test_who_finds_no_place_waits_and_is_served() -> None:
    gate = Gate()
    async with one_place(gate) as g:
        both = [asking(g), asking(g)]
        await settled(g, gate, waiting=1)
        gate.open.set()
        assert [(await task).status for task in both] == [200, 200]
    assert g.done[1].granted_s is not None
    assert g.done[1].granted_s > 0


async def test_a_full_queue_turns_the_next_away_with_a_time_to_come_back() -> None:
    gate = Gate()
    async with one_place(gate, queue=1) as g:
        both = [asking(g), asking(g)]
        await settled(g, gate, waiting=1)
        refused = await g.ask()
        gate.open.set()
        await asyncio.gather(*both)
    assert (refused.status, refused.error["code"]) == (429, "queue_full")
    assert 1 <= int(refused.headers[b"retry-after"]) <= 60


async def test_a_client_that_leaves_the_queue_is_never_sent() -> None:
    gate, leaver = Gate(), Client()
    async with one_place(gate) as g:
        first = asking(g)
        await settled(g, gate, waiting=0)
        second = asking(g, client=leaver)
        await settled(g, gate, waiting=1)
        leaver.leave()
        await second
        assert g.scheduler.waiting == 0
        gate.open.set()
        assert (await first).status == 200
    assert (len(gate.order), g.done[0].outcome, leaver.sent) == (1, "client_left", [])


async def test_keys_take_turns_however_many_requests_one_has() -> None:
    gate = Gate()
    async with one_place(gate) as g:
        tasks = [asking(g, key=b"greedy") for _ in range(4)]
        await settled(g, gate, waiting=3)
        tasks.append(asking(g, STREAM, key=b"modest"))
        await settled(g, gate, waiting=4)
        gate.open.set()
        await asyncio.gather(*tasks)
    assert gate.order.index(STREAM_SENT_ON) <= 2


async def test_who_waits_for_an_engine_that_is_lost_is_told_to_come_back() -> None:
    gate = Gate()
    async with one_place(gate) as g:
        first = asking(g)
        second = asking(g)
        await settled(g, gate, waiting=1)
        g.backends[0].lost("gone")
        client = await second
        gate.open.set()
        await first
    assert (client.status, client.error["code"]) == (503, "model_unavailable")
    assert client.headers[b"retry-after"] == b"5"


async def test_a_waiting_stream_is_told_of_the_queue_and_how_long_it_may_take() -> None:
    gate, client = Gate(), Client()
    async with stub(gate) as s, gateway(s.url, capacity=1, wait_comment_s=0.01) as g:
        first = asking(g)
        await settled(g, gate, waiting=0)
        second = asking(g, STREAM, client)
        await until(lambda: b"\n\n" in client.body)
        gate.open.set()
        await asyncio.gather(first, second)
    assert client.body.startswith(
        b": waiting for a free place at an engine that serves m, 0 s so far, about "
    )


@pytest.mark.parametrize("status", ["503 Full", "429 Slow down"])
async def test_a_request_refused_by_one_engine_waits_for_a_place_at_the_other(status: str) -> None:
    gate = Gate()

    async def full(_request: Request, peer: Peer) -> None:
        await peer.plain(b"{}", status)

    async with stub(full) as a, stub(gate) as b, gateway(a.url, b.url, capacity=1) as g:
        with g.busy(0):
            held = asking(g)  # takes the one place at the second
            await settled(g, gate, waiting=0)
        refused = asking(g, STREAM)
        await settled(g, gate, waiting=1)
        assert len(a.requests) == 1
        gate.open.set()
        clients = await asyncio.gather(held, refused)
    assert [c.status for c in clients] == [200, 200]
    assert gate.order == [BODY, STREAM_SENT_ON]
