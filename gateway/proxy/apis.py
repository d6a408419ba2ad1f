"""The API families: how each tells an error, how each frames a stream, and what ends a generation in it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

from gateway.proxy.refusals import Refusal


class Framing(StrEnum):
    SSE = "text/event-stream"
    NDJSON = "application/x-ndjson"


@dataclass(frozen=True, slots=True)
class Family:
    """`ends` takes one event's data and says whether the engine finished, or gave up, with it."""

    error: Callable[[Refusal], bytes]  # the body of a plain reply
    error_event: Callable[[Refusal], bytes]  # one whole event of a stream
    ends: Callable[[bytes], bool]
    framing: Framing  # of its streams


# -- what ends a generation --------------------------------------------------------------------


class _Choice(msgspec.Struct):
    finish_reason: Any = None


class _Event(msgspec.Struct):
    choices: list[_Choice] | None = None
    type: Any = None
    done: Any = None
    error: Any = None


_event = msgspec.json.Decoder(_Event)


def _read(data: bytes, *marks: bytes) -> _Event | None:
    """The event, if any of the marks stands in it: most events of a stream are not worth decoding."""
    for mark in marks:
        if mark in data:
            break
    else:
        return None
    try:
        return _event.decode(data)
    except (msgspec.DecodeError, RecursionError):  # bytes of another shape end nothing
        return None


def _openai_ends(data: bytes) -> bool:
    event = _read(data, b'"finish_reason"', b'"error"')
    if event is None:
        return False
    return event.error is not None or any(c.finish_reason is not None for c in event.choices or ())


def _ends_with(*types: str) -> Callable[[bytes], bool]:
    marks = tuple(t.encode() for t in types)

    def ends(data: bytes) -> bool:
        event = _read(data, *marks)
        return event is not None and event.type in types

    return ends


def _ollama_ends(data: bytes) -> bool:
    event = _read(data, b'"done"', b'"error"')
    return event is not None and (event.done is True or event.error is not None)


# -- errors ------------------------------------------------------------------------------------


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")


def _openai(refusal: Refusal) -> bytes:
    error = {"message": refusal.message, "type": refusal.kind, "param": None, "code": refusal.code}
    return _json({"error": error})


ANTHROPIC_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def _anthropic(refusal: Refusal) -> bytes:
    other = "invalid_request_error" if refusal.status < 500 else "api_error"
    kind = ANTHROPIC_KINDS.get(refusal.status, other)
    return _json({"type": "error", "error": {"type": kind, "message": refusal.message}})


def _responses_failed(refusal: Refusal) -> bytes:
    error = {"code": refusal.code, "message": refusal.message}
    response = {"object": "response", "status": "failed", "error": error}
    return _json({"type": "response.failed", "response": response})


def _ollama(refusal: Refusal) -> bytes:
    return _json({"error": refusal.message})


OPENAI = Family(
    error=_openai,
    error_event=lambda refusal: b"data: " + _openai(refusal) + b"\n\n",
    ends=_openai_ends,
    framing=Framing.SSE,
)
RESPONSES = Family(
    error=_openai,
    error_event=lambda refusal: b"event: response.failed\ndata: " + _responses_failed(refusal) + b"\n\n",
    ends=_ends_with("response.completed", "response.failed", "response.incomplete", "error"),
    framing=Framing.SSE,
)
ANTHROPIC = Family(
    error=_anthropic,
    error_event=lambda refusal: b"event: error\ndata: " + _anthropic(refusal) + b"\n\n",
    ends=_ends_with("message_stop", "error"),
    framing=Framing.SSE,
)
OLLAMA = Family(
    error=_ollama,
    error_event=lambda refusal: _ollama(refusal) + b"\n",
    ends=_ollama_ends,
    framing=Framing.NDJSON,
)
