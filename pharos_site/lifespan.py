"""The server's half of the ASGI lifespan protocol, which Daphne does not speak."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any


class StartupError(Exception):
    """The application cannot serve; the message says why, for the person who started it."""


class Lifespan:
    def __init__(self, application: Callable[..., Awaitable[None]]) -> None:
        self._application = application
        self._to_app: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._from_app: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    async def startup(self) -> None:
        """Raises StartupError."""
        scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": {}}
        self._task = asyncio.ensure_future(self._application(scope, self._to_app.get, self._from_app.put))
        answer = await self._ask("startup")
        if answer["type"] != "lifespan.startup.complete":
            raise StartupError(answer.get("message") or "the application gave no reason")

    async def shutdown(self) -> None:
        """What goes wrong here is returned to nobody: the application has said it in its log."""
        await self._ask("shutdown")

    async def _ask(self, what: str) -> dict[str, Any]:
        """The application's answer; one of ours when it ended without."""
        assert self._task is not None
        await self._to_app.put({"type": f"lifespan.{what}"})
        answer = asyncio.ensure_future(self._from_app.get())
        await asyncio.wait([answer, self._task], return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            return answer.result()
        answer.cancel()
        error = None if self._task.cancelled() else self._task.exception()
        return {"type": f"lifespan.{what}.failed", "message": repr(error) if error else "it ended early"}
