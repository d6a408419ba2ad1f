"""The request path with a test at both of its ends: a client in hand, an engine on a real socket."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from engines.plan import Plan
from engines.recipes.base import Recipe
from engines.signals import ModelInfo, Residency, Signal, Snapshot
from gateway.accounts.admission import Accounts
from gateway.asgi import CONNECTION, Message
from gateway.config import BackendConfig, Limits, Seconds
from gateway.fleet.backend import Backend
from gateway.fleet.fleet import Fleet
from gateway.fleet.target import Target
from gateway.proxy.consumer import Consumer, Done
from gateway.proxy.upstream import Upstream
from gateway.routing.lease import Ask
from gateway.routing.policy import least_load
from gateway.routing.scheduler import Scheduler
from tests.stub import Peer, Request

BODY = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
FINISH = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'
STREAM = b'{"model":"m","stream":true,"messages":[]}'
STREAM_SENT_ON = STREAM[:-1] + b',"stream_options":{"include_usage":true}}'


@dataclass(slots=True)
class Client:
    """The server's half of ASGI, in a test's hands."""

    sent: list[Message] = field(default_factory=list)
    cut: bool = False
    arrived: asyncio.Event = field(default_factory=asyncio.Event)  # something was sent since it was cleared
    inbox: asyncio.Queue[Message] = field(default_factory=asyncio.Queue)

    async def send(self, message: Message) -> None:
        self.sent.append(message)
        self.arrived.set()

    def leave(self) -> None:
        self.inbox.put_nowait({"type": "http.disconnect"})

    def scope(
        self, path: str, method: str, headers: list[tuple[bytes, bytes]], *, seam: bool
    ) -> dict[str, Any]:
        target, _, query = path.partition("?")
        extensions = {CONNECTION: {"abort": self._abort}} if seam else {}
        return {
            "type": "http", "path": unquote(target), "raw_path": target.encode(), "method": method,
            "headers": headers, "query_string": query.encode(), "extensions": extensions,
        }  # fmt: skip

    def _abort(self) -> None:
        self.cut = True

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def headers(self) -> dict[bytes, bytes]:
        return dict(self.sent[0]["headers"])

    @property
    def body(self) -> bytes:
        return b"".join(m.get("body", b"") for m in self.sent[1:])

    @property
    def ended(self) -> bool:
        return (
            bool(self.sent)
            and self.sent[-1]["type"] == "http.response.body"
            and not self.sent[-1].get("more_body")
        )

    @property
    def error(self) -> dict[str, Any]:
        return dict(json.loads(self.body)["error"])


@dataclass(slots=True)
class Setup:
    consumer: Consumer
    backends: list[Backend]
    scheduler: Scheduler[Target]
    done: list[Done]

    async def ask(
        self, body: bytes = BODY, path: str = "/v1/chat/completions", method: str = "POST",
        headers: list[tuple[bytes, bytes]] | None = None, client: Client | None = None, *, seam: bool = True,
    ) -> Client:  # fmt: skip
        client = client or Client()
        client.inbox.put_nowait({"type": "http.request", "body": body})
        await self.consumer(
            client.scope(path, method, headers or [], seam=seam), client.inbox.get, client.send
        )
        return client

    @contextmanager
    def busy(self, *indices: int, model: str = "m") -> Iterator[None]:
        """While other requests of ours are in flight at these backends."""
        others = {b.targets[model].id: i for i, b in enumerate(self.backends) if model in b.targets}
        with ExitStack() as stack:
            for index in indices:
                exclude = frozenset(id_ for id_, i in others.items() if i != index)
                lease = self.scheduler.enter(Ask("another", model, exclude=exclude)).lease
                assert lease is not None, "there is no place left to be busy with"
                stack.enter_context(lease)
            yield


PLAIN = Recipe("openai", "x", ())
CLOSING = Recipe("openai", "x", (), closes_after_stream=True)
OLLAMA = Recipe("ollama", "x", (), native_api=True)


def listing(
    backend: Backend, recipe: Recipe, models: Sequence[str], version: str | None = None,
    state: Residency | None = None,
) -> None:  # fmt: skip
    """What the backend is, and what it lists, as a round would have found it."""
    known = {m: ModelInfo(state) for m in models}
    signals = [Signal.MODELS, *([Signal.RESIDENCY] if state is not None else [])]
    snapshot = Snapshot(version, known, source=dict.fromkeys(signals, "x"))
    backend.resolved(Plan(recipe, version, (), {}), snapshot, time.monotonic())


@asynccontextmanager
async def gateway(
    *urls: str, recipe: Recipe = PLAIN, models: Sequence[str] = ("m",), show_backend: bool = True,
    wait_comment_s: float = 10, queue: int = 1000, accounts: Accounts | None = None, **config: Any,
) -> AsyncIterator[Setup]:  # fmt: skip
    """In front of engines that are up and list `models`. Patience with an engine is 1 s."""
    backends = [Backend(BackendConfig(url=u, **config)) for u in urls]
    for backend in backends:
        listing(backend, recipe, models)
    pools = {b: Upstream(b.url, 1, 1) for b in backends}
    done: list[Done] = []
    limits = Limits(first_byte=Seconds(1), idle=Seconds(1), wait_comment=Seconds(wait_comment_s))
    fleet = Fleet(backends)
    scheduler: Scheduler[Target] = Scheduler(fleet, least_load, time.monotonic, queue_limit=queue)
    consumer = Consumer(
        fleet, scheduler, pools, limits, done.append, show_backend=show_backend, accounts=accounts
    )
    yield Setup(consumer, backends, scheduler, done)
    assert [scheduler.in_flight_at(b.url) for b in backends] == [0] * len(backends), (
        "a place was not given back"
    )
    assert scheduler.waiting == 0, "somebody was left in the queue"
    for pool in pools.values():
        await pool.close()


async def chat(request: Request, peer: Peer) -> None:
    if b'"stream":true' in request.body:
        await peer.stream_head()
        for text in (b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n', FINISH, b"data: [DONE]\n\n"):
            await peer.chunk(text)
        await peer.end()
    else:
        await peer.plain(b'{"ok":1}')
