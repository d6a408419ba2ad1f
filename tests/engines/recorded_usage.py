"""Every recorded reply that can cost tokens, and what it says it cost, found without knowing any path: the
oracle looks for the last number behind each name in the raw bytes."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from engines.recipes import RECIPES
from engines.usage import API_OF_PATH, Api, Usage
from tests.engines.replay import CAPTURES

SUFFIXES = (".sse", ".ndjson", ".json", ".body")
KINDS = {"mlx-lm": "openai"}


@dataclass(frozen=True)
class Reply:
    engine: str
    version: str
    name: str  # path below the version's folder
    api: Api
    body: bytes


def replies() -> Iterator[Reply]:
    """Every recorded reply to a request that can cost tokens: those that replies.tsv lists, then the rest."""
    seen: set[Path] = set()
    for table in sorted(CAPTURES.rglob("replies.tsv")):
        with table.open(newline="") as rows:
            for row in csv.DictReader(rows, delimiter="\t"):
                found = [table.parent / (row["name"] + s) for s in SUFFIXES]
                seen.update(found)
                if api := API_OF_PATH.get(row["path"].removeprefix("/upstream/smollm2-a")):
                    yield from (_reply(f, api) for f in found if f.exists())
    for file in sorted(CAPTURES.rglob("*")):
        if file.suffix in (".sse", ".ndjson") and file not in seen:
            yield _reply(file, Api.OLLAMA if file.suffix == ".ndjson" else Api.CHAT)


def _reply(file: Path, api: Api) -> Reply:
    engine, version, *rest = file.relative_to(CAPTURES).parts
    return Reply(engine, version, "/".join(rest), api, file.read_bytes())


def untrue(engine: str) -> frozenset[str]:
    return RECIPES[KINDS.get(engine, engine)].untrue_usage


# -- the oracle --------------------------------------------------------------------------------


def last(name: str, text: bytes, number: bytes = rb"\d+") -> int | None:
    found = re.findall(rb'"%s":\s*(%s)[,}\s]' % (name.encode(), number), text)
    return int(found[-1]) if found else None


def last_float(name: str, text: bytes) -> float | None:
    found = re.findall(rb'"%s":\s*([-\d.eE+]+)' % name.encode(), text)
    return float(found[-1]) if found else None


def anthropic_prompt(reply: Reply) -> int | None:
    prompt = None
    for line in reply.body.split(b"\n"):
        fresh = last("input_tokens", line)
        if fresh is None or (reply.engine == "ollama" and b"message_start" in line):
            continue
        prompt = fresh + (last("cache_read_input_tokens", line) or 0)
        prompt += last("cache_creation_input_tokens", line) or 0
    return prompt


def oracle(reply: Reply) -> Usage:
    text = reply.body
    prompt_n, cache_n = last("prompt_n", text), last("cache_n", text)
    timed = None if prompt_n is None or cache_n is None else prompt_n + cache_n
    cached: int | None = None
    if reply.api in (Api.OLLAMA, Api.OLLAMA_EMBED):
        prompt, written = last("prompt_eval_count", text), last("eval_count", text)
    elif reply.api is Api.MESSAGES:
        prompt, cached = anthropic_prompt(reply), last("cache_read_input_tokens", text)
        ended = b"\n".join(line for line in text.split(b"\n") if b"message_start" not in line)
        written = last("output_tokens", ended)
    elif reply.api is Api.RESPONSES:
        prompt, written = last("input_tokens", text), last("output_tokens", text)
        cached = None if reply.engine == "ollama" else last("cached_tokens", text)
    else:
        prompt, written = last("prompt_tokens", text), last("completion_tokens", text)
        cached = last("cached_tokens", text)
    if prompt is None:
        prompt, written, cached = timed, last("predicted_n", text), cache_n
    if reply.api in (Api.EMBEDDINGS, Api.OLLAMA_EMBED):
        written = None if prompt is None else 0
    if prompt == 0:
        prompt = written = cached = None
    return Usage(prompt, written, cached, *times(reply))


OLLAMA_TIMES = ("prompt_eval_duration", "eval_duration", "load_duration", "total_duration")
LLAMACPP_TIMES = ("prompt_ms", "predicted_ms")


def times(reply: Reply) -> tuple[float | None, ...]:
    """prefill, decode, load, total in seconds."""
    if reply.api in (Api.OLLAMA, Api.OLLAMA_EMBED):
        return tuple(None if (v := last(n, reply.body)) is None else v / 1e9 for n in OLLAMA_TIMES)
    return tuple(None if (ms := last_float(n, reply.body)) is None else ms / 1e3 for n in LLAMACPP_TIMES)


ALL = list(replies())
