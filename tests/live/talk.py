"""Clients of a gateway with real engines behind it: who answers them, how much comes, how it ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import StrEnum
from typing import Any, Self

import httpx

from gateway.demo.stage import Gateway

PATIENCE_S = 120.0
"""For anything that must come: many times what it takes on two busy cores."""


class End(StrEnum):
    WHOLE = "whole"  # the engine finished, and the connection ended as it should
    CUT = "cut"  # the connection broke
    SHORT = "short"  # a clean end of a part, which a client takes for a whole answer


class Talk:
    """One streamed chat that runs by itself from the moment it is made."""

    def __init__(self, http: httpx.AsyncClient, url: str, body: dict[str, Any]) -> None:
        self.backend = self.reason = ""
        self.status = self.texts = 0
        self.end: End | None = None
        self._finished = False
        self._news = asyncio.Event()
        self._task = asyncio.create_task(self._run(http, url, body))

    def __repr__(self) -> str:
        return f"<{self.status} of {self.backend} ({self.reason}): {self.texts} texts, {self.end}>"

    async def _run(self, http: httpx.AsyncClient, url: str, body: dict[str, Any]) -> None:
        try:
            async with http.stream("POST", f"{url}/v1/chat/completions", json=body) as reply:
                self.status = reply.status_code
                self.backend = reply.headers.get("x-pharos-backend", "")
                self.reason = reply.headers.get("x-pharos-reason", "")
                async for line in reply.aiter_lines():
                    self._read(line)
            self.end = End.WHOLE if self._finished else End.SHORT
        except httpx.TransportError:
            self.end = End.CUT
        finally:
            self._news.set()

    def _read(self, line: str) -> None:
        if not line.startswith("data: {"):
            return
        for choice in json.loads(line[6:]).get("choices", ()):
            self.texts += bool(choice["delta"].get("content"))
            self._finished |= choice["finish_reason"] is not None
        self._news.set()

    async def until_texts(self, count: int = 1) -> Self:
        """Until it has brought so many pieces of text, or is over."""
        async with asyncio.timeout(PATIENCE_S):
            while self.texts < count and not self._task.done():
                self._news.clear()
                await self._news.wait()
        return self

    async def until_over(self) -> Self:
        async with asyncio.timeout(PATIENCE_S):
            await self._task
        return self

    async def leave(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])


class Talks:
    """Chats with one gateway. Those that still run when the test is over leave."""

    def __init__(self, http: httpx.AsyncClient, url: str) -> None:
        self._http, self._url = http, url
        self._begun: list[Talk] = []

    def begin(self, body: dict[str, Any]) -> Talk:
        self._begun.append(Talk(self._http, self._url, body))
        return self._begun[-1]

    async def leave(self) -> None:
        for talk in self._begun:
            await talk.leave()


@asynccontextmanager
async def talks(gateway: Gateway) -> AsyncIterator[Talks]:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(trust_env=False, timeout=PATIENCE_S, limits=limits) as http:
        those = Talks(http, gateway.url)
        try:
            yield those
        finally:
            await those.leave()
