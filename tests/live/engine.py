"""What the live tests do to a real engine: keep it busy, look at it through its plan, wait for a state."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx

from engines.fetch import Fetch, HttpFetch
from engines.plan import Plan, resolve, scrape
from engines.recipes import RECIPES
from engines.signals import Load, Snapshot
from gateway.demo.engines import MODEL_NAME, LlamaServer

DEADLINE_S = 60.0
ENDLESS_TOKENS = 8000
"""More than any test waits for: at least 30 s of decoding on two cores."""

T = TypeVar("T")


async def until(
    look: Callable[[], Awaitable[T]],
    right: Callable[[T], bool],
    every_s: float,
    deadline_s: float = DEADLINE_S,
) -> T:
    """Look until it is right; what was seen last when it never is, so that the assertion shows it."""
    end = time.monotonic() + deadline_s
    while True:
        seen = await look()
        if right(seen) or time.monotonic() > end:
            return seen
        await asyncio.sleep(every_s)


@dataclass(slots=True)
class Watched:
    """One backend seen as Pharos sees it: through the plan that was resolved, at the recipe's interval."""

    get: Fetch
    plan: Plan
    first: Snapshot

    async def load(self) -> Load:
        """The load of the only model, as one round of load probes reads it; all unknown if it read none."""
        loads = list((await scrape(self.get, self.plan, load_only=True)).snapshot.load.values())
        assert len(loads) <= 1
        return loads[0] if loads else Load()

    async def load_when(self, right: Callable[[Load], bool], deadline_s: float = DEADLINE_S) -> Load:
        return await until(self.load, right, self.plan.recipe.load_interval_s, deadline_s)


@asynccontextmanager
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(
        trust_env=False, timeout=DEADLINE_S, limits=httpx.Limits(max_connections=None)
    ) as c:
        yield c


@asynccontextmanager
async def watching(url: str) -> AsyncIterator[Watched]:
    async with client() as http:
        get = HttpFetch(http, url)
        plan, first = await resolve(get, RECIPES["llamacpp"])
        yield Watched(get, plan, first)


def chat(model: str = MODEL_NAME, tokens: int = ENDLESS_TOKENS, **more: object) -> dict[str, Any]:
    """A chat request whose answer goes on for `tokens` tokens: `ignore_eos` is llama.cpp's own field."""
    messages = [{"role": "user", "content": "Tell me a long story about a lighthouse."}]
    return {
        "model": model,
        "messages": messages,
        "max_tokens": tokens,
        "stream": True,
        "ignore_eos": True,
        **more,
    }


async def read_all(
    http: httpx.AsyncClient, url: str, body: dict[str, Any], first_text: asyncio.Event
) -> None:
    async with http.stream("POST", f"{url}/v1/chat/completions", json=body) as reply:
        assert reply.status_code == 200, await reply.aread()
        async for line in reply.aiter_lines():
            if text_of(line):
                first_text.set()


def text_of(line: str) -> str:
    """The text of one event line, empty when it holds none."""
    if not line.startswith("data: {"):
        return ""
    choices = json.loads(line[6:])["choices"]
    return (choices[0]["delta"].get("content") or "") if choices else ""


@asynccontextmanager
async def streams(server: LlamaServer, count: int) -> AsyncIterator[None]:
    """`count` clients that stream at once, of which as many as there are slots have had their first text."""
    async with client() as http:
        events = [asyncio.Event() for _ in range(count)]
        tasks = [asyncio.create_task(read_all(http, server.url, chat(), event)) for event in events]

        async def begun() -> int:
            return sum(event.is_set() for event in events)

        try:
            assert await until(begun, lambda n: n >= min(count, server.slots), 0.05) == min(
                count, server.slots
            )
            yield
            assert not any(task.done() for task in tasks), "a stream ended too early to be counted"
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
