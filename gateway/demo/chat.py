"""One streamed chat in the `openai` wire format, the way any client of Pharos sends it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx

FIRST_TOKEN_DEADLINE_S = 120.0


class ChatError(Exception):
    """No whole answer came. The message says what came instead."""


@dataclass(frozen=True, slots=True)
class Delta:
    """One event of the stream: `text` may be empty (a role, a usage line); `finish` names why it ended."""

    text: str = ""
    finish: str | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    backend: str | None  # who answered, as the gateway names it
    reason: str | None  # why that one
    pieces: int  # events with text; about one a token
    first_token_s: float
    total_s: float


def deltas(lines: Iterable[str]) -> Iterator[Delta]:
    """The deltas of an event stream's lines. Raises ChatError for an error event or one that is no JSON."""
    for line in lines:
        name, _, value = line.partition(":")
        if name != "data" or value.strip() == "[DONE]":
            continue
        try:
            event = json.loads(value)
        except ValueError:
            raise ChatError(f"the stream holds an event that is not JSON: {value.strip()[:200]}") from None
        yield _delta(event)


def _delta(event: Any) -> Delta:  # noqa: ANN401 (decoded JSON)
    if not isinstance(event, dict):
        return Delta()
    if "error" in event:
        raise ChatError(message_of(event))
    choices = event.get("choices") or [{}]
    text = (choices[0].get("delta") or {}).get("content")
    return Delta(text if isinstance(text, str) else "", choices[0].get("finish_reason"))


def message_of(body: Any) -> str:  # noqa: ANN401 (decoded JSON)
    """The words of an error body in the `openai` shape, or the body itself."""
    error = body.get("error") if isinstance(body, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    return str(message or body)[:400]


def ask(model: str, question: str, max_tokens: int) -> dict[str, object]:
    return {
        "model": model,
        "stream": True,
        "max_tokens": max_tokens,
        "temperature": 0,
        "messages": [{"role": "user", "content": question}],
    }


def stream(base: str, body: dict[str, object], on_text: Callable[[str], None]) -> Answer:
    """Send `body` to `base`/v1/chat/completions and hand each piece of text to `on_text` as it comes.

    Raises ChatError when the gateway refuses, the stream breaks, or it ends without a finish reason.
    """
    began = time.monotonic()
    first: float | None = None
    pieces, finish = 0, None
    try:
        with httpx.stream(
            "POST", f"{base}/v1/chat/completions", json=body, timeout=FIRST_TOKEN_DEADLINE_S, trust_env=False
        ) as reply:
            if reply.status_code != 200:
                reply.read()
                raise ChatError(f"the gateway answered {reply.status_code}: {_reason(reply)}")
            for delta in deltas(reply.iter_lines()):
                if delta.text:
                    first = time.monotonic() if first is None else first
                    pieces += 1
                    on_text(delta.text)
                finish = delta.finish or finish
            headers = reply.headers
    except httpx.HTTPError as e:
        raise ChatError(f"the stream broke after {pieces} pieces ({type(e).__name__}: {e})") from None
    if finish is None or first is None:
        raise ChatError(f"the stream ended after {pieces} pieces without saying that it was finished")
    ended = time.monotonic()
    return Answer(
        headers.get("x-pharos-backend"),
        headers.get("x-pharos-reason"),
        pieces,
        first - began,
        ended - began,
    )


def _reason(reply: httpx.Response) -> str:
    try:
        return message_of(reply.json())
    except ValueError:
        return reply.text[:400]
