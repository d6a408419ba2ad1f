"""The routes that reach an engine, as data, and what a mistyped address should have been."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from gateway.proxy.apis import ANTHROPIC, OLLAMA, OPENAI, RESPONSES, Family
from gateway.proxy.headers import Header, value
from gateway.proxy.refusals import Refusal


@dataclass(frozen=True, slots=True)
class Route:
    """One route that is answered by an engine."""

    path: str
    family: Family
    native: bool = False  # of Ollama's own API: only engines that speak it are asked
    optional: bool = False  # engines of any kind may lack it, so "no such route" is no answer
    streams: bool | None = False  # what a body without "stream" means; None: it never streams
    usage_option: bool = False  # its streams report usage to those alone who ask: see `Ask.adds_usage`
    named_by: tuple[str, ...] = ("model",)  # the fields that may name the model, the first that does wins
    free: bool = False  # no model runs for it, so it uses no tokens


CHAT = Route("/v1/chat/completions", OPENAI, usage_option=True)
SHOW = Route("/api/show", OLLAMA, native=True, streams=None, named_by=("model", "name"))

ROUTES: Mapping[str, Route] = {
    route.path: route
    for route in (
        CHAT,
        Route("/v1/completions", OPENAI, usage_option=True),
        Route("/v1/embeddings", OPENAI, streams=None),
        Route("/v1/messages", ANTHROPIC, optional=True),
        Route("/v1/messages/count_tokens", ANTHROPIC, optional=True, streams=None, free=True),
        Route("/v1/responses", RESPONSES, optional=True),
        Route("/api/chat", OLLAMA, native=True, streams=True),
        Route("/api/generate", OLLAMA, native=True, streams=True),
        Route("/api/embed", OLLAMA, native=True, streams=None),
        Route("/api/embeddings", OLLAMA, native=True, streams=None),
    )
}

LISTS = ("/v1/models", "/api/tags", "/api/ps", "/api/version", "/api/show")

MANAGEMENT = re.compile(r"/api/(pull|push|create|copy|delete|blobs|me|signin|signout|user)(/.*)?")


def family_of(path: str, headers: list[Header]) -> Family:
    """The family in whose shape a reply on this path is told, for mistyped paths too."""
    if re.search(r"/messages(/count_tokens)?/?$", path) or path.startswith("/v1/messages"):
        return ANTHROPIC
    if path.startswith("/v1/models") and value(headers, b"anthropic-version") is not None:
        return ANTHROPIC
    if path.endswith("/responses") or path.startswith("/v1/responses"):
        return RESPONSES
    native = path in ("/", "/api") or re.match(r"/(v1/)?api/(?!v1(/|$))", path)
    return OLLAMA if native else OPENAI


def only(method: str, *allowed: str) -> None:
    """Raises Refusal (405)."""
    if method not in allowed:
        raise Refusal(
            405, "method_not_allowed", f"This path takes {' or '.join(allowed)}, not {method[:20]}.",
            headers=[(b"allow", ", ".join(allowed).encode())],
        )  # fmt: skip


def unknown(path: str, headers: list[Header]) -> Refusal:
    """What to answer on a path that does not exist: people mistype base URLs, and see this as it is."""
    root = f"http://{_host(headers)}"
    if MANAGEMENT.fullmatch(path):
        return Refusal(
            501, "not_supported",
            "Pharos serves models and does not manage them: pull, create, copy or delete a model "
            "on the machine whose Ollama is to have it.",
        )  # fmt: skip
    return Refusal(404, "unknown_path", f"Pharos has no {path[:200]!r}: {_hint(path, root)}.")


def _host(headers: list[Header]) -> str:
    given = (value(headers, b"host") or b"").decode("latin-1")
    return (
        given
        if re.fullmatch(r"[A-Za-z0-9.\-]{1,200}(:\d{1,5})?|\[[0-9A-Fa-f:]+\](:\d{1,5})?", given)
        else "this-host:8090"
    )


def _hint(path: str, root: str) -> str:
    openai = f"the base URL for OpenAI clients is {root}/v1"
    bare = f"is {root}, without anything after it"
    squeezed = re.sub(r"/{2,}", "/", path).rstrip("/") or "/"
    if squeezed != path and _known(squeezed):
        return f"there is a slash too many; you may have meant {squeezed!r}, and {openai}"
    if re.match(r"/v1/api(/|$)|/api/api(/|$)", squeezed):
        return f"the base URL for Ollama clients {bare}"
    if re.search(r"/messages(/count_tokens)?$", squeezed):
        return f"the base URL for Anthropic clients {bare}"
    tail = next((p for p in _paths() if squeezed.endswith(p.removeprefix("/v1")) and p != squeezed), None)
    if tail is not None:
        where = f"the base URL for Ollama clients {bare}" if tail.startswith("/api/") else openai
        return f"you may have meant {tail!r}; {where}"
    if path.startswith("/api"):
        return f"the base URL for Ollama clients {bare}, and {openai}"
    return f"{openai}; for Ollama and Anthropic clients it {bare}"


def _paths() -> tuple[str, ...]:
    """Longest first, so that /v1/messages/count_tokens is not taken for another."""
    return tuple(sorted((*ROUTES, *LISTS), key=len, reverse=True))


def _known(path: str) -> bool:
    return path in ROUTES or path in LISTS
