"""Starting, being ready, draining."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.accounts.keys import digest_of
from gateway.config import BackendConfig, Config, Digest, Drain, FoundBackend, KeyConfig, Seconds, UsageConfig
from gateway.fleet.stats import Stats
from gateway.runtime import Gateway
from tests.stub import Peer, Request, stub

NOWHERE = "http://127.0.0.1:1"


async def get(gateway: Gateway, path: str, *headers: tuple[bytes, bytes]) -> tuple[int, Any]:
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:
        sent.append(message)

    await gateway({"type": "http", "path": path, "method": "GET", "headers": list(headers)}, receive, send)
    return sent[0]["status"], json.loads(sent[1]["body"])


async def engine(request: Request, peer: Peer) -> None:
    if request.line.startswith("GET /v1/models "):
        await peer.plain(b'{"object":"list","data":[{"id":"m","object":"model"}]}')
    else:
        await peer.plain(b"{}", "404 Not Found")


async def ready(gateway: Gateway) -> None:
    async with asyncio.timeout(10):
        while (await get(gateway, "/healthz"))[0] != 200:
            await asyncio.sleep(0.01)


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not true():
            await asyncio.sleep(0.005)


async def test_it_is_ready_once_every_backend_had_its_first_round() -> None:
    async with stub(engine) as s:
        gateway = Gateway(Config(backends=[BackendConfig(url=s.url), BackendConfig(url=NOWHERE)]))
        assert (await get(gateway, "/healthz"))[1]["status"] == "starting"
        await gateway.start()
        await ready(gateway)
        status, health = await get(gateway, "/healthz")
        models = (await get(gateway, "/v1/models"))[1]
        await gateway.stop()
    assert (status, health["status"], health["backends"][s.url]) == (200, "ok", "up")
    assert "nothing answers" in health["backends"][NOWHERE]
    assert [m["id"] for m in models["data"]] == ["m"]


async def test_an_engine_that_was_looked_for_and_is_not_there_is_no_fault() -> None:
    gateway = Gateway(Config(backends=[FoundBackend(url=NOWHERE)]))
    await gateway.start()
    await ready(gateway)
    assert (await get(gateway, "/healthz"))[1]["backends"] == {}
    await gateway.stop()


async def test_draining_turns_health_red_and_ends_when_the_last_request_has() -> None:
    gateway = Gateway(Config(drain=Drain(grace=Seconds(0.01), timeout=Seconds(5))))
    await gateway.start()
    await ready(gateway)
    gateway.in_flight = 1
    gateway.begin_drain()
    assert await get(gateway, "/healthz") == (503, {"status": "draining", "backends": {}})
    drained = asyncio.create_task(gateway.drained())
    await asyncio.sleep(0.05)
    assert not drained.done()
    gateway.in_flight = 0
    await get(gateway, "/v1/models")  # the end of any request is looked at
    await asyncio.wait_for(drained, 1)
    await gateway.stop()


async def test_a_request_longer_than_the_drain_timeout_does_not_hold_it() -> None:
    gateway = Gateway(Config(drain=Drain(grace=Seconds(0.01), timeout=Seconds(0.05))))
    gateway.in_flight = 1
    gateway.begin_drain()
    await asyncio.wait_for(gateway.drained(), 1)


async def test_a_scrape_of_our_own_is_told_whom_it_asks() -> None:
    gateway = Gateway(Config())
    status, body = await get(gateway, "/v1/models", (b"x-pharos-instance", gateway.instance.encode()))
    assert (status, body["error"]["code"]) == (508, "loop")
    other, _ = await get(gateway, "/v1/models", (b"x-pharos-instance", b"another"))
    assert other == 200, "another Pharos may stand behind this one"


async def test_every_scrape_says_who_asks() -> None:
    async with stub(engine) as s:
        gateway = Gateway(Config(backends=[BackendConfig(url=s.url)]))
        await gateway.start()
        await ready(gateway)
        await gateway.stop()
    assert {tuple(r.header("x-pharos-instance")) for r in s.requests} == {(gateway.instance,)}


async def chatting(request: Request, peer: Peer) -> None:
    if request.line.startswith("POST"):
        await asyncio.sleep(0.01)
        await peer.plain(b'{"choices":[{"finish_reason":"stop"}]}')
    else:
        await engine(request, peer)


async def post(gateway: Gateway, sent: list[Any] | None = None) -> tuple[int, dict[bytes, bytes]]:
    sent = [] if sent is None else sent
    inbox: asyncio.Queue[Any] = asyncio.Queue()
    inbox.put_nowait({"type": "http.request", "body": b'{"model":"m"}'})

    async def send(message: Any) -> None:
        sent.append(message)

    path = {"path": "/v1/chat/completions", "raw_path": b"/v1/chat/completions"}
    await gateway({"type": "http", **path, "method": "POST", "headers": []}, inbox.get, send)
    return sent[0]["status"], dict(sent[0]["headers"])


async def test_an_answer_teaches_how_long_a_request_takes_there() -> None:
    async with stub(chatting) as s:
        gateway = Gateway(Config(backends=[BackendConfig(url=s.url)]))
        await gateway.start()
        await ready(gateway)
        (target,) = gateway.fleet.targets_of("m")
        assert target.stats == Stats()
        assert (await post(gateway))[0] == 200
        await gateway.stop()
    assert target.stats.service_s is not None
    assert target.stats.service_s >= 0.01


async def test_a_backend_taken_out_gets_no_new_request_and_ends_the_one_it_has() -> None:
    hold = asyncio.Event()

    async def slow(request: Request, peer: Peer) -> None:
        if request.line.startswith("POST"):
            await hold.wait()
        await chatting(request, peer)

    async with stub(slow) as s, stub(chatting) as other:
        gateway = Gateway(Config(backends=[BackendConfig(url=s.url)]))
        await gateway.start()
        await ready(gateway)
        first = asyncio.create_task(post(gateway))
        await until(lambda: gateway.scheduler.in_flight_at(s.url) == 1)
        gateway.set_backends([BackendConfig(url=other.url)])
        await until(lambda: bool(gateway.fleet.targets_of("m")))
        assert (await post(gateway))[1][b"x-pharos-backend"] == other.url.encode()
        hold.set()
        assert (await first)[1][b"x-pharos-backend"] == s.url.encode()
        await until(lambda: len(gateway._pools) == 1)
        await gateway.stop()


async def test_a_backend_put_back_at_once_is_watched_again() -> None:
    async with stub(engine) as s:
        config = BackendConfig(url=s.url)
        gateway = Gateway(Config(backends=[config]))
        await gateway.start()
        await ready(gateway)
        gateway.set_backends([])
        assert gateway.fleet.models() == {}
        gateway.set_backends([config])
        await until(lambda: bool(gateway.fleet.models()))
        await gateway.stop()


async def test_nothing_is_left_running_after_the_stop() -> None:
    before = asyncio.all_tasks()
    async with stub(engine) as s:
        gateway = Gateway(Config(backends=[BackendConfig(url=s.url, logs="file:///nowhere/engine.log")]))
        await gateway.start()
        await ready(gateway)
        gateway.set_backends([])
        await gateway.stop()
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before


async def test_an_edited_config_is_used_while_it_runs_and_what_cannot_be_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with stub(engine) as s:
        gateway = Gateway(Config())
        await gateway.start()
        assert gateway.fleet.models() == {}
        edited = Config(
            backends=[BackendConfig(url=s.url)], drain=Drain(grace=Seconds(9)), policy="least_load"
        )
        gateway.reconfigure(edited)
        await until(lambda: bool(gateway.fleet.models()))
        assert gateway.config.drain.grace == Seconds(9)
        assert gateway.config.policy == "cost"
        assert list(gateway.needs_restart) == ["policy"]
        assert "needs a restart: policy" in caplog.text
        gateway.reconfigure(Config(backends=[BackendConfig(url=s.url)], drain=Drain(grace=Seconds(9))))
        assert list(gateway.needs_restart) == []
        await gateway.stop()


async def test_a_key_taken_out_of_the_config_is_shut_out_at_once_and_a_new_one_let_in() -> None:
    async with stub(engine) as s:
        gateway = Gateway(Config(backends=[BackendConfig(url=s.url)], keys=[KEY]))
        await gateway.start()
        await ready(gateway)
        new = KeyConfig(name="bob", sha256=Digest(digest_of("sk-b")))
        gateway.reconfigure(Config(backends=[BackendConfig(url=s.url)], keys=[new]))
        old = await get(gateway, "/v1/models", (b"authorization", b"Bearer sk-a"))
        now = await get(gateway, "/v1/models", (b"authorization", b"Bearer sk-b"))
        await gateway.stop()
    assert (old[0], now[0]) == (401, 200)


# -- keys --------------------------------------------------------------------------------------

KEY = KeyConfig(name="alice", sha256=Digest(digest_of("sk-a")))


async def test_with_keys_all_but_its_health_is_shut(caplog: pytest.LogCaptureFixture) -> None:
    async with stub(engine) as s:
        gateway = Gateway(Config(backends=[BackendConfig(url=s.url)], keys=[KEY]))
        await gateway.start()
        await ready(gateway)
        without = await get(gateway, "/v1/models")
        status, models = await get(gateway, "/v1/models", (b"authorization", b"Bearer sk-a"))
        await gateway.stop()
    assert (without[0], without[1]["error"]["code"]) == (401, "invalid_api_key")
    assert (status, [m["id"] for m in models["data"]]) == (200, ["m"])
    assert "no keys" not in caplog.text


async def test_that_everybody_may_use_it_is_said_at_the_start(caplog: pytest.LogCaptureFixture) -> None:
    gateway = Gateway(Config())
    await gateway.start()
    await gateway.stop()
    assert "there are no keys: everybody who reaches 127.0.0.1:8090 may use it" in caplog.text


def test_the_day_of_the_usage_is_that_of_the_config() -> None:
    config = Config(usage=UsageConfig(timezone="Asia/Bangkok", retention_days=7))
    accounts = Gateway(config, wall=lambda: 17 * 3600.0).accounts
    assert (accounts.today, accounts.usage.retention_days) == (1, 7)


def test_the_machines_own_zone_is_known_after_django_has_overwritten_it() -> None:
    code = "from django.conf import settings; print(settings.HOST_TZ, settings.TIME_ZONE)"
    env = {**os.environ, "TZ": "Asia/Tokyo", "DJANGO_SETTINGS_MODULE": "pharos_site.settings"}
    said = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["Asia/Tokyo", "UTC"]


async def test_the_queue_is_served_until_the_grace_is_over_and_then_told_to_come_back() -> None:
    hold = asyncio.Event()

    async def slow(request: Request, peer: Peer) -> None:
        if request.line.startswith("POST"):
            await hold.wait()
        await chatting(request, peer)

    async with stub(slow) as s:
        drain = Drain(grace=Seconds(0.1), timeout=Seconds(10))
        gateway = Gateway(Config(backends=[BackendConfig(url=s.url, capacity=1)], drain=drain))
        await gateway.start()
        await ready(gateway)
        first = asyncio.create_task(post(gateway))
        await until(lambda: gateway.scheduler.in_flight_at(s.url) == 1)
        second = asyncio.create_task(post(gateway))
        await until(lambda: gateway.scheduler.waiting == 1)
        gateway.begin_drain()
        drained = asyncio.create_task(gateway.drained())
        status, headers = await second
        assert not first.done()
        hold.set()
        await drained
        await gateway.stop()
    assert (status, headers[b"retry-after"], (await first)[0]) == (503, b"5", 200)
