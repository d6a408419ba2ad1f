"""What an engine's reply is, by its status and headers, and how it is told where it cannot be passed on."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

from engines import routes as engine_routes
from engines.usage import API_OF_PATH
from gateway.fleet.backend import Backend
from gateway.proxy import serving
from gateway.proxy.apis import Framing
from gateway.proxy.ask import Ask
from gateway.proxy.headers import Header, to_client, value
from gateway.proxy.refusals import Refusal
from gateway.proxy.tap import Stream, Tap, Whole
from gateway.proxy.upstream import Reply

BACK_PRESSURE = frozenset({429, 503})
REFUSED_OR_FAILED = frozenset({429, *range(500, 600)}) - {501}
"""Answers before any work: another engine may do better. 501 says that the engine lacks the ability."""


def content_type(reply: Reply) -> str:
    return (value(reply.headers, b"content-type") or b"").split(b";")[0].strip().lower().decode("latin-1")


def is_json(reply: Reply) -> bool:
    return content_type(reply) in ("application/json", "application/problem+json")


def is_page(reply: Reply) -> bool:
    """A success of something else than an engine: a proxy's sign-in, or a web server on the engine's port."""
    return reply.status < 400 and content_type(reply) in ("text/html", "application/xhtml+xml")


def length(reply: Reply) -> int | None:
    given = value(reply.headers, b"content-length") or b""
    return int(given) if re.fullmatch(rb"\d{1,15}", given) else None


async def up_to(pieces: AsyncIterator[bytes], limit: int) -> bytes:
    """The first `limit` bytes or some more; the rest is still to come."""
    head = b""
    async for piece in pieces:
        head += piece
        if len(head) > limit:
            break
    return head


def tap_for(reply: Reply, ask: Ask, backend: Backend) -> Tap | None:
    """None: a reply that is no generation, or in no form that can be read."""
    if reply.status != 200:
        return None
    recipe = serving.recipe_of(backend)
    untrue = frozenset[str]() if recipe is None else recipe.untrue_usage
    kind, api = content_type(reply), API_OF_PATH.get(ask.route.path)
    if kind in list(Framing):
        return Stream(Framing(kind), ask.route.family, api, untrue, strip=ask.adds_usage)
    return Whole(api, untrue) if is_json(reply) and api is not None else None


def headers_for_client(reply: Reply, tap: Tap | None) -> list[Header]:
    headers = to_client(reply.headers)
    if tap is not None and tap.strips:
        headers = [h for h in headers if h[0] != b"content-length"]
    if reply.status in BACK_PRESSURE:
        after = value(headers, b"retry-after")
        headers = [h for h in headers if h[0] != b"retry-after"]
        headers.append((b"retry-after", _whole_seconds(after)))
    return headers


def redirected(reply: Reply, backend: Backend) -> Refusal:
    """A client that followed it would send its prompt past Pharos."""
    to = (value(reply.headers, b"location") or b"elsewhere").decode("latin-1")[:200]
    message = f"{backend.url} redirects to {to}: that address belongs into the config."
    return Refusal(502, "engine_redirects", message)


def in_words(reply: Reply, body: bytes, backend: Backend) -> Refusal:
    """What an engine answered, as an error of ours: clients parse what they get as JSON, or as a stream."""
    said = engine_routes.complaint(body) or re.sub(r"<[^>]*>", " ", body[:4096].decode("utf-8", "replace"))
    words = " ".join(said.split())[:200]
    page = " with a web page" if is_page(reply) else ""
    message = f"The engine at {backend.url} answered {reply.status}{page}: {words or 'nothing'}"
    status = reply.status if reply.status >= 400 else 502
    after = int(_whole_seconds(value(reply.headers, b"retry-after")))
    return Refusal(status, "engine_error", message, after)


def _whole_seconds(given: bytes | None) -> bytes:
    """1 to 60: some clients sleep for as long as they are told, some ignore what is longer."""
    if given is None or not re.fullmatch(rb"\s*\d{1,9}(\.\d*)?\s*", given):
        return b"1"
    return str(min(60, max(1, round(float(given))))).encode()
