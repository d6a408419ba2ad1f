"""The gateway with a watch on its event loop: `daphne benchmarks.watched:application`.

    GET /bench/lag/start      the watch begins
    GET /bench/lag/stop       it ends and is told as JSON

A tick is due every millisecond. While a step of the loop runs, ticks wait, and so does every request: the
latest tick tells how long the loop was held (`late_ms`). It is late as well when other processes have the
CPU, so the CPU time of the loop's thread since the tick before is kept beside it (`cpu_ms`). Off, the watch
costs nothing but the look at the path.
"""

from __future__ import annotations

import asyncio
import json
import time

from django.core.asgi import get_asgi_application

from gateway.asgi import Receive, Scope, Send
from gateway.runtime import Gateway, build
from pharos_site import asgi

EVERY_S = 0.001


class Watch:
    def __init__(self) -> None:
        self.late_ms: list[float] = []
        self.cpu_ms: list[float] = []
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self.stop()
        self.late_ms, self.cpu_ms = [], []
        self._task = asyncio.ensure_future(self._run())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self) -> None:
        while True:
            due, cpu = time.perf_counter() + EVERY_S, time.thread_time()
            await asyncio.sleep(EVERY_S)
            self.late_ms.append(round((time.perf_counter() - due) * 1000, 3))
            self.cpu_ms.append(round((time.thread_time() - cpu) * 1000, 3))


class Application(asgi.Application):
    def __init__(self) -> None:
        super().__init__(_build, get_asgi_application())
        self.watch = Watch()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if not path.startswith("/bench/lag/"):
            await super().__call__(scope, receive, send)
            return
        body = b"[]"
        if path.endswith("start"):
            self.watch.start()
        else:
            self.watch.stop()
            body = json.dumps({"late_ms": self.watch.late_ms, "cpu_ms": self.watch.cpu_ms}).encode()
        length = (b"content-length", str(len(body)).encode())
        await send({"type": "http.response.start", "status": 200, "headers": [length]})
        await send({"type": "http.response.body", "body": body})


def _build() -> Gateway:
    return build()


application = Application()
