"""50,000 broken requests leave the process as healthy as before: the same memory, no task, a clean log."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import Counter
from pathlib import Path

import pytest

from engines.doubles import Double
from tests.engines.doubles.client import Came, Talk
from tests.gateway.proxy.mutations import Broken, Mutator
from tests.gateway.proxy.recorded import all_sent
from tests.gateway.proxy.served import Served, served

REQUESTS = int(os.environ.get("PHAROS_MUTATIONS", "50000"))
AT_A_TIME = 8
WARM = REQUESTS // 5
MIB = 1024 * 1024


class Client:
    """One connection after the other, each used for as long as both sides know where a request ends."""

    def __init__(self, server: Served, mutator: Mutator, seen: Counter[str]) -> None:
        self.server, self.mutator, self.seen = server, mutator, seen
        self.talk: Talk | None = None

    async def one(self) -> None:
        broken = self.mutator.next()
        if self.talk is None:
            self.talk = Talk(*await asyncio.open_connection("127.0.0.1", self.server.process.port))
        try:
            came = await self._exchange(self.talk, broken)
        except (OSError, asyncio.IncompleteReadError):  # the server closed first
            came = None
        if came is None or not broken.framed or came.header("connection") == "close":
            self.talk.leave()
            self.talk = None
        self._note(came, broken)

    async def _exchange(self, talk: Talk, broken: Broken) -> Came | None:
        rng = self.mutator.rng
        cut = rng.randrange(len(broken.data)) if rng.random() < 0.3 else 0
        talk.writer.write(broken.data[:cut])
        if cut:
            await asyncio.sleep(0)
        talk.writer.write(broken.data[cut:])
        if rng.random() < 0.03:
            return None  # it leaves at once
        if not broken.framed:
            talk.writer.write_eof()
        head = await talk.head()
        if head.startswith("HTTP/1.1 100"):
            head = await talk.head()
        if broken.method == b"HEAD":
            return Came(int(head.split(" ")[1]), head, b"", True)
        return await talk.rest(head)

    def _note(self, came: Came | None, broken: Broken) -> None:
        self.seen["gone" if came is None else str(came.status)] += 1
        if came is None:
            return
        assert came.status < 500 or came.status == 501, (came, broken.data[:2000])
        if came.status >= 400 and broken.method != b"HEAD":
            assert isinstance(json.loads(came.body), dict), (came, broken.data[:2000])
        assert came.whole or not broken.framed, (came, broken.data[:2000])

    def close(self) -> None:
        if self.talk is not None:
            self.talk.leave()


@pytest.mark.slow
async def test_50_000_broken_requests_leave_the_process_as_it_was(tmp_path: Path) -> None:
    names = ["pharos-small", "pharos-embed", "claude-opus-5-5", "claude-sonnet-4-5", "gpt-4o", "gpt-5"]
    doubles = [
        Double("ollama", models=[f"{n}:latest" for n in names], speed=10_000, slots=64, embeds=True),
        Double("vllm", models=names, speed=10_000, slots=64),
    ]
    seen: Counter[str] = Counter()
    async with served(tmp_path, *doubles) as server:
        rss: dict[int, int] = {}
        clients = [Client(server, Mutator(all_sent(), seed), seen) for seed in range(AT_A_TIME)]

        async def some(client: Client, count: int) -> None:
            for _ in range(count):
                await client.one()

        step = max(1, REQUESTS // 20)
        for done in range(step, REQUESTS + 1, step):
            await asyncio.gather(*(some(c, step // AT_A_TIME) for c in clients))
            rss[done] = server.process.rss()
            for double in doubles:
                double.requests.clear()
            print(f"{done} sent, {rss[done] // MIB} MiB, {dict(seen)}", file=sys.stderr, flush=True)  # noqa: T201
        for client in clients:
            client.close()
        await server.at_rest()
        await server.up()
    assert seen["200"] > REQUESTS // 20, "too few got through to an engine for this to mean anything"
    assert seen["400"] > REQUESTS // 20
    warm = next(size for done, size in rss.items() if done >= WARM)
    assert rss[max(rss)] - warm < 32 * MIB, rss
