"""The real process with a gateway that tells: `daphne benchmarks.replay.app:application`.

GET /bench/done     all requests that reached an engine so far, as JSON; never a word of them
"""

from __future__ import annotations

import json

from django.core.asgi import get_asgi_application

from benchmarks.replay.fronts import TOLD
from benchmarks.replay.told import Telling, row
from gateway.asgi import Receive, Scope, Send
from gateway.config import config_path, load
from pharos_site import asgi


class Application(asgi.Application):
    def __init__(self) -> None:
        super().__init__(self._make, get_asgi_application())

    def _make(self) -> Telling:
        self.gateway = Telling(load(), file=config_path())
        return self.gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("path") != TOLD:
            await super().__call__(scope, receive, send)
            return
        body = json.dumps([row(done) for done in self.gateway.told if done.target]).encode()
        length = (b"content-length", str(len(body)).encode())
        await send({"type": "http.response.start", "status": 200, "headers": [length]})
        await send({"type": "http.response.body", "body": body})


application = Application()
