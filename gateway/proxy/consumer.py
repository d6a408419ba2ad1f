"""The request path: each step is a value in and a value out, and this file puts them in order."""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections.abc import Callable, Mapping
from urllib.parse import unquote_to_bytes

from gateway.accounts.admission import Accounts
from gateway.asgi import Receive, Scope, Send
from gateway.config import Limits
from gateway.fleet.backend import Backend
from gateway.fleet.fleet import Fleet
from gateway.fleet.target import Target
from gateway.proxy import aggregates, decisions, serving, slices
from gateway.proxy.answer import Answer, ClientGone, read_body, until_gone
from gateway.proxy.apis import ANTHROPIC
from gateway.proxy.ask import understand
from gateway.proxy.decisions import Admission, Unrouted, UsageAsked
from gateway.proxy.done import Done
from gateway.proxy.feedback import load_of
from gateway.proxy.gate import Charge, Gate, NotAllowed
from gateway.proxy.headers import Header, to_client, value
from gateway.proxy.native import Native
from gateway.proxy.passage import Passage, Settings
from gateway.proxy.refusals import Refusal
from gateway.proxy.routes import CHAT, ROUTES, SHOW, Route, family_of, only, unknown
from gateway.proxy.upstream import Upstream
from gateway.routing.prefix import PrefixIndex
from gateway.routing.scheduler import Scheduler

__all__ = ["Consumer", "Done"]


