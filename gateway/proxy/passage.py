"""One request on its way to an engine and back."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from urllib.parse import quote

from engines import fetch
from engines import routes as engine_routes
from engines.usage import API_OF_PATH
from gateway.asgi import Scope
from gateway.fleet.backend import Backend
from gateway.fleet.fleet import Fleet
from gateway.fleet.target import Target
from gateway.proxy import serving
from gateway.proxy.answer import Answer
from gateway.proxy.apis import Framing
from gateway.proxy.ask import Ask
from gateway.proxy.done import Done
from gateway.proxy.headers import Header, text, to_client, to_engine, value
from gateway.proxy.refusals import Refusal
from gateway.proxy.tap import Stream, Tap, Whole
from gateway.proxy.upstream import EngineFault, Fault, Reply, Upstream
from gateway.proxy.waiting import Waiting, comment
from gateway.routing import lease as routing
from gateway.routing.lease import Lease
from gateway.routing.scheduler import Scheduler

log = logging.getLogger("pharos.requests")

ATTEMPTS = 2
"""Engines that may fail one request: the second is met only if the first refused the connection or the work.
One that lacks the route did not fail it, and does not count."""

ERROR_BYTES = 64 * 1024  # of an engine's error that are looked at

BACK_PRESSURE_OR_FAILED = frozenset({429, *range(500, 600)}) - {501}
"""Answers before any work: another engine may do better. 501 says that the engine lacks the ability."""


PRINTABLE = "".join(map(chr, range(33, 127)))
"""What a query is passed on with as it came; the rest is escaped, for no URL may hold it."""


class _Elsewhere(Exception):
    """The engine refused the request, and another may take it."""


@dataclass(slots=True)
class Settings:
    """What every passage is given besides its request."""

    fleet: Fleet
    scheduler: Scheduler[Target]
    pools: Mapping[Backend, Upstream]
    now: Callable[[], float]
    wait_comment_s: float
    show_backend: bool


@dataclass(slots=True)
class _Held:
    """An engine's refusal, kept until it is known that nobody else takes the request."""

    reply: Reply
    body: bytes
    lease: Lease[Target]


