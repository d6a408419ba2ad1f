"""The request path: each step is a value in and a value out, and this file puts them in order."""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from engines.recipes.base import Recipe
from gateway.asgi import Receive, Scope, Send
from gateway.config import Limits
from gateway.fleet.backend import Backend
from gateway.fleet.fleet import Fleet, Lease
from gateway.proxy import aggregates
from gateway.proxy.answer import Answer, ClientGone, read_body, until_gone
from gateway.proxy.apis import Framing
from gateway.proxy.ask import Ask, understand
from gateway.proxy.headers import Header, to_client, to_engine, value
from gateway.proxy.refusals import Refusal
from gateway.proxy.tap import Tap
from gateway.proxy.upstream import EngineFault, Fault, Reply, Upstream

log = logging.getLogger("pharos.requests")

ATTEMPTS = 2
"""Backends that one request may meet: the second only if the first refused the connection or the request."""


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
        answer = Answer(scope, send, _request_id(scope["headers"]))
        try:
            if path == "/v1/chat/completions":
                _only(method, "POST")
                await self._generate(scope, receive, answer)
            elif path == "/v1/models" or path.startswith("/v1/models/"):
                _only(method, "GET", "HEAD")
                name = path.removeprefix("/v1/models").removeprefix("/")
                await answer.json(200, aggregates.models(self.fleet, name))
            else:
                raise unknown_path(path)
        except Refusal as e:
            await answer.refuse(e)

    async def _generate(self, scope: Scope, receive: Receive, answer: Answer) -> None:
        arrived = self.now()
        done = Done(answer.request_id, scope["path"])
        try:
            ask = understand(await read_body(receive, self.limits.body))
            done.model = ask.model
            await until_gone(receive, Passage(self, ask, scope, answer, done, arrived).run())
        except Refusal as e:
            done.status, done.outcome = e.status, e.code
            raise
        except ClientGone:
            done.outcome = "client_left"
        finally:
            done.total_s = self.now() - arrived
            self.on_done(done)


class _Elsewhere(Exception):
    """The engine refused the request, and another may take it."""


