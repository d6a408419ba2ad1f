"""Hundreds of streams in flight while the config is edited, or while the gateway drains."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from engines.doubles import PHYSICS, Double
from gateway.accounts.keys import digest_of
from gateway.accounts.usage import Counts
from gateway.config import Digest, Drain, KeyConfig, Seconds
from gateway.live_config import LiveConfig
from tests.gateway.proxy.scene import CHAT, Asked, Scene, free, scene, until

pytestmark = pytest.mark.slow

STREAMS = 200
WIDE = replace(PHYSICS["vllm"], slots=STREAMS)
ALICE, BOB = ("alice", "sk-alice"), ("bob", "sk-bob")


def entry(name: str, key: str) -> KeyConfig:
    return KeyConfig(name=name, sha256=Digest(digest_of(key)))


def yaml(urls: Sequence[str], *keys: tuple[str, str]) -> str:
    backends = [{"url": url, "kind": "vllm", "capacity": STREAMS} for url in urls]
    entries = [{"name": name, "sha256": digest_of(key)} for name, key in keys]
    return json.dumps({"backends": backends, "keys": entries})  # JSON is YAML


def begin(s: Scene, key: str, tokens: int, n: int = 0) -> Asked:
    usage = {"stream_options": {"include_usage": True}}
    model = next(iter(s.gateway.fleet.models()))
    words = [{"role": "user", "content": f"Harbour number {n}?"}]
    body = CHAT.body(model, stream=True, tokens=tokens, messages=words, **usage)
    return s.start(CHAT.path, body, headers=[(b"authorization", f"Bearer {key}".encode())])


def whole(asked: Asked) -> bool:
    client = asked.client
    return (client.status, client.ended, client.cut) == (200, True, False) and b"[DONE]" in client.body


async def test_edits_of_the_config_lose_no_stream_and_let_nobody_in_who_has_no_key(tmp_path: Path) -> None:
    doubles = [Double("vllm", physics=WIDE) for _ in range(3)]
    path = tmp_path / "pharos.yaml"
    async with scene(*doubles, capacity=STREAMS, keys=[entry(*ALICE), entry(*BOB)]) as s:
        first, second, third = (d.url for d in doubles)
        path.write_text(yaml([first, second, third], ALICE, BOB))
        live = LiveConfig(path, s.gateway.reconfigure)
        streams = [begin(s, ALICE[1], 400, n) for n in range(STREAMS)]
        await asyncio.gather(*(a.heard() for a in streams))
        told = []
        for n in range(10):
            keys, urls = ([ALICE], [first, second]) if n % 2 == 0 else ([ALICE, BOB], [first, second, third])
            path.write_text("backends: [ {url: 'http://x', no_such_field: 1")
            await live.look()
            assert live.error
            path.write_text(yaml(urls, *keys))
            await live.look()
            assert not live.error
            told.append((await begin(s, BOB[1], 1).over()).status)
        path.write_text(yaml([first, second], ALICE))
        await live.look()
        there = len(doubles[2].requests)
        assert not all(map(free, doubles)), "the streams are over too soon to show anything"
        late = [begin(s, ALICE[1], 1, n) for n in range(20)]
        await asyncio.wait([a.task for a in [*streams, *late]], timeout=120)
        posts = [r for r in doubles[2].requests[there:] if r.method == "POST"]
        await until(lambda: len(s.gateway._pools) == 2)
    assert told == [401, 200] * 5
    assert Counter(map(whole, streams + late)) == {True: STREAMS + 20}
    assert posts == [], "a backend that was taken out gets no new request"


async def test_a_drain_lets_every_stream_end_and_counts_what_its_clients_saw() -> None:
    doubles = [Double("vllm", physics=WIDE) for _ in range(2)]
    drain = Drain(grace=Seconds(0.2), timeout=Seconds(60))
    keys = [entry(*ALICE), entry(*BOB)]
    async with scene(*doubles, capacity=STREAMS, keys=keys, drain=drain) as s:
        streams = {key: [begin(s, key, 60 + n, n) for n in range(50)] for _, key in (ALICE, BOB)}
        every = [a for asked in streams.values() for a in asked]
        await asyncio.gather(*(a.heard() for a in every))
        s.gateway.begin_drain()
        await s.gateway.drained()
        assert all(a.task.done() for a in every)
        counted = {key: (c.requests, c.prompt_tokens, c.completion_tokens) for key, c in by_key(s).items()}
    assert Counter(map(whole, every)) == {True: 100}
    assert counted == {name: seen(streams[key]) for name, key in (ALICE, BOB)}


def by_key(s: Scene) -> dict[str, Counts]:
    today = s.gateway.accounts.today
    rows = s.gateway.accounts.usage.history().rows(today, today, key=True)
    return {str(row.key): row.counts for row in rows}


def seen(streams: Sequence[Asked]) -> tuple[int, int, int]:
    """What the usage chunks told the clients."""
    prompt = completion = 0
    for asked in streams:
        lines = [line for line in asked.client.body.split(b"\n") if b'"usage":{' in line]
        usage = json.loads(lines[-1].removeprefix(b"data: "))["usage"]
        prompt += usage["prompt_tokens"]
        completion += usage["completion_tokens"]
    return len(streams), prompt, completion
