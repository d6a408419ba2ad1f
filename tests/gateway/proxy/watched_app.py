"""The real application, and one path more that tells what it holds: `daphne tests.gateway.proxy.watched_app:application`."""

from __future__ import annotations

import asyncio
import json
from collections import Counter

from django.core.asgi import get_asgi_application

from gateway.asgi import Receive, Scope, Send
from gateway.runtime import Gateway, build
from pharos_site.asgi import Application
from tests.gateway.proxy.scene import held

PATH = "/held"


class Watched(Application):
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == PATH:
            body = json.dumps(self._held()).encode()
            head = [(b"content-length", str(len(body)).encode())]
            await send({"type": "http.response.start", "status": 200, "headers": head})
            await send({"type": "http.response.body", "body": body})
        else:
            await super().__call__(scope, receive, send)

    def _held(self) -> dict[str, object]:
        assert isinstance(self._gateway, Gateway)
        requests = Counter(_work(t) for t in asyncio.all_tasks())
        requests["Watched.__call__"] -= 2  # this one, and the life of the process
        return {**held(self._gateway), "tasks": dict(+requests)}


def _work(task: asyncio.Task[object]) -> str:
    return str(getattr(task.get_coro(), "__qualname__", task))


application = Watched(build, get_asgi_application())