class Passage:
    def __init__(self, given: Settings, ask: Ask, scope: Scope, answer: Answer, done: Done) -> None:
        self.fleet, self.scheduler, self.pools = given.fleet, given.scheduler, given.pools
        self.now, self.show_backend = given.now, given.show_backend
        self.ask, self.scope, self.answer, self.done = ask, scope, answer, done
        self.name = serving.find(self.fleet, ask.route, ask.model)  # raises Refusal (404)
        self.failed = 0
        self.tried: list[Backend] = []  # by any of this request's turns
        self.lacking: Backend | None = None  # the last that has no such route
        self.held: _Held | None = None
        self.lease: Lease[Target] | None = None  # the one in use
        self.tap: Tap | None = None
        self.commented = False  # the client has a status and comments, and nothing of an engine's
        self.waiting = Waiting(self._comment, given.wait_comment_s)

    async def run(self) -> None:
        """Ends with a whole reply or a cut one. Raises Refusal when there is none."""
        if self.ask.stream and self.answer.family.framing is Framing.SSE:
            self.waiting.begin()
        try:
            await self._attempts()
            await self.waiting.end()
        except Refusal:
            await self.waiting.end()
            raise
        finally:
            self.waiting.close()

    async def _attempts(self) -> None:
        fault: EngineFault | None = None
        while self.failed < ATTEMPTS and (lease := await self._take()):
            backend = lease.target.backend
            self.tried.append(backend)
            self._note(lease)
            with lease:
                self.lease = lease
                try:
                    await self._relay(lease)
                except _Elsewhere:
                    continue
                except EngineFault as e:
                    fault = e
                    self.failed += 1
                    self._blame(backend, e)
                    if self.answer.started and not self.commented:
                        await self._break_off(e)
                        return
                    if e.fault is not Fault.REFUSED:
                        break  # it may have begun the work, or died of it: nobody else gets that request
                else:
                    return
                finally:
                    self.lease = None
        await self._give_up(fault)

    async def _take(self) -> Lease[Target] | None:
        """The one place where a lease is taken, after a wait if need be.

        None: nobody is left who could be asked. Raises Refusal (429) when too many wait.
        """
        while True:
            try:
                lease = await self.scheduler.acquire(self._wish())
            except routing.QueueFull as e:
                raise Refusal(429, "queue_full", f"{e}.", e.retry_after_s) from None
            except routing.Turned:
                return None
            if serving.speaks(lease.target.backend, self.ask.route):
                return lease
            lease.release()  # it came up during the wait, and does not have this route

    def _wish(self) -> routing.Ask:
        name, route = self.name, self.ask.route
        closed = [b for b in self.fleet.backends if b in self.tried or not serving.speaks(b, route)]
        exclude = frozenset(b.targets[name].id for b in closed if name in b.targets)
        return routing.Ask(
            self.ask.key, name, self.ask.prompt_tokens, self.ask.weight, exclude, retry=bool(self.tried)
        )

    def _note(self, lease: Lease[Target]) -> None:
        done, decision = self.done, lease.decision
        done.target, done.cold, done.predicted_s = lease.target, lease.cold, decision.ttft_s
        done.backend, done.reason = lease.target.backend.url, decision.reason
        done.granted_s = lease.granted_at - done.arrived

    def _another(self) -> bool:
        """Would somebody else be asked if this engine is given up?"""
        left = serving.serving(self.fleet, self.ask.route, self.name)
        return self.failed + 1 < ATTEMPTS and any(b not in self.tried for b in left)

    # -- one engine ----------------------------------------------------------------------------

    async def _relay(self, lease: Lease[Target]) -> None:
        """Pass one engine's reply on. Raises EngineFault, Refusal, and _Elsewhere before the first byte."""
        backend, served = lease.target.backend, lease.target.served
        headers = to_engine(self.scope["headers"], backend.api_key)
        recipe = serving.recipe_of(backend)
        own = self.ask.stream and recipe is not None and recipe.closes_after_stream
        same = serving.same(backend, self.ask.model, served)
        body = self.ask.body_for(self.ask.model if same else served)
        reply = await self.pools[backend].send(_target(self.scope), headers, body, own_connection=own)
        async with reply:
            pieces = reply.pieces()
            head = b""
            if 300 <= reply.status < 400:
                raise _redirected(reply, backend)
            if reply.status >= 400 or self._looks_odd(reply):
                head = await _up_to(pieces, ERROR_BYTES)
                self._judge(reply, head, lease)
            await self._pass(reply, head, pieces, lease)

    def _looks_odd(self, reply: Reply) -> bool:
        """A success that may be none: a page, JSON where a stream has begun, LM Studio's "no such route"."""
        if _is_page(reply):
            return True
        if self.commented:
            return _content_type(reply) != Framing.SSE
        return self.ask.route.optional and _is_json(reply) and (_length(reply) or ERROR_BYTES) < 1024

    def _judge(self, reply: Reply, body: bytes, lease: Lease[Target]) -> None:
        """Raises _Elsewhere, or Refusal for what no client should get as it is."""
        backend = lease.target.backend
        lacks = self.ask.route.optional and reply.status in (200, 404, 405, 501)
        if lacks and not _is_page(reply):
            said = fetch.Answer(reply.status, body, {"content-type": _content_type(reply)})
            if engine_routes.served(said) is False:
                log.info("backend %s has no %s: trying another", backend.url, self.ask.route.path)
                self.lacking = backend
                raise _Elsewhere
        if reply.status == 401:
            message = f"The engine at {backend.url} does not accept the key that Pharos has for it (api_key)."
            raise Refusal(502, "engine_refused_key", message)
        failed = reply.status in BACK_PRESSURE_OR_FAILED or _is_page(reply)
        if failed and self._another():
            self.failed += 1
            self.held = _Held(reply, body, lease)
            log.info("backend %s answered %d: trying another", backend.url, reply.status)
            raise _Elsewhere
        if self.commented or _is_page(reply) or (reply.status >= 400 and not _is_json(reply)):
            raise _in_words(reply, body, backend)

    async def _pass(
        self, reply: Reply, head: bytes, pieces: AsyncIterator[bytes], lease: Lease[Target]
    ) -> None:
        self.tap = _tap(reply, self.ask, lease.target.backend)
        try:
            if head:
                await self._start(reply, lease)
                await self._write(head)
            async for piece in pieces:
                if not self.answer.started or self.commented:
                    await self._start(reply, lease)
                await self._write(piece)
            if not self.answer.started or self.commented:  # no byte came
                if reply.status == 200:
                    raise EngineFault(Fault.UNFINISHED, "its reply was empty")
                await self._start(reply, lease)
            await self._finish()
        finally:  # a reply that breaks, or whose client leaves, has told something too
            if self.tap is not None:
                self.tap.reading.note(self.done)
        if reply.status == 200:
            lease.target.replied(self.now())
        await self.answer.end()

    async def _write(self, piece: bytes) -> None:
        if self.tap is not None:
            piece = self.tap.feed(piece)
            if self.done.first_token_s is None and self.tap.first_token:
                self.done.first_token_s = self.now() - self.done.arrived
        if piece:
            await self.answer.write(piece)

    async def _start(self, reply: Reply, lease: Lease[Target]) -> None:
        await self.waiting.end()
        self.done.status, self.done.first_byte_s = reply.status, self.now() - self.done.arrived
        if self.commented:  # the client has its status and headers
            self.commented = False
            return
        headers = to_client(reply.headers)
        if self.tap is not None and self.tap.strips:
            headers = [h for h in headers if h[0] != b"content-length"]
        if reply.status in (429, 503):
            after = value(headers, b"retry-after")
            headers = [h for h in headers if h[0] != b"retry-after"]
            headers.append((b"retry-after", _whole_seconds(after)))
        await self.answer.start(reply.status, [*headers, *self._explained(lease)])

    def _explained(self, lease: Lease[Target] | None) -> list[Header]:
        if lease is None or not self.show_backend:
            return []
        url, reason = lease.target.backend.url, lease.decision.reason
        return [(b"x-pharos-backend", text(url)), (b"x-pharos-reason", text(reason))]

    async def _finish(self) -> None:
        """A body that ended without its generation ending is a failure, however clean it looks on the wire.

        mlx-lm's HTTP/1.0 streams, llama-swap and Ollama with a killed runner end like that, and most
        clients would take the part for the whole.
        """
        if self.tap is not None:
            if rest := self.tap.end():
                await self.answer.write(rest)
            if not self.tap.finished:
                raise EngineFault(Fault.UNFINISHED, "its stream ended before the generation did")

    # -- a wait --------------------------------------------------------------------------------

    async def _comment(self) -> None:
        if not self.answer.started:
            self.commented, self.done.status = True, 200
            kind = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]
            await self.answer.start(200, [*kind, *self._explained(self.lease)])
        left_s = self.scheduler.estimate_wait_s(self.name) if self.lease is None else None
        await self.answer.write(comment(self._phase(), self.now() - self.done.arrived, left_s))

    def _phase(self) -> str:
        lease = self.lease
        if lease is None:
            return f"waiting for a free place at an engine that serves {self.ask.model}"
        url, view = lease.target.backend.url, lease.target.view(self.now())
        if view.loading or view.warm is False:
            return f"{url} is loading {self.ask.model}"
        return f"{url} has the request and has not begun to answer"

    # -- failures ------------------------------------------------------------------------------

    async def _break_off(self, e: EngineFault) -> None:
        await self.waiting.end()
        self.done.outcome = e.fault
        if self.tap is not None and self.tap.on_boundary:
            await self.answer.write(self.answer.family.error_event(self._broken(e)))
        self.answer.cut()

    def _broken(self, e: EngineFault) -> Refusal:
        return Refusal(502, "engine_failed", f"The engine at {self.tried[-1].url} failed: {e}.")

    def _blame(self, backend: Backend, e: EngineFault) -> None:
        """A refusal or a death puts the backend aside until it answers a round.

        Silence does not, nor does a reply without its end: SGLang 0.5.9 so answers a prompt that is too long.
        """
        if e.fault in (Fault.REFUSED, Fault.DIED):
            log.warning("backend %s is put aside: %s", backend.url, e)
            backend.lost(str(e))

    async def _give_up(self, fault: EngineFault | None) -> None:
        """Raises Refusal, or passes on what the first engine said when the second did not even connect."""
        if fault is not None and fault.fault is Fault.STALLED:
            message = f"The engine at {self.tried[-1].url}: {fault}. It may be loading or overloaded."
            raise Refusal(504, "engine_timeout", message)
        if fault is not None and fault.fault is not Fault.REFUSED:
            raise self._broken(fault)
        if self.held is not None:
            await self._hand_over(self.held)
            return
        if self.lacking is not None:
            path, url = self.ask.route.path, self.lacking.url
            message = (
                f"{url}, which serves {self.ask.model!r}, has no {path}: its engine is too old or lacks it."
            )
            raise Refusal(400, "route_not_served", message)
        raise Refusal(503, "model_unavailable", f"No engine that serves {self.ask.model!r} is up now.", 5)

    async def _hand_over(self, held: _Held) -> None:
        if self.commented or not _is_json(held.reply) or len(held.body) > ERROR_BYTES:
            raise _in_words(held.reply, held.body, held.lease.target.backend)
        self._note(held.lease)
        await self._start(held.reply, held.lease)
        await self.answer.end(held.body)


