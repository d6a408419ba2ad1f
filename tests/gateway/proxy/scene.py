"""The whole gateway in front of engine doubles on real sockets, and a look at what it still holds afterwards."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from engines.doubles import Double, running
from engines.recipes import RECIPES
from gateway.config import BackendConfig, Config, Limits, Seconds
from gateway.proxy.upstream import Upstream
from gateway.runtime import Gateway
from tests.gateway.proxy.bench import Client

SOON_S = 10.0
"""For what must come: far longer than it takes."""

HI = [{"role": "user", "content": "Name three harbours."}]
AT_REST_LOGS = (r"is put aside: ", r"is not in use: ")
"""What a gateway says of an engine that refused, died or hung."""


@dataclass(frozen=True)
class Api:
    """One API as its clients speak it."""

    name: str
    path: str
    more: dict[str, Any]
    limit: str  # the field that bounds the answer
    ndjson: bool = False

    def body(self, model: str, *, stream: bool, tokens: int | None = None, **more: Any) -> bytes:
        wants = {"model": model, **self.more, "stream": stream}
        if tokens is not None:  # so many, and no fewer
            wants |= (
                {"options": {"num_predict": tokens, "ignore_eos": True}}
                if self.ndjson
                else {self.limit: tokens, "ignore_eos": True}
            )
        return json.dumps({**wants, **more}).encode()

    def message(self, body: bytes) -> str:
        """Of an error, which must have the shape that this API's clients read."""
        told = json.loads(body)
        if self.ndjson:
            assert list(told) == ["error"]
            return str(told["error"])
        error = told["error"]
        if self.name == "messages":
            assert told["type"] == "error"
            assert isinstance(error["type"], str)
        else:
            assert {"message", "type", "param", "code"} <= set(error)
        return str(error["message"])


CHAT = Api("chat", "/v1/chat/completions", {"messages": HI}, "max_tokens")
COMPLETIONS = Api("completions", "/v1/completions", {"prompt": "Once"}, "max_tokens")
MESSAGES = Api("messages", "/v1/messages", {"messages": HI, "max_tokens": 50}, "max_tokens")
RESPONSES = Api("responses", "/v1/responses", {"input": "Hi"}, "max_output_tokens")
OLLAMA_CHAT = Api("ollama-chat", "/api/chat", {"messages": HI}, "num_predict", ndjson=True)
APIS = (CHAT, COMPLETIONS, MESSAGES, RESPONSES, OLLAMA_CHAT)


async def until(true: Callable[[], object], within_s: float = SOON_S) -> None:
    async with asyncio.timeout(within_s):
        while not true():
            await asyncio.sleep(0.002)


@dataclass(slots=True)
class Asked:
    """A request on its way."""

    client: Client
    task: asyncio.Task[None]

    async def over(self) -> Client:
        async with asyncio.timeout(SOON_S):
            await self.task
        return self.client

    async def heard(self, size: int = 1) -> None:
        await until(lambda: len(self.client.body) >= size or self.task.done())

    async def leaves(self) -> Client:
        self.client.leave()
        return await self.over()


