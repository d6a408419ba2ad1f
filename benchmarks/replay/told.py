"""The gateway that also tells what it expected of each request: `daphne benchmarks.replay.told:application`.

    GET /bench/done     all requests so far, as JSON; never a word of them
"""

from __future__ import annotations

import json
from typing import Any

from django.core.asgi import get_asgi_application

from gateway.asgi import Receive, Scope, Send
from gateway.config import config_path, load
from gateway.proxy.decisions import stage_of
from gateway.proxy.done import Done
from gateway.proxy.feedback import ttft_s
from gateway.runtime import Gateway
from pharos_site import asgi

PATH = "/bench/done"


class Telling(Gateway):
    """Keeps every request that is over, for whoever measures."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.told: list[Done] = []
        super().__init__(*args, **kwargs)

    def _done(self, done: Done) -> None:
        super()._done(done)
        self.told.append(done)


def row(done: Done) -> dict[str, object]:
    """What was expected, and what came. Seconds, tokens; None is unknown."""
    told: dict[str, object] = {
        "arrived": done.arrived,
        "backend": done.backend,
        "waited_s": done.granted_s,
        "predicted_s": done.predicted_s,
        "ttft_s": ttft_s(done),
        "prefill_s": done.prefill_s,
        "prompt_tokens": done.prompt_tokens,
        "expected_cached": done.expected_cached,
        "cached_tokens": done.cached_tokens,
        "decisions": {stage_of(d): str(d) for d in done.decisions},
        "reason": done.reason,
    }
    if (decision := done.decision) is not None:
        chosen, score = decision.candidates[decision.at], decision.scores[decision.at]
        told |= {"score": score._asdict(), "candidate": chosen._asdict()}
    return told


class Application(asgi.Application):
    def __init__(self) -> None:
        super().__init__(self._make, get_asgi_application())

    def _make(self) -> Telling:
        self.gateway = Telling(load(), file=config_path())
        return self.gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("path") != PATH:
            await super().__call__(scope, receive, send)
            return
        body = json.dumps([row(done) for done in self.gateway.told if done.target]).encode()
        length = (b"content-length", str(len(body)).encode())
        await send({"type": "http.response.start", "status": 200, "headers": [length]})
        await send({"type": "http.response.body", "body": body})


application = Application()
