"""What an engine says when it does not do what was asked: recorded, with the asked name put in."""

from __future__ import annotations

import json

from engines.doubles.asks import Route
from engines.doubles.kinds import Imitation
from engines.doubles.recordings import CAPTURES, Page, Reply, pages, reply

ASKED = (b"no-such-model", b"nope")
"""The names that nobody had when the refusals were recorded."""

_JSON = (("Content-Type", "application/json"),)


def _first(imitation: Imitation, stems: tuple[str, ...]) -> Reply | None:
    found = (reply(f"{imitation.recording}/{stem}") for stem in stems)
    return next((r for r in found if r is not None), None)


def _stems(imitation: Imitation, route: Route, *endings: str) -> tuple[str, ...]:
    """The route's own recording first, then that of the chat route."""
    folder = imitation.streams
    own = [f"{folder}/{route.name}-{ending}" for ending in endings]
    return (*own, *(f"{folder}/{ending}" for ending in endings))


def unknown_model(imitation: Imitation, route: Route, asked: str) -> Reply | None:
    found = _first(imitation, _stems(imitation, route, "unknown-model"))
    if found is None or found.status < 400:
        return None
    body, name = found.body, json.dumps(asked)[1:-1].encode()
    for recorded in ASKED:
        body = body.replace(recorded, name)
    return _with(found, body)


def malformed(imitation: Imitation, route: Route) -> Reply:
    found = _first(imitation, _stems(imitation, route, "malformed", "malformed-json"))
    return found or Reply("HTTP/1.1", 400, "Bad Request", _JSON, b'{"error":"malformed JSON"}')


def no_model(imitation: Imitation, route: Route) -> Reply | None:
    """None where a request without a model is served."""
    found = _first(imitation, _stems(imitation, route, "no-model"))
    return found if found is not None and found.status >= 400 else None


EMBEDDING = ("embedding-model", "embeddings-mode/streams")
"""Where the replies of servers that embed were recorded."""


def incomplete(imitation: Imitation, route: Route, *, embeds: bool = False) -> Page | None:
    """What a body of `{}` is told. `embeds`: by a server that was started for embeddings."""
    states = [imitation.idle]
    if embeds and route.embeds:
        states = [f for e in EMBEDDING if (CAPTURES / imitation.recording / (f := e.split("/")[0])).is_dir()]
    return next((p for s in states if (p := _told(imitation, s, route)) is not None), None)


def _told(imitation: Imitation, state: str, route: Route) -> Page | None:
    return pages(f"{imitation.recording}/{state}").get(("POST", route.path))


FULL = {
    ("llama-swap", False): "limit/refusal",
    ("ollama", True): "queue-full/refused-12-api_generate",
    ("ollama", False): "queue-full/refused-3-v1_chat_completions",
    ("messages", False): "queue-full/refused-8-v1_messages",
}


def full(imitation: Imitation, route: Route) -> Reply:
    """Too many requests. Only Ollama and llama-swap refuse any."""
    key = ("messages", False) if (imitation.kind, route.name) == ("ollama", "messages") else None
    stem = FULL.get(key or (imitation.kind, route.native))
    found = reply(f"{imitation.recording}/{stem}") if stem else None
    return found or Reply("HTTP/1.1", 503, "Service Unavailable", _JSON, b'{"error":"server busy"}')


def not_found(imitation: Imitation) -> Page:
    """What the engine says of a path that it does not have."""
    recorded = pages(f"{imitation.recording}/{imitation.idle}").values()
    return next((p for p in recorded if p.status == 404), Page(404, "text/plain", b"not found"))


def _with(found: Reply, body: bytes) -> Reply:
    return Reply(found.version, found.status, found.reason, found.headers, body)


ERROR_EVENT_PLAIN = "vllm/v0.32.0/engine-dead/non-stream"
ERROR_EVENT_STREAM = "vllm/v0.32.0/engine-dead/stream-1"


def error_events() -> list[bytes]:
    """The last two events of a stream whose engine died (vLLM 0.32.0): the error, and `[DONE]`."""
    found = reply(ERROR_EVENT_STREAM)
    events = [e + b"\n\n" for e in found.body.split(b"\n\n") if e.strip()] if found else []
    return events[-2:]


def error_line() -> bytes:
    """The last line of a native stream whose runner died (Ollama 0.32.15)."""
    found = reply("ollama/v0.32.15/killed-runner/api-generate-stream")
    return found.body.rstrip().rsplit(b"\n", 1)[-1] + b"\n" if found else b""
