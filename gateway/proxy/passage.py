"""One request on its way to an engine and back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from urllib.parse import quote

from engines import fetch
from engines import routes as engine_routes
from gateway.asgi import Scope
from gateway.fleet.backend import Backend
from gateway.fleet.fleet import Fleet
from gateway.fleet.stats import scaled
from gateway.fleet.target import Target
from gateway.proxy import replies, serving
from gateway.proxy.answer import Answer
from gateway.proxy.apis import Framing
from gateway.proxy.ask import Ask
from gateway.proxy.decisions import Queue
from gateway.proxy.decisions import Upstream as Came
from gateway.proxy.done import Done
from gateway.proxy.headers import Header, text, to_engine
from gateway.proxy.prompt_cache import CachedPrompt
from gateway.proxy.refusals import Refusal
from gateway.proxy.tap import Tap
from gateway.proxy.upstream import EngineFault, Fault, Reply, Upstream
from gateway.proxy.waiting import Waiting, comment
from gateway.routing import lease as routing
from gateway.routing.lease import Lease
from gateway.routing.prefix import PrefixIndex
from gateway.routing.prompt import chain_of
from gateway.routing.scheduler import Scheduler

log = logging.getLogger("pharos.requests")

ATTEMPTS = 2
"""Engines that may fail one request: the second is met only if the first refused the connection or the work.
One that lacks the route did not fail it, and does not count."""

ERROR_BYTES = 64 * 1024  # of an engine's error that are looked at

PRINTABLE = "".join(map(chr, range(33, 127)))
"""What a query is passed on with as it came; the rest is escaped, for no URL may hold it."""


class _Elsewhere(Exception):
    """The engine refused the request, and another may take it."""

    def __init__(self, decision: Came) -> None:
        self.decision = decision


CAME_OF_FAULT = {
    Fault.REFUSED: Came.CONNECT_FAILED,
    Fault.DIED: Came.DIED,
    Fault.UNFINISHED: Came.UNFINISHED,
    Fault.STALLED: Came.STALLED,
}


@dataclass(slots=True)
class Settings:
    """What every passage is given besides its request."""

    fleet: Fleet
    scheduler: Scheduler[Target]
    pools: Mapping[Backend, Upstream]
    now: Callable[[], float]
    wait_comment_s: float
    show_backend: bool
    index: PrefixIndex
    wall: Callable[[], float]


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
        chain = chain_of(ask.route.path, ask.fields, self.name)
        done.estimated_tokens = ask.prompt_tokens
        self.prompt_tokens = scaled(ask.prompt_tokens, (t.stats for t in self.fleet.targets_of(self.name)))
        self.prompt = CachedPrompt(given.index, chain, self.prompt_tokens, given.now, given.wall)
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
            self.done.decisions += (lease.decision.why, _queued(lease))
            self._note(lease)
            with lease:
                self.lease = lease
                try:
                    await self._try(lease)
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

    async def _try(self, lease: Lease[Target]) -> None:
        """`_relay`, and what came of it is written down."""
        came: Came = Came.PHAROS_ERROR
        try:
            await self._relay(lease)
            came = Came.OK if (self.done.status or 0) < 400 else Came.ERROR_STATUS
        except _Elsewhere as e:
            came = e.decision
            raise
        except EngineFault as e:
            came = CAME_OF_FAULT[e.fault]
            raise
        except Refusal:
            came = Came.ERROR_STATUS
            raise
        except asyncio.CancelledError:
            came = Came.CLIENT_LEFT
            if self.tap is not None and self.tap.first_token:
                self.prompt.ended(None, None)  # the engine computed all of the prompt
            raise
        finally:
            self.done.decisions.append(came)

    async def _take(self) -> Lease[Target] | None:
        """The one place where a lease is taken, after a wait if need be.

        None: nobody is left who could be asked. Raises Refusal (429) when too many wait.
        """
        while True:
            try:
                lease = await self.scheduler.acquire(self._wish())
            except routing.QueueFull as e:
                raise Refusal(429, "queue_full", f"{e}.", e.retry_after_s) from None
            except routing.Closed as e:
                raise Refusal(503, "draining", f"{e}.", 5) from None
            except routing.Turned:
                return None
            self.done.queued_s = (self.done.queued_s or 0.0) + lease.waited_s
            if serving.speaks(lease.target.backend, self.ask.route):
                return lease
            lease.release()  # it came up during the wait, and does not have this route

    def _wish(self) -> routing.Ask:
        name, route = self.name, self.ask.route
        closed = [b for b in self.fleet.backends if b in self.tried or not serving.speaks(b, route)]
        exclude = frozenset(b.targets[name].id for b in closed if name in b.targets)
        matched = self.prompt.expected(self.fleet.targets_of(name))
        return routing.Ask(
            self.ask.key, name, self.prompt_tokens, self.ask.weight, exclude, bool(self.tried), matched
        )

    def _note(self, lease: Lease[Target]) -> None:
        done, decision = self.done, lease.decision
        self.prompt.sent(lease.target)
        done.decision = decision
        done.expected_cached = decision.matched_tokens if self.prompt.known else None
        done.prefix_source = self.prompt.source
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
        if self.done.own_s is None:
            self.done.own_s = self.now() - self.done.arrived - (self.done.queued_s or 0.0)
        reply = await self.pools[backend].send(_target(self.scope), headers, body, own_connection=own)
        async with reply:
            pieces = reply.pieces()
            head = b""
            if 300 <= reply.status < 400:
                raise replies.redirected(reply, backend)
            if reply.status >= 400 or self._looks_odd(reply):
                head = await replies.up_to(pieces, ERROR_BYTES)
                self._judge(reply, head, lease)
            await self._pass(reply, head, pieces, lease)

    def _looks_odd(self, reply: Reply) -> bool:
        """A success that may be none: a page, JSON where a stream has begun, LM Studio's "no such route"."""
        if replies.is_page(reply):
            return True
        if self.commented:
            return replies.content_type(reply) != Framing.SSE
        return (
            self.ask.route.optional
            and replies.is_json(reply)
            and (replies.length(reply) or ERROR_BYTES) < 1024
        )

    def _judge(self, reply: Reply, body: bytes, lease: Lease[Target]) -> None:
        """Raises _Elsewhere, or Refusal for what no client should get as it is."""
        backend = lease.target.backend
        lacks = self.ask.route.optional and reply.status in (200, 404, 405, 501)
        if lacks and not replies.is_page(reply):
            said = fetch.Answer(reply.status, body, {"content-type": replies.content_type(reply)})
            if engine_routes.served(said) is False:
                log.info("backend %s has no %s: trying another", backend.url, self.ask.route.path)
                self.lacking = backend
                raise _Elsewhere(Came.ERROR_RETRIED)
        if reply.status == 401:
            message = f"The engine at {backend.url} does not accept the key that Pharos has for it (api_key)."
            raise Refusal(502, "engine_refused_key", message)
        busy = reply.status in replies.BACK_PRESSURE
        if reply.status >= 400 and not busy:
            self.prompt.refused()
        failed = reply.status in replies.REFUSED_OR_FAILED or replies.is_page(reply)
        if failed and self._another():
            self.failed += 1
            self.held = _Held(reply, body, lease)
            log.info("backend %s answered %d: trying another", backend.url, reply.status)
            raise _Elsewhere(Came.BUSY_RETRIED if busy else Came.ERROR_RETRIED)
        if self.commented or replies.is_page(reply) or (reply.status >= 400 and not replies.is_json(reply)):
            raise replies.in_words(reply, body, backend)

    async def _pass(
        self, reply: Reply, head: bytes, pieces: AsyncIterator[bytes], lease: Lease[Target]
    ) -> None:
        self.tap = replies.tap_for(reply, self.ask, lease.target.backend)
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
            outcome = self.prompt.ended(self.done.cached_tokens, self.done.prompt_tokens)
            self.done.decisions += () if outcome is None else (outcome,)
        await self.answer.end()

    async def _write(self, piece: bytes) -> None:
        if self.tap is not None:
            piece = self.tap.feed(piece)
            if self.done.first_token_s is None and self.tap.first_token:
                self.done.first_token_s = self.now() - self.done.arrived
                self.prompt.first_token()
                if self.lease is not None:
                    self.lease.first_token()
        if piece:
            await self.answer.write(piece)

    async def _start(self, reply: Reply, lease: Lease[Target]) -> None:
        await self.waiting.end()
        self.done.status, self.done.first_byte_s = reply.status, self.now() - self.done.arrived
        if self.commented:  # the client has its status and headers
            self.commented = False
            return
        headers = replies.headers_for_client(reply, self.tap)
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
        if self.commented or not replies.is_json(held.reply) or len(held.body) > ERROR_BYTES:
            raise replies.in_words(held.reply, held.body, held.lease.target.backend)
        self._note(held.lease)
        await self._start(held.reply, held.lease)
        await self.answer.end(held.body)


def _queued(lease: Lease[Target]) -> Queue:
    return Queue.WAITED if lease.waited_s > 0 else Queue.IMMEDIATE


def _target(scope: Scope) -> str:
    query = scope.get("query_string", b"")
    return str(scope["path"]) + ("?" + quote(query, safe=PRINTABLE) if query else "")