class Consumer:
    """Serves the routes of a fleet. `on_done` is told of every request, once."""

    def __init__(
        self,
        fleet: Fleet,
        scheduler: Scheduler[Target],
        pools: Mapping[Backend, Upstream],
        limits: Limits,
        on_done: Callable[[Done], None],
        now: Callable[[], float] = time.monotonic,
        *,
        show_backend: bool = True,
        accounts: Accounts | None = None,
        index: PrefixIndex | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Without `accounts` everybody may do everything. `wall`: seconds since the epoch."""
        index = PrefixIndex() if index is None else index
        self.fleet, self.limits, self.on_done, self.now = fleet, limits, on_done, now
        self.gate = Gate(accounts or Accounts(now=now, wall=wall), fleet)
        self.live: dict[int, Done] = {}  # requests in flight, oldest first
        self.native = Native(fleet, pools, lambda backend: scheduler.in_flight_at(backend.url))
        self.passages = Settings(fleet, scheduler, pools, now, limits.wait_comment, show_backend, index, wall)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers: list[Header] = scope["headers"]
        answer = Answer(scope, send, _request_id(headers), family_of(scope["path"], headers))
        done = Done(answer.request_id, scope["method"], scope["path"], self.now())
        self.live[id(done)] = done
        try:
            await self._route(scope, receive, answer, done)
        except Refusal as e:
            done.status, done.outcome = 200 if answer.started else e.status, e.code
            done.said = str(e)
            if (decision := decisions.REFUSED.get(e.code)) is not None:
                done.decisions.append(Admission.MODEL_NOT_ALLOWED if isinstance(e, NotAllowed) else decision)
            await answer.refuse(e)
        except asyncio.CancelledError:
            done.outcome = "cancelled"  # the gateway ended before it
            raise
        except ClientGone:
            done.outcome = "client_left"
            if done.target is None and Admission.OK in done.decisions:
                done.decisions.append(Unrouted.CLIENT_LEFT)
        finally:
            del self.live[id(done)]
            done.total_s = self.now() - done.arrived
            if done.target is not None and (load := load_of(done)) is not None:
                done.decisions.append(load)
            self.on_done(done)

    async def _route(self, scope: Scope, receive: Receive, answer: Answer, done: Done) -> None:
        path, method = scope["path"], scope["method"]
        route = ROUTES.get(path)
        if route is not None:
            _no_upgrade(scope)
            only(method, "POST")
            await self._generate(route, scope, receive, answer, done)
        elif path == SHOW.path:
            only(method, "POST")
            await self._show(scope, receive, answer, done)
        else:
            body, kind = await self._own(scope, answer, done)
            done.status = 200
            await answer.whole(200, body, kind)

    async def _generate(
        self, route: Route, scope: Scope, receive: Receive, answer: Answer, done: Done
    ) -> None:
        headers = scope["headers"]
        done.key = self.gate.key(headers).name
        body = await read_body(receive, self.limits.body)
        ask = understand(body, route, headers, await _decoded_if_large(body))
        done.model, done.streamed = ask.model, ask.stream
        done.control = ask.control
        ask, admission = self.gate.enter(ask, headers)
        done.decisions.append(Admission.OK)
        if ask.stream and route.usage_option:
            done.decisions.append(UsageAsked.PHAROS if ask.adds_usage else UsageAsked.CLIENT)
        answer.standing = admission.standing.headers()
        with Charge(admission, ask, done):
            await until_gone(receive, Passage(self.passages, ask, scope, answer, done).run())

    async def _show(self, scope: Scope, receive: Receive, answer: Answer, done: Done) -> None:
        key = self.gate.key(scope["headers"])
        done.key = key.name
        ask = understand(await read_body(receive, self.limits.body), SHOW, scope["headers"])
        done.model = ask.model
        status, headers, body = await self.native.show(ask, self.gate.sees(key))
        done.status = status
        kind = value(to_client(headers), b"content-type") or b"application/json"
        await answer.whole(status, body, kind)

    # -- answers of the gateway's own ----------------------------------------------------------

    async def _own(self, scope: Scope, answer: Answer, done: Done) -> tuple[bytes, bytes]:
        """The body and its content type. Raises Refusal.

        `/` and `/api/version` need no key: Ollama's command line asks for `/` before anything else, and never
        sends one (0.32.15).
        """
        path, method, json = scope["path"], scope["method"], b"application/json"
        if path == "/v1/models" or path.startswith("/v1/models/"):
            only(method, "GET", "HEAD")
            return self._models(scope, answer, self._sees(scope, done)), json
        if path in ("/api/tags", "/api/ps"):
            only(method, "GET", "HEAD")
            return await self.native.models(path, self._sees(scope, done)), json
        if path == "/api/version":
            only(method, "GET", "HEAD")
            return self.native.version(), json
        if path == "/":
            only(method, "GET", "HEAD")
            return b"Ollama is running", b"text/plain; charset=utf-8"  # clients look for these words
        raise unknown(path, scope["headers"])

    def _sees(self, scope: Scope, done: Done) -> serving.Sees:
        """Raises Refusal (401)."""
        key = self.gate.key(scope["headers"])
        done.key = key.name
        return self.gate.sees(key)

    def _models(self, scope: Scope, answer: Answer, sees: serving.Sees) -> bytes:
        served = [name for name in self.fleet.models() if sees(name)]
        anthropic = answer.family is ANTHROPIC
        if scope["path"] in ("/v1/models", "/v1/models/"):
            return (aggregates.anthropic_models if anthropic else aggregates.openai_models)(served)
        names = _names(scope)
        name = next((n for n in names if n in served), None)
        if name is None:
            twins = [t for n in names if (t := serving.twin(n)) is not None and t in served]
            if not any(serving.native(b) for t in twins for b in serving.serving(self.fleet, CHAT, t)):
                raise serving.no_such_model(self.fleet, None, names[0], sees)
            name = names[0]  # Ollama's other name of it, and the one that was asked for
        return (aggregates.anthropic_model if anthropic else aggregates.openai_model)(name)


async def _decoded_if_large(body: bytes) -> Mapping[str, bytes] | None:
    """A large body, decoded a step at a time; None for what is decoded in one go."""
    if len(body) <= slices.AT_ONCE:
        return None
    steps = slices.read(body)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            fields: Mapping[str, bytes] | None = done.value
            return fields
        await asyncio.sleep(0)


def _names(scope: Scope) -> list[str]:
    """The model a path names: with its percent signs read, and as it stands, for one that has such a sign."""
    raw = bytes(scope.get("raw_path") or scope["path"].encode()).partition(b"?")[0]
    as_it_is = raw.removeprefix(b"/v1/models/")
    read = scope["path"].removeprefix("/v1/models/")
    return list(
        dict.fromkeys(
            [read, unquote_to_bytes(as_it_is).decode("utf-8", "replace"), as_it_is.decode("latin-1")]
        )
    )


def _no_upgrade(scope: Scope) -> None:
    """Raises Refusal (426). Codex then speaks HTTP at once; any other answer costs it seven tries."""
    if (value(scope["headers"], b"upgrade") or b"").lower() == b"websocket":
        message = "Pharos does not speak websocket here: send the request as a POST."
        raise Refusal(426, "upgrade_refused", message, headers=[(b"upgrade", b"HTTP/1.1")])


def _request_id(headers: list[Header]) -> str:
    given = value(headers, b"x-request-id") or b""
    return given.decode() if re.fullmatch(rb"[\x21-\x7e]{1,128}", given) else uuid.uuid4().hex
