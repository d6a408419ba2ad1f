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
from engines.recipes.base import Kind
from engines.signals import Residency
from gateway.demo.engines import MODEL_NAME, LlamaServer, model_file
from tests.live.engine import chat, client, until, watching

pytestmark = pytest.mark.live

ROUNDS = 4


async def test_a_loading_engine_is_not_mistaken_for_anything(version: str, tmp_path: Path) -> None:
    """The listener is up at once and answers 503 on every path until the model is loaded."""
    outcomes: Counter[str] = Counter()
    for _ in range(5):  # the state lasts some tenths of a second
        with LlamaServer(tmp_path, version=version, slots=8) as server:
            async with client() as http:
                outcomes += await detections_until_ready(http, server)
        if outcomes["loading"]:
            break
    assert set(outcomes) <= {"not there yet", "loading", Kind.LLAMACPP}
    assert outcomes["loading"]
    assert outcomes[Kind.LLAMACPP]


async def detections_until_ready(http: httpx.AsyncClient, server: LlamaServer) -> Counter[str]:
    outcomes: Counter[str] = Counter()
    get = HttpFetch(http, server.url)

    async def attempt() -> str:
        try:
            found: str = (await detect(get)).kind  # its Server header tells, also while it loads
            await resolve(get, RECIPES[Kind(found)])
        except Undetected as e:
            found = "not there yet" if e.fault is Fault.REFUSED else f"not detected: {e}"
        except Unreachable as e:
            found = "loading" if e.fault is Fault.LOADING else f"not told as loading: {e}"
        outcomes[found] += 1
        return found

    await until(attempt, lambda found: found == Kind.LLAMACPP, 0.01)
    return outcomes


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
            assert (await detect(HttpFetch(http, server.url))).kind is Kind.LLAMACPP
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