def _target(scope: Scope) -> str:
    query = scope.get("query_string", b"")
    return str(scope["path"]) + ("?" + quote(query, safe=PRINTABLE) if query else "")


def _content_type(reply: Reply) -> str:
    return (value(reply.headers, b"content-type") or b"").split(b";")[0].strip().lower().decode("latin-1")


def _is_json(reply: Reply) -> bool:
    return _content_type(reply) in ("application/json", "application/problem+json")


def _is_page(reply: Reply) -> bool:
    """A success of something else than an engine: a proxy's sign-in, or a web server on the engine's port."""
    return reply.status < 400 and _content_type(reply) in ("text/html", "application/xhtml+xml")


def _length(reply: Reply) -> int | None:
    given = value(reply.headers, b"content-length") or b""
    return int(given) if re.fullmatch(rb"\d{1,15}", given) else None


async def _up_to(pieces: AsyncIterator[bytes], limit: int) -> bytes:
    """The first `limit` bytes or some more; the rest is still to come."""
    head = b""
    async for piece in pieces:
        head += piece
        if len(head) > limit:
            break
    return head


def _tap(reply: Reply, ask: Ask, backend: Backend) -> Tap | None:
    """None: a reply that is no generation, or in no form that can be read."""
    if reply.status != 200:
        return None
    recipe = serving.recipe_of(backend)
    untrue = frozenset[str]() if recipe is None else recipe.untrue_usage
    kind, api = _content_type(reply), API_OF_PATH.get(ask.route.path)
    if kind in list(Framing):
        return Stream(Framing(kind), ask.route.family, api, untrue, strip=ask.adds_usage)
    return Whole(api, untrue) if _is_json(reply) and api is not None else None


