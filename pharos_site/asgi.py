"""The ASGI application: `daphne pharos_site.asgi:application`, or any other ASGI server that sends lifespan.

Requests whose path the gateway answers go to it, all others to Django. What the process needs of the gateway
is the `Gateway` protocol below; `gateway.runtime.build` makes one.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "pharos_site.settings")

from django.core.asgi import get_asgi_application

from gateway.asgi import GATEWAY, Receive, Scope, Send

Served = Callable[[Any, Any, Any], Awaitable[None]]

log = logging.getLogger("pharos")


class Limits(Protocol):
    @property
    def body(self) -> int:
        """The largest request body taken, in bytes."""

    @property
    def write_stall(self) -> float:
        """Seconds without taking one byte after which a client is cut."""


class Gateway(Protocol):
    @property
    def limits(self) -> Limits: ...

    @property
    def listen(self) -> tuple[str, int]:
        """Host and port to listen on when the command line names none."""

    async def start(self) -> None:
        """Ready to serve when it returns. What it raises ends the process, with its text as the reason;
        having raised or been cancelled it leaves nothing running."""

    def begin_drain(self) -> None:
        """The process was told to stop."""

    async def grace_over(self) -> None:
        """Returns when new requests need no longer be taken; the listener closes then."""

    async def drained(self) -> None:
        """Returns when the grace is over and running requests have ended, or their time is up."""

    async def stop(self) -> None:
        """Let go of everything. Also called when the drain was never begun."""

    def routes(self, path: str) -> bool:
        """Whether the gateway, and not Django, answers this path."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...


class Application:
    """ASGI `lifespan` and `http`; everything else is refused by raising, as the specification of ASGI has it.

    The gateway is built at startup, not on import, so that a broken config is a message and no traceback.
    """

    def __init__(self, build: Callable[[], Gateway], django: Served) -> None:
        self._build = build
        self._django = django
        self._gateway: Gateway | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] != "http":
            raise ValueError(f"Pharos does not speak ASGI {scope['type']!r}")
        elif self._started.routes(scope["path"]):
            await self._started(scope, receive, send)
        else:
            scope[GATEWAY] = self._started
            await self._django(scope, receive, send)

    @property
    def _started(self) -> Gateway:
        if self._gateway is None:
            raise RuntimeError("the gateway was not started: this ASGI server sends no lifespan events")
        return self._gateway

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            self._gateway = self._build()
            await self._gateway.start()
        except Exception as error:
            log.debug("startup failed", exc_info=True)
            await send({"type": "lifespan.startup.failed", "message": _reason(error)})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        try:
            await self._gateway.stop()
        except Exception as error:
            log.exception("the gateway did not stop cleanly")
            await send({"type": "lifespan.shutdown.failed", "message": _reason(error)})
            return
        await send({"type": "lifespan.shutdown.complete"})

    # What `PharosServer` asks, once the gateway has started.

    @property
    def limits(self) -> Limits:
        return self._started.limits

    @property
    def listen(self) -> tuple[str, int]:
        return self._started.listen

    def begin_drain(self) -> None:
        self._started.begin_drain()

    async def grace_over(self) -> None:
        await self._started.grace_over()

    async def drained(self) -> None:
        await self._started.drained()


def _reason(error: Exception) -> str:
    """Errors that were written for people speak for themselves; others need their name to mean anything."""
    text = str(error)
    own = type(error).__module__.partition(".")[0] in ("gateway", "engines", "pharos_site")
    return text if own and text else f"{type(error).__name__}: {text}"


def _build() -> Gateway:
    from gateway.runtime import build

    return build()


def serve_with_ours() -> None:
    """Have the `daphne` command run our server: it reads this attribute after importing the application."""
    from daphne.cli import CommandLineInterface

    from .server import PharosServer

    CommandLineInterface.server_class = PharosServer  # type: ignore[assignment]  # inferred too narrowly


def _pages() -> Served:
    """Django is set up before anything that needs its applications is imported."""
    django = get_asgi_application()
    from gateway.web.desk import Pages

    return Pages(django)


application = Application(_build, _pages())
serve_with_ours()
