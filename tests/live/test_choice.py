"""Between real engines, a request goes to one that has the model loaded and a place free."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator

import pytest

from engines.plan import scrape
from engines.signals import Residency
from gateway.demo import install
from gateway.demo.engines import MODEL_NAME, NEWEST, LlamaServer
from gateway.demo.stage import Gateway
from tests.live.engine import chat, watching
from tests.live.stage import ENDLESS, in_front_of, loads, plain, router
from tests.live.talk import End, talks

pytestmark = pytest.mark.live

OWN = "alpha"
"""A model that the router alone lists."""

Scene = tuple[Gateway, LlamaServer, LlamaServer, LlamaServer]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Four slots, one slot, and a router that could load the same model."""
    install.install(install.LLAMA_SERVERS[NEWEST])
    install.install(install.SMOLLM2)
    folder = tmp_path_factory.mktemp("choice")
    with (
        plain(folder, slots=4) as big,
        plain(folder, slots=1) as small,
        router(folder, [MODEL_NAME, OWN], slots=2) as cold,
        in_front_of(folder, [big, small, cold]) as gateway,
    ):
        yield gateway, big, small, cold


async def states(server: LlamaServer) -> dict[str, Residency | None]:
    async with watching(server.url) as seen:
        models = (await scrape(seen.get, seen.plan)).snapshot.models or {}
    return {name: info.state for name, info in models.items()}


async def test_every_loaded_place_is_taken_before_the_cold_model_is_loaded(scene: Scene) -> None:
    gateway, big, small, cold = scene
    async with talks(gateway) as those:
        begun = [await those.begin(chat(tokens=ENDLESS)).until_texts() for _ in range(5)]
        assert Counter(talk.backend for talk in begun) == {big.url: 4, small.url: 1}, begun
        assert (await states(cold))[MODEL_NAME] is Residency.COLD


async def test_a_burst_for_a_cold_model_loads_it_once(scene: Scene) -> None:
    gateway, _, _, cold = scene
    assert (await states(cold))[OWN] is Residency.COLD
    async with talks(gateway) as those:
        burst = [those.begin(chat(OWN, tokens=4)) for _ in range(8)]
        await asyncio.gather(*(talk.until_over() for talk in burst))
    assert Counter((talk.backend, talk.end) for talk in burst) == {(cold.url, End.WHOLE): 8}, burst
    assert loads(cold, OWN) == 1