def _redirected(reply: Reply, backend: Backend) -> Refusal:
    """A client that followed it would send its prompt past Pharos."""
    to = (value(reply.headers, b"location") or b"elsewhere").decode("latin-1")[:200]
    message = f"{backend.url} redirects to {to}: that address belongs into the config."
    return Refusal(502, "engine_redirects", message)


def _in_words(reply: Reply, body: bytes, backend: Backend) -> Refusal:
    """What an engine answered, as an error of ours: clients parse what they get as JSON, or as a stream."""
    said = engine_routes.complaint(body) or re.sub(r"<[^>]*>", " ", body[:4096].decode("utf-8", "replace"))
    words = " ".join(said.split())[:200]
    page = " with a web page" if _is_page(reply) else ""
    message = f"The engine at {backend.url} answered {reply.status}{page}: {words or 'nothing'}"
    status = reply.status if reply.status >= 400 else 502
    after = int(_whole_seconds(value(reply.headers, b"retry-after")))
    return Refusal(status, "engine_error", message, after)


def _whole_seconds(given: bytes | None) -> bytes:
    """1 to 60: some clients sleep for as long as they are told, some ignore what is longer."""
    if given is None or not re.fullmatch(rb"\s*\d{1,9}(\.\d*)?\s*", given):
        return b"1"
    return str(min(60, max(1, round(float(given))))).encode()
