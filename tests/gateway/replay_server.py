"""A recorded engine on a real socket: what paths.tsv has, by method and path, and 404 for all else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.engines.replay import Capture
from tests.stub import Peer, Request, Stub, stub


@asynccontextmanager
async def serving(capture: Capture) -> AsyncIterator[Stub]:
    rows = capture.rows()

    async def handler(request: Request, peer: Peer) -> None:
        method, path, _ = request.line.split(" ", 2)
        row = rows.get((method, path))
        if row is None:
            await peer.plain(b"not recorded", "404 Not Found", "text/plain")
            return
        body = row.body_of(capture.folder)
        await peer.plain(body, f"{row.status} Recorded", row.content_type or "text/plain")

    async with stub(handler) as server:
        yield server
