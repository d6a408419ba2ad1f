"""An engine whose process is stopped and goes on later: it takes connections, and says nothing."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.gateway.proxy.scene import CHAT, Scene, scene
from tests.pharos_site.raw import ROOT


@dataclass
class Engine:
    process: subprocess.Popen[str]
    url: str

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    command = [sys.executable, "manage.py", "pharos_double", "vllm", "--model", "m", "--speed", "20"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    found = re.match(r"http://\S+", process.stdout.readline())
    assert found is not None
    yield Engine(process, found[0])
    process.send_signal(signal.SIGCONT)
    process.kill()
    process.wait(5)
    process.stdout.close()


@pytest.fixture
def frozen(engine: Engine) -> Iterator[Engine]:
    """To be frozen by the test; goes on after it."""
    yield engine
    engine.thaw()


async def well(s: Scene) -> bool:
    client = await s.ask(CHAT.path, CHAT.body("m", stream=True, tokens=3))
    return (client.status, client.ended) == (200, True)


async def test_frozen_in_a_stream_the_client_is_told_and_cut_and_the_engine_is_not_taken_for_dead(
    frozen: Engine,
) -> None:
    async with scene(urls=[frozen.url], idle_s=0.3) as s:
        asked = s.start(CHAT.path, CHAT.body("m", stream=True, tokens=10_000))
        await asked.heard()
        frozen.freeze()
        client = await asked.over()
        assert (client.status, client.cut, client.ended) == (200, True, False)
        assert b"sent nothing for 0.3 s" in client.body
        assert s.gateway.fleet.backends[0].up
        frozen.thaw()
        assert await well(s)
        await s.at_rest()


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
async def test_frozen_before_a_request_it_is_a_504_for_that_one_and_used_again_later(
    frozen: Engine, stream: bool
) -> None:
    async with scene(urls=[frozen.url], first_byte_s=0.5) as s:
        assert await well(s)
        frozen.freeze()
        client = await s.ask(CHAT.path, CHAT.body("m", stream=stream))
        assert (client.status, client.ended) == (504, True)
        assert frozen.url in CHAT.message(client.body)
        frozen.thaw()
        assert await well(s)
        await s.at_rest()


async def test_clients_that_leave_a_frozen_engine_leave_nothing_with_the_gateway(frozen: Engine) -> None:
    async with scene(urls=[frozen.url]) as s:
        streaming = s.start(CHAT.path, CHAT.body("m", stream=True, tokens=10_000))
        await streaming.heard()
        frozen.freeze()
        waiting = [s.start(CHAT.path, CHAT.body("m", stream=bool(i % 2))) for i in range(4)]
        await asyncio.sleep(0.05)
        for asked in (*waiting, streaming):
            assert not (await asked.leaves()).ended
        await s.at_rest()
        frozen.thaw()
        assert await well(s)
