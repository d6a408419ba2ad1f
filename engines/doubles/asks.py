"""What a request asks of a double: which API, which model, how long a prompt and an answer. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Route:
    """One path. Its recordings are called `<name>`, `<name>-stream`, `<name>-unknown-model` …"""

    path: str
    name: str
    prompt_keys: tuple[str, ...]  # without all of them there is nothing to do
    streams_unless_told: bool = False
    native: bool = False  # Ollama's own

    @property
    def embeds(self) -> bool:
        return self.name in ("embeddings", "api-embed", "api-embeddings")


ROUTES = {
    r.path: r
    for r in (
        Route("/v1/chat/completions", "chat", ("messages",)),
        Route("/v1/completions", "completion", ("prompt",)),
        Route("/v1/messages", "messages", ("messages",)),
        Route("/v1/responses", "responses", ("input",)),
        Route("/v1/embeddings", "embeddings", ("input",)),
        Route("/api/chat", "api-chat", ("messages",), streams_unless_told=True, native=True),
        Route("/api/generate", "api-generate", ("prompt",), streams_unless_told=True, native=True),
        Route("/api/embed", "api-embed", ("input",), native=True),
        Route("/api/embeddings", "api-embeddings", ("prompt",), native=True),
    )
}

COUNT_TOKENS = "/v1/messages/count_tokens"


@dataclass(frozen=True, slots=True)
class Wanted:
    model: str | None
    prompt: bytes
    stream: bool
    usage: bool  # asked for in the stream
    limit: int | None  # of tokens
    to_the_limit: bool  # does not stop by itself
    keep_alive: object
    empty: bool  # no prompt in it


def wanted(route: Route, body: dict[str, Any]) -> Wanted:
    options = body.get("options") if isinstance(body.get("options"), dict) else {}
    assert isinstance(options, dict)
    stream = body.get("stream", route.streams_unless_told)
    usage = body.get("stream_options")
    model = body.get("model")
    return Wanted(
        model if isinstance(model, str) else None,
        prompt_of(body),
        stream is True,
        isinstance(usage, dict) and usage.get("include_usage") is True,
        _limit(body, options),
        body.get("ignore_eos") is True or options.get("ignore_eos") is True,
        body.get("keep_alive"),
        not any(body.get(key) for key in route.prompt_keys),
    )


def _limit(body: dict[str, Any], options: dict[str, Any]) -> int | None:
    for value in (
        body.get("max_tokens"),
        body.get("max_completion_tokens"),
        body.get("max_output_tokens"),
        options.get("num_predict"),
    ):
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None


def prompt_of(body: dict[str, Any]) -> bytes:
    """The text that is computed: a later turn of a chat begins with all of the earlier one and its answer."""
    parts = list(_system(body))
    messages = body.get("messages")
    if isinstance(messages, list) and messages:
        said = [m for m in messages if isinstance(m, dict)]
        parts += [f"{m.get('role')}\n{_text(m.get('content'))}\n" for m in said]
        parts.append("assistant\n")
    parts += [_text(body.get(key)) for key in ("prompt", "input") if body.get(key)]
    return "".join(parts).encode("utf-8", "surrogatepass")


def _system(body: dict[str, Any]) -> Iterator[str]:
    for key in ("system", "instructions"):
        if body.get(key):
            yield f"system\n{_text(body[key])}\n"


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(_text(part) for part in content)
    if isinstance(content, dict):
        inner = content.get("text", content.get("content"))
        return json.dumps(content) if inner is None else _text(inner)
    return "" if content is None else str(content)
