"""Between the loop, which owns all state, and the threads in which pages are made.

A page is made in a thread. What it shows it asks the desk for: the desk has the loop take a snapshot and
waits for it, in that thread. Nothing of the gateway is touched anywhere else.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from gateway.accounts.keys import Keys
from gateway.asgi import GATEWAY, Receive, Scope, Send
from gateway.runtime import Gateway
from gateway.web.brake import Brake

DESK = "pharos.desk"
ANSWER_S = 30.0
"""The loop answers in milliseconds; a thread must not wait for one that has been stopped."""
KEPT_ENDED = 4096

T = TypeVar("T")


class Ended:
    """Sessions that were logged out: a signed cookie cannot be called back, so it is remembered as void."""

    def __init__(self) -> None:
        self._ids: OrderedDict[str, None] = OrderedDict()

    def __contains__(self, id_: str) -> bool:
        return id_ in self._ids

    def add(self, id_: str) -> None:
        self._ids[id_] = None
        if len(self._ids) > KEPT_ENDED:
            self._ids.popitem(last=False)


class Desk:
    """Of one request. Made on the loop; its other methods are for the thread."""

    def __init__(self, gateway: Gateway, brake: Brake, ended: Ended) -> None:
        self._gateway, self._brake, self._ended = gateway, brake, ended
        self._loop = asyncio.get_running_loop()
        self.keys: Keys = gateway.accounts.keys  # never changed: a reload swaps it

    def ask(self, look: Callable[[Gateway], T]) -> T:
        """What `look` sees of the gateway in one step of the loop. It is quick, and changes nothing."""
        return self._on_loop(lambda: look(self._gateway))

    def wait_before_try(self, client: str | None) -> float:
        """Seconds before it may try a key; 0: now, and that was one try."""
        return self._on_loop(lambda: self._brake.take(client))

    def forgive(self, client: str | None) -> None:
        self._on_loop(lambda: self._brake.forgive(client))

    def ended(self, session: str) -> bool:
        return self._on_loop(lambda: session in self._ended)

    def end(self, session: str) -> None:
        self._on_loop(lambda: self._ended.add(session))

    def _on_loop(self, step: Callable[[], T]) -> T:
        async def run() -> T:
            return step()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(ANSWER_S)


class Pages:
    """The ASGI application for all paths that are pages: Django, with a desk in the scope of each request."""

    def __init__(self, django: Callable[[Any, Any, Any], Awaitable[None]]) -> None:
        self._django = django
        self._brake, self._ended = Brake(time.monotonic), Ended()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[DESK] = Desk(scope[GATEWAY], self._brake, self._ended)
        await self._django(scope, receive, send)
