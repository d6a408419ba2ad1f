"""A real llama.cpp that is loading, asleep, or a router: told apart, and left as it was found."""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from pathlib import Path

import httpx
import pytest

from engines.detect import Undetected, detect
from engines.fetch import Fault, HttpFetch
from engines.plan import Unreachable, resolve, scrape
from engines.recipes import RECIPES
from engines.signals import Residency
from gateway.demo.engines import MODEL_NAME, LlamaServer, model_file
from tests.live.engine import chat, client, until, watching

pytestmark = pytest.mark.live

ROUNDS = 4
RESOLVED = "resolved"


async def test_a_loading_engine_is_recognised_and_not_called_ready(version: str, tmp_path: Path) -> None:
    """The listener is up at once and answers 503 on every path until the model is loaded."""
    seen: Counter[str] = Counter()
    for _ in range(5):  # the state lasts some tenths of a second
        with LlamaServer(tmp_path, version=version, slots=8) as server:
            seen += await visits_until_resolved(server)
        if seen[Fault.LOADING]:
            break
    assert set(seen) <= {Fault.REFUSED, Fault.LOADING, RESOLVED}
    assert seen[Fault.LOADING]
    assert seen[RESOLVED]


async def visits_until_resolved(server: LlamaServer) -> Counter[str]:
    """What each visit of Pharos, from the first moment on, took the engine for."""
    seen: Counter[str] = Counter()

    async def visit(get: HttpFetch) -> str:
        try:
            found = await detect(get)
            assert found.kind == "llamacpp"
            await resolve(get, RECIPES[found.kind])
        except (Undetected, Unreachable) as e:
            seen[e.fault] += 1
            return e.fault
        seen[RESOLVED] += 1
        return RESOLVED

    async with client() as http:
        get = HttpFetch(http, server.url)
        assert await until(lambda: visit(get), lambda outcome: outcome == RESOLVED, 0.01) == RESOLVED
    return seen


async def is_sleeping(http: httpx.AsyncClient, server: LlamaServer) -> bool:
    """`/props` answers from what is known and never wakes the model (b9093 to b11434)."""
    return bool((await http.get(f"{server.url}/props")).json()["is_sleeping"])


async def test_a_sleeping_engine_is_left_asleep(version: str, tmp_path: Path) -> None:
    extra = ["--metrics", "--sleep-idle-seconds", "1"]
    with LlamaServer(tmp_path, version=version, extra=extra) as server:
        server.wait_ready()
        async with watching(server.url) as seen, client() as http:
            assert await until(lambda: is_sleeping(http, server), bool, 0.25)
            for number in range(ROUNDS):
                round_ = await scrape(seen.get, seen.plan, load_only=number % 2 == 0)
                assert not round_.failed
                await asyncio.sleep(0.5)  # the time a wake-up would need to show
                assert await is_sleeping(http, server)
            reply = await http.post(f"{server.url}/v1/chat/completions", json=chat(tokens=4, stream=False))
            assert reply.status_code == 200


async def test_a_sleeping_engine_is_recognised_without_waking_it(version: str, tmp_path: Path) -> None:
    with LlamaServer(tmp_path, version=version, extra=["--metrics", "--sleep-idle-seconds", "1"]) as server:
        server.wait_ready()
        async with client() as http:
            assert await until(lambda: is_sleeping(http, server), bool, 0.25)
            assert (await detect(HttpFetch(http, server.url))).kind == "llamacpp"
            async with watching(server.url) as seen:
                assert set(seen.first.models or {}) == {MODEL_NAME}
            assert await is_sleeping(http, server)


async def test_a_router_is_read_truly_and_nothing_is_loaded_by_looking(version: str, tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    for name in ("alpha", "beta"):
        os.symlink(model_file(), models / f"{name}.gguf")
    with LlamaServer(tmp_path, version=version, router=True, extra=["--models-dir", str(models)]) as server:
        server.wait_ready()
        async with watching(server.url) as seen, client() as http:

            async def states() -> dict[str, Residency | None]:
                listed = (await scrape(seen.get, seen.plan)).snapshot.models or {}
                return {name: info.state for name, info in listed.items() if name in ("alpha", "beta")}

            for _ in range(ROUNDS):
                assert await states() == {"alpha": Residency.COLD, "beta": Residency.COLD}
            asked = asyncio.create_task(
                http.post(f"{server.url}/v1/chat/completions", json=chat("alpha", 4, stream=False))
            )
            passed: list[Residency | None] = []

            async def alpha() -> Residency | None:
                passed.append((await states()).get("alpha"))
                return passed[-1]

            assert await until(alpha, lambda state: state is Residency.LOADED, 0.02) is Residency.LOADED
            assert list(dict.fromkeys(passed)) in (
                [Residency.COLD, Residency.LOADING, Residency.LOADED],
                [Residency.LOADING, Residency.LOADED],
            ), json.dumps(passed)
            assert (await asked).status_code == 200
            for _ in range(ROUNDS):
                assert await states() == {"alpha": Residency.LOADED, "beta": Residency.COLD}
