"""How many requests a real llama.cpp works on, and how many wait, is read as it is."""

from __future__ import annotations

import pytest

from engines.signals import Load, Residency, Signal
from gateway.demo.engines import MODEL_NAME, LlamaServer
from tests.live.engine import streams, watching

pytestmark = pytest.mark.live


def idle(load: Load) -> bool:
    return (load.running, load.waiting) == (0, 0)


async def test_everything_that_can_be_known_is_read(two_slots: LlamaServer) -> None:
    async with watching(two_slots.url) as seen:
        assert seen.first.models is not None
        assert {name: info.state for name, info in seen.first.models.items()} == {
            MODEL_NAME: Residency.LOADED
        }
        assert seen.first.version is not None
        assert [load.capacity for load in seen.first.load.values()] == [two_slots.slots]
        assert Signal.RUNNING in seen.first.source
        assert Signal.WAITING in seen.first.source


@pytest.mark.parametrize(("clients", "running", "waiting"), [(0, 0, 0), (1, 1, 0), (2, 2, 0), (5, 2, 3)])
async def test_streams_are_counted_while_they_run_and_not_after(
    two_slots: LlamaServer, clients: int, running: int, waiting: int
) -> None:
    async with watching(two_slots.url) as seen:
        assert idle(await seen.load_when(idle))
        async with streams(two_slots, clients):
            busy = await seen.load_when(lambda load: (load.running, load.waiting) == (running, waiting))
            assert (busy.running, busy.waiting) == (running, waiting)
        assert idle(await seen.load_when(idle))
