"""Which request routes an engine has, told from what it says to a POST of `{}`.

That body names no model and holds no prompt, so nothing is loaded or generated for it. A route that
exists complains about what is missing; one that does not says 404. The exceptions, as recorded:

- 404 is also what a served route says of the missing model (Ollama 0.24.0 and 0.32.15, llama-swap v250);
- 500 is how llama.cpp complains at /v1/messages (b9093 to b11434), 501 that it was started without the means;
- 200 with an error is how LM Studio answers a path that it does not know.
"""

from __future__ import annotations

from typing import Any

import msgspec

from engines.fetch import Answer

ROUTES = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/responses",
    "/api/chat",
    "/api/generate",
    "/api/embed",
)

COMPLAINTS = frozenset({400, 409, 411, 413, 422})
MISSING = frozenset({405, 410, 501})  # another method's path, or not without an option of the engine


def served(answer: Answer) -> bool | None:
    """Whether the route exists; None when the answer cannot tell (no key, not ready)."""
    said = _json(answer.body)
    if answer.status in MISSING:
        return False
    if answer.status == 404:
        return "model" in _message(said).lower()
    if answer.status in COMPLAINTS:
        return True if isinstance(said, dict) or _old_llama_swap(answer.body) else None
    if answer.status == 500:
        return True if isinstance(said, dict) and "error" in said else None
    if answer.status == 200:
        return _served_by_200(answer, said)
    return None


def _served_by_200(answer: Answer, said: object) -> bool | None:
    if isinstance(said, dict) and "error" in said:
        return False if "unexpected endpoint" in _message(said).lower() else None
    if said is not None:
        return True
    page = "html" in answer.headers.get("content-type", "")
    return False if page else None  # a web page that is shown for every path is no API


def _old_llama_swap(body: bytes) -> bool:
    return b"inference handler" in body  # v185 answers in plain text


def _json(body: bytes) -> Any:  # noqa: ANN401 (whatever came)
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None


def complaint(body: bytes) -> str:
    """The text of an error in any of the engines' shapes; empty when it has none."""
    return _message(_json(body))


def _message(said: object) -> str:
    if not isinstance(said, dict):
        return ""
    error = said.get("error", said.get("message", said.get("detail")))
    if isinstance(error, dict):
        error = error.get("message")
    return error if isinstance(error, str) else ""
