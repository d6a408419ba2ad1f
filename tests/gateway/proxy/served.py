"""The real process in front of engine doubles, with sockets at both of its ends."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engines.doubles import Double, running
from tests.engines.doubles.client import Came, Talk
from tests.gateway.proxy.scene import SOON_S, free
from tests.gateway.proxy.watched_app import PATH
from tests.pharos_site.raw import Process, free_port

MINE = ("Watched.__call__", "Application.__call__", "_disconnect", "Passage", "Waiting", "until_gone")
"""Tasks that belong to a request."""


@dataclass(slots=True)
class Served:
    process: Process
    doubles: Sequence[Double]
    _read: int = 0  # of the log, so far
    _log: list[str] = field(default_factory=list)

    @asynccontextmanager
    async def talk(self) -> AsyncIterator[Talk]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.process.port)
        try:
            yield Talk(reader, writer)
        finally:
            writer.close()

    async def ask(self, path: str, body: bytes = b"", method: str = "POST") -> Came:
        async with self.talk() as t:
            await t.ask(path, body, method)
            return await t.came()

    async def raw(self, data: bytes) -> Came:
        """What comes to these bytes, after a `100 Continue` if there is one."""
        async with self.talk() as t:
            t.writer.write(data)
            head = await t.head()
            if head.startswith("HTTP/1.1 100"):
                head = await t.head()
            return await t.rest(head)

    async def held(self) -> dict[str, Any]:
        """What requests have not given back."""
        told = (await self.ask(PATH, method="GET")).json
        tasks = {name: n for name, n in told.pop("tasks").items() if name.startswith(MINE)}
        return {k: v for k, v in told.items() if v} | ({"tasks": tasks} if tasks else {})

    async def at_rest(self, *expected: str) -> None:
        """Asserts that nothing is held and that each warning or error in the log matches a pattern."""
        deadline = asyncio.get_running_loop().time() + SOON_S
        while (held := await self.held()) or not all(map(free, self.doubles)):
            assert asyncio.get_running_loop().time() < deadline, (held, [free(d) for d in self.doubles])
            await asyncio.sleep(0.01)
        said = self.process.said()
        new, self._read = said[self._read :], len(said)
        assert "Traceback" not in new
        expected = (*expected, "there are no keys")
        lines = [x for x in new.splitlines() if not re.match(r"\S+ \S+ (INFO|DEBUG) ", x)]
        assert [x for x in lines if not any(re.search(p, x) for p in expected)] == []

    async def up(self) -> None:
        """Until all backends are."""
        async with asyncio.timeout(SOON_S):
            while set((await self.ask("/healthz", method="GET")).json["backends"].values()) != {"up"}:
                await asyncio.sleep(0.05)


@asynccontextmanager
async def served(folder: Path, *doubles: Double, **limits: str) -> AsyncIterator[Served]:
    """With one place at each backend whose engine does not tell how many it has."""
    async with AsyncExitStack() as stack:
        for double in doubles:
            await stack.enter_async_context(running(double))
        backends = [{"url": d.url, "kind": d.imitation.kind, "capacity": 1} for d in doubles]
        config = folder / "pharos.yaml"
        config.write_text(json.dumps({"backends": backends, "limits": limits, "drain": {"grace": "1ms"}}))
        process = await asyncio.to_thread(_start, folder / "log", str(config))
        try:
            it = Served(process, doubles)
            await it.up()
            yield it
        finally:
            process.stop()


def _start(log: Path, config: str) -> Process:
    port = free_port()
    app = "tests.gateway.proxy.watched_app:application"
    return Process(log, ("daphne", "-b", "127.0.0.1", "-p", str(port), app), port, PHAROS_CONFIG=config)
