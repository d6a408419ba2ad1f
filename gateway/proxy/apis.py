"""The API families: how each tells an error, how each frames a stream, and what begins and ends a generation
in it."""

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
    """`ends` takes one event's data and says whether the engine finished, or gave up, with it.

    `bears` says whether something generated is in it: text, reasoning, a tool call. A role alone is not.
    """

    error: Callable[[Refusal], bytes]  # the body of a plain reply
    error_event: Callable[[Refusal], bytes]  # one whole event of a stream
    may_end: Callable[[bytes], bool]  # False: nothing in these bytes ends anything, however they are cut
    ends: Callable[[bytes], bool]
    bears: Callable[[bytes], bool]
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


def _read(data: bytes) -> _Event | None:
    try:
        return _event.decode(data)
    except (msgspec.DecodeError, RecursionError):  # bytes of another shape end nothing
        return None


def _openai_may_end(data: bytes) -> bool:
    """Nearly every chunk has a `finish_reason`, and it is null in all but one."""
    null = data.count(b'"finish_reason":null') + data.count(b'"finish_reason": null')
    return null != data.count(b'"finish_reason"') or b'"error"' in data


def _openai_ends(data: bytes) -> bool:
    event = _read(data) if _openai_may_end(data) else None
    if event is None:
        return False
    return event.error is not None or any(c.finish_reason is not None for c in event.choices or ())


RESPONSES_ENDS = ("response.completed", "response.failed", "response.incomplete", "error")
ANTHROPIC_ENDS = ("message_stop", "error")


def _responses_may_end(data: bytes) -> bool:
    return (
        b"response.completed" in data
        or b"response.failed" in data
        or b"response.incomplete" in data
        or b"error" in data
    )


def _responses_ends(data: bytes) -> bool:
    event = _read(data) if _responses_may_end(data) else None
    return event is not None and event.type in RESPONSES_ENDS


def _anthropic_may_end(data: bytes) -> bool:
    return b"message_stop" in data or b"error" in data


def _anthropic_ends(data: bytes) -> bool:
    event = _read(data) if _anthropic_may_end(data) else None
    return event is not None and event.type in ANTHROPIC_ENDS


def _ollama_may_end(data: bytes) -> bool:
    """Every line has a `done`, and it is false in all but one."""
    going_on = data.count(b'"done":false') + data.count(b'"done": false')
    return going_on != data.count(b'"done"') or b'"error"' in data


def _ollama_ends(data: bytes) -> bool:
    event = _read(data) if _ollama_may_end(data) else None
    return event is not None and (event.done is True or event.error is not None)


# -- what begins it ----------------------------------------------------------------------------


_object = msgspec.json.Decoder(dict[str, Any])


def _decoded(data: bytes) -> dict[str, Any]:
    try:
        return _object.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return {}


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _openai_bears(data: bytes) -> bool:
    event = _decoded(data)
    choices = event.get("choices")
    return any(_choice_bears(event, _dict(c)) for c in choices) if isinstance(choices, list) else False


def _choice_bears(event: dict[str, Any], choice: dict[str, Any]) -> bool:
    delta = _dict(choice.get("delta"))
    if len(event) == len(choice) == 1 and delta.keys() == {"reasoning_content"}:
        return False  # llama-swap's own words while it loads a model (v250): no id, no index, no model
    return bool(choice.get("text")) or any(v for k, v in delta.items() if k != "role")


def _anthropic_bears(data: bytes) -> bool:
    event = _decoded(data)
    part = _dict(event.get("delta" if event.get("type") == "content_block_delta" else "content_block"))
    if part.get("type") in ("tool_use", "server_tool_use"):
        return True  # its name is generated
    return any(v for k, v in part.items() if k != "type")


def _responses_bears(data: bytes) -> bool:
    event = _decoded(data)
    if _dict(event.get("item")).get("type") in ("function_call", "custom_tool_call"):
        return True  # its name is generated
    return str(event.get("type")).endswith(".delta") and bool(event.get("delta"))


def _ollama_bears(data: bytes) -> bool:
    event = _decoded(data)
    message = _dict(event.get("message"))
    return any(
        part.get(k) for part in (event, message) for k in ("response", "content", "thinking", "tool_calls")
    )


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
    may_end=_openai_may_end,
    ends=_openai_ends,
    bears=_openai_bears,
    framing=Framing.SSE,
)
RESPONSES = Family(
    error=_openai,
    error_event=lambda refusal: b"event: response.failed\ndata: " + _responses_failed(refusal) + b"\n\n",
    may_end=_responses_may_end,
    ends=_responses_ends,
    bears=_responses_bears,
    framing=Framing.SSE,
)
ANTHROPIC = Family(
    error=_anthropic,
    error_event=lambda refusal: b"event: error\ndata: " + _anthropic(refusal) + b"\n\n",
    may_end=_anthropic_may_end,
    ends=_anthropic_ends,
    bears=_anthropic_bears,
    framing=Framing.SSE,
)
OLLAMA = Family(
    error=_ollama,
    error_event=lambda refusal: _ollama(refusal) + b"\n",
    may_end=_ollama_may_end,
    ends=_ollama_ends,
    bears=_ollama_bears,
    framing=Framing.NDJSON,
)