class Passage:
    """One request on its way to an engine and back."""

    def __init__(
        self, consumer: Consumer, ask: Ask, scope: Scope, answer: Answer, done: Done, arrived: float
    ) -> None:
        self.fleet, self.pools, self.now = consumer.fleet, consumer.pools, consumer.now
        self.ask, self.scope, self.answer, self.done, self.arrived = ask, scope, answer, done, arrived
        self.tried: list[Backend] = []
        self.tap: Tap | None = None

    async def run(self) -> None:
        """Ends with a whole reply or a cut one. Raises Refusal when there is none."""
        fault: EngineFault | None = None
        while len(self.tried) < ATTEMPTS and (lease := self.fleet.pick(self.ask.model, self.tried)):
            self.tried.append(lease.backend)
            self.done.backend, self.done.reason = lease.backend.url, lease.reason
            with lease:
                try:
                    await self._relay(lease)
                except _Elsewhere:
                    continue
                except EngineFault as e:
                    fault = e
                    self._blame(lease.backend, e)
                    if self.answer.started:
                        await self._break_off(e)
                        return
                    if e.fault is not Fault.REFUSED:
                        break  # it may have begun the work, or died of it: nobody else gets that request
                else:
                    return
        raise self._failure(fault)

    async def _relay(self, lease: Lease) -> None:
        """Pass one engine's reply on. Raises EngineFault, and _Elsewhere before the first byte."""
        backend = lease.backend
        headers = to_engine(self.scope["headers"], backend.api_key)
        own = self.ask.stream and _recipe(backend).closes_after_stream
        body = self.ask.body_for(lease.served)
        reply = await self.pools[backend].send(_target(self.scope), headers, body, own_connection=own)
        async with reply:
            if reply.status in BACK_PRESSURE_OR_FAILED and self._another():
                log.info("backend %s answered %d: trying another", backend.url, reply.status)
                raise _Elsewhere
            if 300 <= reply.status < 400:
                raise _redirected(reply, backend)
            if reply.status >= 400 and not _is_json(reply):
                raise await _in_words(reply, backend)
            self.tap = _tap(reply, self.answer)
            async for piece in reply.pieces():
                if not self.answer.started:
                    await self._start(reply, lease)
                if self.tap is not None:
                    self.tap.feed(piece)
                await self.answer.write(piece)
            if not self.answer.started:
                await self._start(reply, lease)
            self._finish()
            await self.answer.end()

    async def _start(self, reply: Reply, lease: Lease) -> None:
        self.done.status, self.done.first_byte_s = reply.status, self.now() - self.arrived
        headers = [
            *to_client(reply.headers),
            (b"x-pharos-backend", lease.backend.url.encode()),
            (b"x-pharos-reason", lease.reason.encode()),
        ]
        if reply.status in (429, 503) and value(headers, b"retry-after") is None:
            headers.append((b"retry-after", b"1"))
        await self.answer.start(reply.status, headers)

    def _finish(self) -> None:
        """A body that ended without its generation ending is a death, however clean it looks on the wire.

        mlx-lm's HTTP/1.0 streams, llama-swap and Ollama with a killed runner end like that, and most
        clients would take the part for the whole.
        """
        if self.tap is not None:
            self.tap.end()
            if not self.tap.finished:
                raise EngineFault(Fault.DIED, "its stream ended before the generation did")

    async def _break_off(self, e: EngineFault) -> None:
        self.done.outcome = e.fault
        if self.tap is not None and self.tap.on_boundary:
            refusal = Refusal(502, "engine_failed", f"The engine at {self.tried[-1].url} failed: {e}.")
            await self.answer.write(self.answer.family.error_event(refusal))
        self.answer.cut()

    def _another(self) -> bool:
        return len(self.tried) < ATTEMPTS and self.fleet.pick(self.ask.model, self.tried) is not None

    def _blame(self, backend: Backend, e: EngineFault) -> None:
        """A refusal or a death puts the backend aside until it answers a round. Silence does not."""
        if e.fault is not Fault.STALLED:
            log.warning("backend %s is put aside: %s", backend.url, e)
            backend.lost(str(e))

    def _failure(self, fault: EngineFault | None) -> Refusal:
        model = self.ask.model
        if fault is not None and fault.fault is not Fault.REFUSED:
            engine = f"The engine at {self.tried[-1].url}"
            if fault.fault is Fault.STALLED:
                return Refusal(504, "engine_timeout", f"{engine}: {fault}. It may be loading or overloaded.")
            return Refusal(502, "engine_failed", f"{engine} failed: {fault}.")
        if self.fleet.lists(model):
            return Refusal(503, "model_unavailable", f"No engine that serves {model!r} is up now.", 5)
        return aggregates.no_such_model(self.fleet, model)


BACK_PRESSURE_OR_FAILED = frozenset({429, *range(500, 600)}) - {501}
"""Answers before any work: another engine may do better. 501 says that the engine lacks the ability."""


def _recipe(backend: Backend) -> Recipe:
    assert backend.view is not None, "only a backend that is up is picked"
    return backend.view.plan.recipe


def _target(scope: Scope) -> str:
    query = scope.get("query_string", b"")
    return str(scope["path"]) + ("?" + query.decode("latin-1") if query else "")


def _content_type(reply: Reply) -> str:
    return (value(reply.headers, b"content-type") or b"").split(b";")[0].strip().lower().decode("latin-1")


def _is_json(reply: Reply) -> bool:
    return _content_type(reply) in ("application/json", "application/problem+json")


def _tap(reply: Reply, answer: Answer) -> Tap | None:
    kind = _content_type(reply)
    return Tap(Framing(kind), answer.family.ends) if reply.status == 200 and kind in list(Framing) else None


async def _in_words(reply: Reply, backend: Backend) -> Refusal:
    """An error page as an error: clients parse what they get as JSON."""
    text = b""
    async for piece in reply.pieces():
        text += piece
        if len(text) > 4096:
            break
    words = " ".join(re.sub(r"<[^>]*>", " ", text.decode("utf-8", "replace")).split())[:200]
    message = f"The engine at {backend.url} answered {reply.status}: {words or 'nothing'}"
    return Refusal(reply.status, "engine_error", message)


def _redirected(reply: Reply, backend: Backend) -> Refusal:
    """A client that followed it would send its prompt past Pharos."""
    to = (value(reply.headers, b"location") or b"elsewhere").decode("latin-1")[:200]
    message = f"{backend.url} redirects to {to}: that address belongs into the config."
    return Refusal(502, "engine_redirects", message)


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
