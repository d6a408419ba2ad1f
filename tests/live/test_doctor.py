"""What the doctor records of a real engine answers like that engine."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from engines.detect import detect
from engines.fetch import Fetch, HttpFetch
from engines.plan import Plan, resolve
from engines.recipes import RECIPES
from engines.signals import Snapshot
from gateway.demo.engines import MODEL_NAME, LlamaServer
from gateway.demo.install import ROOT
from tests.engines.replay import Capture
from tests.live.engine import client, streams, until
from tests.live.test_states import is_sleeping

pytestmark = pytest.mark.live


async def doctor(*arguments: str) -> bytes:
    """What `manage.py pharos_doctor` prints."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "manage.py", "pharos_doctor", *arguments, cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    said, _ = await process.communicate()
    assert process.returncode == 0
    return said


async def seen_by(get: Fetch) -> tuple[Plan, Snapshot]:
    return await resolve(get, RECIPES[(await detect(get)).kind])


def names(plan: Plan) -> Sequence[str]:
    return [probe.name for probe in plan.active]


@pytest.mark.parametrize("clients", [0, 2])
async def test_a_recording_replays_to_the_plan_of_the_live_engine(
    two_slots: LlamaServer, tmp_path: Path, clients: int
) -> None:
    async with streams(two_slots, clients), client() as http:
        live, now = await seen_by(HttpFetch(http, two_slots.url))
        await doctor("--url", two_slots.url, "--record", str(tmp_path), "--state", "recorded")
    (folder,) = tmp_path.glob("*/*/recorded")
    replayed, then = await seen_by(Capture(folder).replay())
    assert replayed.recipe is live.recipe
    assert (replayed.version, names(replayed)) == (live.version, names(live))
    assert replayed.dropped == live.dropped
    assert then == now
    assert [load.running for load in then.load.values()] == [clients]


async def test_the_report_for_programs_says_what_the_engine_does(two_slots: LlamaServer) -> None:
    async with streams(two_slots, 1):
        (report,) = json.loads(await doctor("--url", two_slots.url, "--json"))
    assert (report["kind"], report["kind_from"], report["error"]) == ("llamacpp", "detected", None)
    assert report["models"][MODEL_NAME]["state"] == "loaded"
    loads: list[dict[str, Any]] = list(report["load"].values())
    assert [(load["running"], load["waiting"], load["capacity"]) for load in loads] == [
        (1, 0, two_slots.slots)
    ]
    assert report["routes"]["/v1/chat/completions"] is True


async def test_a_sleeping_engine_is_recorded_asleep(version: str, tmp_path: Path) -> None:
    extra = ["--metrics", "--sleep-idle-seconds", "1"]
    with LlamaServer(tmp_path, version=version, extra=extra) as server:
        server.wait_ready()
        async with client() as http:
            assert await until(lambda: is_sleeping(http, server), bool, 0.1)
            said = await doctor(
                "--url", server.url, "--json", "--record", str(tmp_path), "--state", "sleeping"
            )
            assert await is_sleeping(http, server)
    (report,) = json.loads(said)
    assert report["models"][MODEL_NAME]["state"] == "cold"
    assert set(report["routes"].values()) == {None}
    (folder,) = tmp_path.glob("*/*/sleeping")
    asked = {path for _, path in Capture(folder).rows()}
    assert not asked & {"/metrics", "/slots"}
