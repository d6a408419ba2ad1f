"""Two people share the four slots of a real engine."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.config import BackendConfig, Config
from gateway.demo import install
from gateway.demo.engines import NEWEST, LlamaServer
from gateway.proxy.done import Done
from gateway.runtime import Gateway
from tests.gateway.proxy.bench import Client
from tests.live.engine import chat
from tests.live.stage import plain
from tests.live.talk import PATIENCE_S

pytestmark = pytest.mark.live

MANY, FEW = "many", "few"


@asynccontextmanager
async def gateway_for(engine: LlamaServer, done: list[Done]) -> AsyncIterator[Gateway]:
    """Without a server before it, so that the test sees what the gateway knows of each request."""
    gateway = Gateway(Config(backends=[BackendConfig(url=engine.url)]))
    gateway.consumer.on_done = done.append
    await gateway.start()
    try:
        await until(lambda: gateway.ready)
        yield gateway
    finally:
        await gateway.stop()


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not true():
            await asyncio.sleep(0.01)


def ask(gateway: Gateway, key: str, number: int, tokens: int) -> asyncio.Task[Client]:
    async def one() -> Client:
        client = Client()
        client.inbox.put_nowait({"type": "http.request", "body": json.dumps(chat(tokens=tokens)).encode()})
        headers = [
            (b"authorization", f"Bearer {key}".encode()),
            (b"x-request-id", f"{key}-{number}".encode()),
        ]
        scope = client.scope("/v1/chat/completions", "POST", headers, seam=True)
        await gateway(scope, client.inbox.get, client.send)
        return client

    return asyncio.create_task(one())


async def test_sixteen_requests_on_four_slots_all_end_and_the_two_keys_take_turns(tmp_path: Path) -> None:
    install.install(install.LLAMA_SERVERS[NEWEST])
    install.install(install.SMOLLM2)
    done: list[Done] = []
    with plain(tmp_path, slots=4) as engine:
        engine.wait_ready()
        async with gateway_for(engine, done) as gateway:
            # The first four are long: nothing is granted before all wait.
            asked = [ask(gateway, MANY, n, 150 if n < 4 else 10) for n in range(12)]
            await until(lambda: gateway.scheduler.waiting == 8)
            asked += [ask(gateway, FEW, n, 10) for n in range(4)]
            await until(lambda: gateway.scheduler.waiting == 12)
            clients = await asyncio.gather(*asked)
    assert [(client.status, client.cut, client.ended) for client in clients] == [(200, False, True)] * 16
    assert Counter(one.outcome for one in done) == {"ok": 16}
    granted = sorted((one.arrived + (one.granted_s or 0.0), one.request_id) for one in done)
    keys = [request_id.partition("-")[0] for _, request_id in granted]
    shared = keys[4:12]
    assert keys[:4] == keys[12:] == [MANY] * 4
    assert Counter(zip(shared[::2], shared[1::2], strict=True)) in (
        {(MANY, FEW): 4},
        {(FEW, MANY): 4},
    ), keys