@dataclass(slots=True)
class Scene:
    gateway: Gateway
    doubles: Sequence[Double]
    logged: list[logging.LogRecord]
    tasks: set[asyncio.Task[Any]] = field(default_factory=set)

    def start(
        self, path: str, body: bytes, method: str = "POST", headers: Sequence[tuple[bytes, bytes]] = (),
        client: Client | None = None,
    ) -> Asked:  # fmt: skip
        client = client or Client()
        client.inbox.put_nowait({"type": "http.request", "body": body})
        scope = client.scope(path, method, list(headers), seam=True)
        task = asyncio.ensure_future(self.gateway(scope, client.inbox.get, client.send))
        return Asked(client, task)

    async def ask(self, path: str, body: bytes, method: str = "POST") -> Client:
        return await self.start(path, body, method).over()

    # -- what is left --------------------------------------------------------------------------

    def held(self) -> dict[str, Any]:
        """What requests have not given back: nothing, once they are over."""
        return {k: v for k, v in held(self.gateway).items() if v} | (
            {"tasks": names} if (names := self._tasks_left()) else {}
        )

    def _tasks_left(self) -> list[str]:
        known = self.tasks.union(*(d._tasks for d in self.doubles))
        return [repr(t) for t in asyncio.all_tasks() - known - {asyncio.current_task()} if not t.done()]

    async def at_rest(self, *expected: str, working: bool = False) -> None:
        """Asserts that nothing is held, at the gateway or an engine, and that nothing unforeseen was logged.

        `expected` are patterns: each warning or error must match one. `working`: an engine that goes on
        for nobody, as llama.cpp does with a plain request, is none of the gateway's fault.
        """
        try:
            await until(lambda: not self.held() and (working or all(map(free, self.doubles))), 5)
        except TimeoutError:
            raise AssertionError(f"held: {self.held()}; free: {[free(d) for d in self.doubles]}") from None
        said = [r.getMessage() for r in self.logged if r.levelno >= logging.WARNING]
        expected = (*expected, "^there are no keys")
        assert [s for s in said if not any(re.search(p, s) for p in expected)] == []


def held(gateway: Gateway) -> dict[str, int]:
    """Counts of what requests hold in a gateway."""
    return {
        "in_flight": gateway.in_flight,
        "places": sum(gateway.scheduler.in_flight_at(b.url) for b in gateway.fleet.backends),
        "waiting": gateway.scheduler.waiting,
        "connections": sum(used for used, _ in map(connections, gateway._pools.values())),
        "surplus": sum(max(0, idle - 8) for _, idle in map(connections, gateway._pools.values())),
    }


def connections(pool: Upstream) -> tuple[int, int]:
    """Of one backend's pool: in use, and kept for the next request."""
    used = kept = 0
    for transport in (pool._pooled, pool._single):
        session = transport.client
        if isinstance(session, aiohttp.ClientSession) and session.connector is not None:
            used += len(session.connector._acquired)
            kept += sum(len(c) for c in session.connector._conns.values())
    return used, kept


def free(double: Double) -> bool:
    machine = double.machine
    return machine.running() == 0 and machine.waiting() == 0 and not double._waiters


class _Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


LONG = Seconds(30)


@asynccontextmanager
async def scene(
    *doubles: Double, urls: Sequence[str] = (), capacity: int | None = None, first_byte_s: float = LONG,
    idle_s: float = LONG, wait_comment_s: float = 10, queue: int = 1000, **more: Any,
) -> AsyncIterator[Scene]:  # fmt: skip
    """A gateway that has had its first round of each of them, and of others at `urls`. Ends with the doubles.

    `capacity`: requests at a time, where an engine does not say.
    """
    limits = Limits(
        first_byte=Seconds(first_byte_s),
        idle=Seconds(idle_s),
        wait_comment=Seconds(wait_comment_s),
        queue=queue,
    )
    kept, root = _Kept(), logging.getLogger()
    root.addHandler(kept)
    async with AsyncExitStack() as stack:
        stack.callback(root.removeHandler, kept)
        for double in doubles:
            await stack.enter_async_context(running(double))
        backends = [BackendConfig(url=d.url, kind=_kind(d), capacity=capacity) for d in doubles]
        backends += [BackendConfig(url=url, capacity=capacity) for url in urls]
        gateway = Gateway(Config(backends=backends, limits=limits, **more))
        await gateway.start()
        stack.push_async_callback(gateway.stop)
        await until(lambda: gateway.ready)
        yield Scene(gateway, doubles, kept.records, asyncio.all_tasks())


def _kind(double: Double) -> str:
    kind = double.imitation.kind
    return kind if kind in RECIPES else "auto"
