"""The request path. Each step is a value in and a value out; only this file talks to the client."""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from engines.recipes.base import Recipe
from gateway.asgi import CONNECTION, Receive, Scope, Send
from gateway.config import Limits
from gateway.fleet.backend import Backend
from gateway.fleet.fleet import Fleet, Lease
from gateway.proxy import aggregates
from gateway.proxy.ask import Ask, understand
from gateway.proxy.headers import Header, to_client, to_engine, value
from gateway.proxy.refusals import Refusal, render
from gateway.proxy.upstream import EngineFault, Fault, Upstream

log = logging.getLogger("pharos.requests")

ATTEMPTS = 2  # before the first byte, and only when the engine cannot have begun the work


class ReplyCut(Exception):
    """Raised to make a server without the extension close a reply that has begun, unfinished."""


@dataclass(slots=True)
class Done:
    """One finished request: what its listeners learn of it. Times in seconds since it arrived."""

    request_id: str
    path: str
    model: str | None = None
    backend: str | None = None
    reason: str | None = None
    status: int | None = None  # None: the client left before there was one
    outcome: str = "ok"
    first_byte_s: float | None = None
    total_s: float = 0.0


class Consumer:
    """Serves the routes of a fleet. `on_done` is told of every request of a model, once."""

    def __init__(
        self,
        fleet: Fleet,
        pools: Mapping[Backend, Upstream],
        limits: Limits,
        on_done: Callable[[Done], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.fleet, self.pools, self.limits, self.on_done, self.now = fleet, pools, limits, on_done, now

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, method = scope["path"], scope["method"]
        request_id = _request_id(scope["headers"])
        answer = Answer(scope, send, request_id)
        try:
            if path == "/v1/chat/completions":
                _only(method, "POST")
                await self._chat(scope, receive, answer)
            elif path == "/v1/models" or path.startswith("/v1/models/"):
                _only(method, "GET", "HEAD")
                await answer.json(
                    200, aggregates.models(self.fleet, path.removeprefix("/v1/models").lstrip("/"))
                )
            else:
                raise unknown_path(path)
        except Refusal as e:
            await answer.refuse(e)

    # -- a request to an engine ----------------------------------------------------------------

    async def _chat(self, scope: Scope, receive: Receive, answer: Answer) -> None:
        arrived = self.now()
        done = Done(answer.request_id, scope["path"])
        try:
            ask = understand(await read_body(receive, self.limits.body))
            done.model = ask.model
            await until_gone(receive, self._forward(ask, scope, answer, done, arrived))
        except Refusal as e:
            done.status, done.outcome = e.status, e.code
            raise
        except ClientGone:
            done.outcome = "client_left"
        finally:
            done.total_s = self.now() - arrived
            self.on_done(done)

    async def _forward(self, ask: Ask, scope: Scope, answer: Answer, done: Done, arrived: float) -> None:
        tried: list[Backend] = []
        fault: EngineFault | None = None
        for _ in range(ATTEMPTS):
            lease = self.fleet.pick(ask.model, tried)
            if lease is None:
                break
            with lease:
                tried.append(lease.backend)
                done.backend, done.reason = lease.backend.url, lease.reason
                try:
                    await self._relay(ask, scope, answer, lease, done, arrived)
                except EngineFault as e:
                    fault = e
                    self._blame(lease.backend, e)
                    if answer.started:
                        done.outcome = e.fault
                        answer.cut()
                        return
                    if e.fault is not Fault.REFUSED:
                        break  # it may have begun the work, or died of it: nobody else gets that request
                else:
                    return
        raise self._failure(ask, tried, fault)

    async def _relay(
        self, ask: Ask, scope: Scope, answer: Answer, lease: Lease, done: Done, arrived: float
    ) -> None:
        backend = lease.backend
        headers = to_engine(scope["headers"], backend.api_key)
        closes = ask.stream and _recipe(backend).closes_after_stream
        body = ask.body_for(lease.served)
        reply = await self.pools[backend].send(_target(scope), headers, body, own_connection=closes)
        async with reply:
            told = [(b"x-pharos-backend", backend.url.encode()), (b"x-pharos-reason", lease.reason.encode())]
            async for piece in reply.pieces():
                if done.first_byte_s is None:
                    done.status, done.first_byte_s = reply.status, self.now() - arrived
                    await answer.start(reply.status, [*to_client(reply.headers), *told])
                await answer.write(piece)
            if not answer.started:
                done.status = reply.status
                await answer.start(reply.status, [*to_client(reply.headers), *told])
            await answer.end()

    def _blame(self, backend: Backend, e: EngineFault) -> None:
        """A refusal or a death puts the backend aside until it answers a round. Silence does not."""
        if e.fault is not Fault.STALLED:
            log.warning("backend %s is put aside: %s", backend.url, e)
            backend.lost(str(e))

    def _failure(self, ask: Ask, tried: list[Backend], fault: EngineFault | None) -> Refusal:
        if fault is not None and fault.fault is Fault.STALLED:
            return Refusal(
                504, "engine_timeout", f"{tried[-1].url}: {fault}. It may be loading or overloaded."
            )
        if fault is not None:
            return Refusal(502, "engine_failed", f"The engine at {tried[-1].url} failed: {fault}.")
        if self.fleet.lists(ask.model):
            raise Refusal(503, "model_unavailable", f"No engine that serves {ask.model!r} is up now.", 5)
        return aggregates.no_such_model(self.fleet, ask.model)


def _recipe(backend: Backend) -> Recipe:
    assert backend.view is not None, "only a backend that is up is picked"
    return backend.view.plan.recipe


def _target(scope: Scope) -> str:
    query = scope.get("query_string", b"")
    return str(scope["path"]) + ("?" + query.decode("latin-1") if query else "")


# -- the client's side -------------------------------------------------------------------------


class Answer:
    """The reply to one client: at most one start, and after it an end or a cut."""

    def __init__(self, scope: Scope, send: Send, request_id: str) -> None:
        self._scope, self._send, self.request_id = scope, send, request_id
        self.started = False

    async def start(self, status: int, headers: list[Header]) -> None:
        self.started = True
        headers = [*headers, (b"x-request-id", self.request_id.encode()), (b"x-accel-buffering", b"no")]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def write(self, piece: bytes) -> None:
        await self._send({"type": "http.response.body", "body": piece, "more_body": True})

    async def end(self, body: bytes = b"") -> None:
        await self._send({"type": "http.response.body", "body": body})

    async def json(self, status: int, body: bytes) -> None:
        length = (b"content-length", str(len(body)).encode())
        await self.start(status, [(b"content-type", b"application/json"), length])
        await self.end(b"" if self._scope["method"] == "HEAD" else body)

    async def refuse(self, refusal: Refusal) -> None:
        status, headers, body = render(refusal)
        await self.start(status, headers)
        await self.end(b"" if self._scope["method"] == "HEAD" else body)

    def cut(self) -> None:
        """End a reply that has begun in a way that no client takes for a complete one. May raise ReplyCut."""
        connection = self._scope.get("extensions", {}).get(CONNECTION)
        if connection is None:
            raise ReplyCut
        connection["abort"]()


class ClientGone(Exception):
    """The client closed its connection: nobody is left to answer."""


async def read_body(receive: Receive, limit: int) -> bytes:
    """Raises Refusal (413) and ClientGone. Our server hands over the whole body, bounded, in one message."""
    pieces: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        pieces.append(message.get("body", b""))
        size += len(pieces[-1])
        if size > limit:
            raise Refusal(
                413, "request_too_large", f"The body is over {limit} bytes, the limit of this gateway."
            )
        if not message.get("more_body", False):
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)


async def until_gone(receive: Receive, work: Awaitable[None]) -> None:
    """Do the work while the client is there. Raises ClientGone once the work is cancelled and has ended."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        await task
    finally:
        for each in (task, gone):
            each.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


# -- small things ------------------------------------------------------------------------------


def _request_id(headers: list[Header]) -> str:
    given = value(headers, b"x-request-id") or b""
    return given.decode() if re.fullmatch(rb"[\x21-\x7e]{1,128}", given) else uuid.uuid4().hex


def _only(method: str, *allowed: str) -> None:
    if method not in allowed:
        raise Refusal(405, "method_not_allowed", f"This path takes {' or '.join(allowed)}, not {method}.")


def unknown_path(path: str) -> Refusal:
    """People mistype base URLs, and see this message as it is."""
    hint = "the base URL for OpenAI clients ends in /v1"
    return Refusal(
        404, "unknown_path", f"Pharos has no {path[:200]!r}: {hint}, as in http://this-host:8090/v1."
    )
