"""One user's client: it streams, keeps the history, and takes the times."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from benchmarks.replay.trace import Talk, Turn
from engines.usage import Api, Usage, merge, read_usage
from gateway.demo.engines import MODEL_NAME

PATIENCE_S = 120.0

Message = dict[str, str]


@dataclass(slots=True)
class Asked:
    """One request as its client saw it. None: it did not come, or was not told. Seconds, tokens."""

    user: str
    turn: int
    at_s: float  # since the start of the run
    ttft_s: float | None = None  # to the first chunk that holds text
    total_s: float | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    prefill_s: float | None = None  # by the engine's clock
    backend: str | None = None  # where Pharos says so
    error: str | None = None

    @property
    def computed_tokens(self) -> int | None:
        """Of the prompt."""
        if self.prompt_tokens is None or self.cached_tokens is None:
            return None
        return self.prompt_tokens - self.cached_tokens


async def replay(url: str, talks: Sequence[Talk], asked: Callable[[], None] = lambda: None) -> list[Asked]:
    """All talks at once, each user waiting for an answer before the next question. `asked` after each."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(trust_env=False, timeout=PATIENCE_S, limits=limits) as http:
        began = time.perf_counter()
        rows = await asyncio.gather(*(_talk(http, url, talk, began, asked) for talk in talks))
    return sorted((row for some in rows for row in some), key=lambda row: row.at_s)


async def _talk(
    http: httpx.AsyncClient, url: str, talk: Talk, began: float, asked: Callable[[], None]
) -> list[Asked]:
    history = [{"role": "system", "content": talk.system}]
    rows = []
    for number, turn in enumerate(talk.turns):
        await asyncio.sleep(turn.think_s)
        history.append({"role": "user", "content": turn.question})
        row = Asked(talk.user, number, time.perf_counter() - began)
        rows.append(row)
        try:
            answer = await _ask(http, url, talk.user, history, turn, row)
        except (httpx.HTTPError, ValueError) as e:
            row.error = f"{type(e).__name__}: {e}"[:300]
            history.pop()
        else:
            history.append({"role": "assistant", "content": answer})
        asked()
    return rows


async def _ask(
    http: httpx.AsyncClient, url: str, user: str, history: list[Message], turn: Turn, row: Asked
) -> str:
    """The answer's text. Raises HTTPError, and ValueError for what is no stream of chunks."""
    body = {
        "model": MODEL_NAME,
        "messages": history,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": turn.answer_tokens,
        "ignore_eos": True,  # llama.cpp's own: answers are as long in every run
        "temperature": 0,
    }
    text, usage = "", None
    began = time.perf_counter()
    headers = {"authorization": f"Bearer {user}"}
    async with http.stream("POST", f"{url}/v1/chat/completions", json=body, headers=headers) as reply:
        if reply.status_code != 200:
            raise ValueError(f"{reply.status_code} {(await reply.aread())[:200]!r}")
        row.backend = reply.headers.get("x-pharos-backend")
        async for line in reply.aiter_lines():
            if not line.startswith("data: {"):
                continue
            piece = _text_of(json.loads(line[6:]))
            if piece and row.ttft_s is None:
                row.ttft_s = time.perf_counter() - began
            text += piece
            usage = merge(usage, read_usage(line[6:].encode(), Api.CHAT))
    row.total_s = time.perf_counter() - began
    if row.ttft_s is None:
        raise ValueError("the stream held no text")
    usage = usage or Usage()
    row.prompt_tokens, row.cached_tokens = usage.prompt_tokens, usage.cached_tokens
    row.prefill_s = usage.prefill_s
    return text


def _text_of(chunk: dict[str, Any]) -> str:
    choices = chunk.get("choices") or [{}]
    return str((choices[0].get("delta") or {}).get("content") or "")
