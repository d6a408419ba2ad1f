"""Token usage out of reply lines: what an engine says a request has cost.

How this works. A line is one JSON object: the payload of one SSE `data:` line, one NDJSON line, or a
whole plain reply. `FIELDS` lists, per API and value, the places where engines have been seen to write
that value, most trusted first; adding an engine's field is adding a line there. The rules:

- a place that is absent, null or not a count gives nothing, and the next one is tried;
- a value that no place gives is None: never 0, never an estimate;
- a stream can report more than once: `merge` what each line gave, the later value counts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from functools import lru_cache

import msgspec


class Api(StrEnum):
    """The family of a reply. Each has its own names for the same counts."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    EMBEDDINGS = "embeddings"  # and rerank, score, pooling: nothing is generated
    MESSAGES = "messages"  # Anthropic
    RESPONSES = "responses"
    OLLAMA = "ollama"  # /api/chat, /api/generate
    OLLAMA_EMBED = "ollama-embed"


API_OF_PATH: Mapping[str, Api] = {
    "/v1/chat/completions": Api.CHAT,
    "/v1/completions": Api.COMPLETIONS,
    "/v1/embeddings": Api.EMBEDDINGS,
    "/v1/rerank": Api.EMBEDDINGS,
    "/v1/messages": Api.MESSAGES,
    "/v1/responses": Api.RESPONSES,
    "/api/chat": Api.OLLAMA,
    "/api/generate": Api.OLLAMA,
    "/api/embed": Api.OLLAMA_EMBED,
}


@dataclass(frozen=True, slots=True)
class Usage:
    """What one reply reported. None = it did not say."""

    prompt_tokens: int | None = None  # the whole prompt, cached tokens included
    completion_tokens: int | None = None
    cached_tokens: int | None = None  # of the prompt, taken from a prefix cache
    prefill_s: float | None = None
    decode_s: float | None = None
    load_s: float | None = None  # Ollama: under 0.5 s the model was warm (~1 ms on 0.33, ~100 ms before)
    total_s: float | None = None  # Ollama: total - load - prefill - decode is the wait inside the engine


@dataclass(frozen=True, slots=True)
class Source:
    """One way to learn one value: the sum of the fields at `paths`, all of which must be there.

    Those at `more` are added when they are there. Paths are dotted, from the top of the line.
    A duration has `per_second` of its units in a second. No path at all: the value is 0.
    """

    paths: tuple[str, ...]
    more: tuple[str, ...] = ()
    per_second: float | None = None


def one(path: str) -> Source:
    return Source((path,))


def milliseconds(path: str) -> Source:
    return Source((path,), per_second=1e3)


def nanoseconds(path: str) -> Source:
    return Source((path,), per_second=1e9)


Fields = Mapping[str, tuple[Source, ...]]
"""Name of a `Usage` field -> its sources, most trusted first."""

# llama.cpp writes them into the last chunk of every stream, asked for usage or not, and into plain
# replies, on all of its APIs (b9093 to b11434).
LLAMACPP_TIMINGS: Fields = {
    "prompt_tokens": (Source(("timings.cache_n", "timings.prompt_n")),),
    "completion_tokens": (one("timings.predicted_n"),),
    "cached_tokens": (one("timings.cache_n"),),
    "prefill_s": (milliseconds("timings.prompt_ms"),),
    "decode_s": (milliseconds("timings.predicted_ms"),),
}

OPENAI: Fields = {
    "prompt_tokens": (one("usage.prompt_tokens"), *LLAMACPP_TIMINGS["prompt_tokens"]),
    "completion_tokens": (one("usage.completion_tokens"), *LLAMACPP_TIMINGS["completion_tokens"]),
    # vLLM and SGLang say null here unless started with a flag; Ollama has none before 0.33.
    "cached_tokens": (
        one("usage.prompt_tokens_details.cached_tokens"),
        *LLAMACPP_TIMINGS["cached_tokens"],
    ),
    "prefill_s": LLAMACPP_TIMINGS["prefill_s"],
    "decode_s": LLAMACPP_TIMINGS["decode_s"],
}

EMBEDDINGS: Fields = {
    "prompt_tokens": (one("usage.prompt_tokens"),),
    "completion_tokens": (Source(()),),
}

# input_tokens is what the cache did not have, so the prompt is the sum. Where an engine counts no
# cache (vLLM and SGLang without their flag, Ollama) the two cache fields are absent and input_tokens
# is the whole. `message.` is message_start: its output_tokens is a placeholder, so it is not listed.
MESSAGES: Fields = {
    "prompt_tokens": (
        Source(
            ("usage.input_tokens",),
            more=("usage.cache_read_input_tokens", "usage.cache_creation_input_tokens"),
        ),
        Source(
            ("message.usage.input_tokens",),
            more=("message.usage.cache_read_input_tokens", "message.usage.cache_creation_input_tokens"),
        ),
        *LLAMACPP_TIMINGS["prompt_tokens"],
    ),
    "completion_tokens": (one("usage.output_tokens"), *LLAMACPP_TIMINGS["completion_tokens"]),
    "cached_tokens": (
        one("usage.cache_read_input_tokens"),
        one("message.usage.cache_read_input_tokens"),
        *LLAMACPP_TIMINGS["cached_tokens"],
    ),
    "prefill_s": LLAMACPP_TIMINGS["prefill_s"],
    "decode_s": LLAMACPP_TIMINGS["decode_s"],
}

# A plain reply has usage at the top; a stream inside `response` of its last event.
RESPONSES: Fields = {
    "prompt_tokens": (
        one("usage.input_tokens"),
        one("response.usage.input_tokens"),
        *LLAMACPP_TIMINGS["prompt_tokens"],
    ),
    "completion_tokens": (
        one("usage.output_tokens"),
        one("response.usage.output_tokens"),
        *LLAMACPP_TIMINGS["completion_tokens"],
    ),
    "cached_tokens": (
        one("usage.input_tokens_details.cached_tokens"),
        one("response.usage.input_tokens_details.cached_tokens"),
        *LLAMACPP_TIMINGS["cached_tokens"],
    ),
    "prefill_s": LLAMACPP_TIMINGS["prefill_s"],
    "decode_s": LLAMACPP_TIMINGS["decode_s"],
}

# Fields that would be 0 are left out by Ollama. prompt_eval_count counts cached tokens in, but for
# v0.30.0, where it is what was newly computed. prompt_eval_cached_count: from v0.33.3.
OLLAMA: Fields = {
    "prompt_tokens": (one("prompt_eval_count"),),
    "completion_tokens": (one("eval_count"),),
    "cached_tokens": (one("prompt_eval_cached_count"),),
    "prefill_s": (nanoseconds("prompt_eval_duration"),),
    "decode_s": (nanoseconds("eval_duration"),),
    "load_s": (nanoseconds("load_duration"),),
    "total_s": (nanoseconds("total_duration"),),
}

FIELDS: Mapping[Api, Fields] = {
    Api.CHAT: OPENAI,
    Api.COMPLETIONS: OPENAI,
    Api.EMBEDDINGS: EMBEDDINGS,
    Api.MESSAGES: MESSAGES,
    Api.RESPONSES: RESPONSES,
    Api.OLLAMA: OLLAMA,
    Api.OLLAMA_EMBED: {
        "prompt_tokens": (one("prompt_eval_count"),),
        "completion_tokens": (Source(()),),
        "load_s": (nanoseconds("load_duration"),),
        "total_s": (nanoseconds("total_duration"),),
    },
}


def read_usage(line: bytes, api: Api, untrue: frozenset[str] = frozenset()) -> Usage | None:
    """The usage that one line reports, None when it reports none. Raises nothing, whatever the bytes.

    `untrue` names paths that this engine fills with something else than the truth (`Recipe.untrue_usage`).
    """
    reader = _reader(api, untrue)
    if not any(mark in line for mark in reader.marks):
        return None
    top = _decode(line)
    return None if top is None else reader.read(_Tree(top))


def marks(api: Api, untrue: frozenset[str] = frozenset()) -> tuple[bytes, ...]:
    """A line that has none of these bytes reports no usage: a test that costs less than `read_usage`.

    All of Ollama's names end in one of two words, and looking for those is enough.
    """
    return tuple(sorted({mark.rpartition(b"_")[2] for mark in _reader(api, untrue).marks}))


def merge(earlier: Usage | None, later: Usage | None) -> Usage | None:
    """What two lines of one reply say together: the later value of each field that has one."""
    if earlier is None or later is None:
        return earlier or later
    said = {f.name: value for f in fields(later) if (value := getattr(later, f.name)) is not None}
    return replace(earlier, **said)


# -- reading -----------------------------------------------------------------------------------

Object = Mapping[str, object]  # values are msgspec.Raw, or decoded already

MAX_COUNT = 2**53
"""Above this a number is no count of tokens (and no longer exact in half of the JSON readers there are)."""

_objects = msgspec.json.Decoder(dict[str, msgspec.Raw])


def _decode(line: bytes | msgspec.Raw) -> Object | None:
    """A JSON object with its values still undecoded: most of a line is text that nobody asks for here."""
    try:
        return _objects.decode(line)
    except (ValueError, RecursionError):  # msgspec.DecodeError is a ValueError
        pass
    if not isinstance(line, bytes) or not (b"NaN" in line or b"Infinity" in line):
        return None
    try:  # Python engines write NaN, which is not JSON; the fields beside it are good
        loose = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return loose if isinstance(loose, dict) else None


class _Tree:
    """A line, decoded only along the paths that are asked for."""

    def __init__(self, top: Object) -> None:
        self._found: dict[str, Object | None] = {"": top}

    def _object(self, path: str) -> Object | None:
        if path not in self._found:
            value = self._raw(path)
            if isinstance(value, msgspec.Raw):
                value = _decode(value)
            self._found[path] = value if isinstance(value, Mapping) else None
        return self._found[path]

    def _raw(self, path: str) -> object:
        parent, _, key = path.rpartition(".")
        holder = self._object(parent)
        return None if holder is None else holder.get(key)

    def number(self, path: str) -> float | None:
        """The number ≥ 0 at this path; None when absent or null. Raises ValueError for anything else."""
        value = self._raw(path)
        if isinstance(value, msgspec.Raw):
            value = msgspec.json.decode(value)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{path} is not a number")
        if not 0 <= value <= MAX_COUNT:  # NaN fails both comparisons
            raise ValueError(f"{path} is {value}")
        return value


@dataclass(frozen=True, slots=True)
class _Reader:
    marks: tuple[bytes, ...]  # a line without any of these bytes has no field of the list
    fields: tuple[tuple[str, tuple[Source, ...]], ...]
    reported: frozenset[str]  # fields that a line can give; the rest follow from the API

    def read(self, tree: _Tree) -> Usage | None:
        values = {name: _value(tree, sources) for name, sources in self.fields}
        if values["prompt_tokens"] == 0:
            # No prompt has 0 tokens: Ollama's /v1/completions writes zeros into every chunk but the last,
            # SGLang into the reply of a request that it refused.
            values = {name: value or None for name, value in values.items()}
        if all(values[name] is None for name in self.reported):
            return None
        return Usage(**values)  # type: ignore[arg-type]  # counts come out of _sum as int


def _value(tree: _Tree, sources: Iterable[Source]) -> float | int | None:
    for source in sources:
        value = _sum(tree, source)
        if value is not None:
            return value
    return None


def _sum(tree: _Tree, source: Source) -> float | int | None:
    total = 0.0
    try:
        for path in source.paths:
            number = tree.number(path)
            if number is None:
                return None
            total += number
        for path in source.more:
            total += tree.number(path) or 0
    except (ValueError, RecursionError):
        return None
    if source.per_second is not None:
        return total / source.per_second
    return int(total) if total == math.floor(total) else None


@lru_cache(maxsize=64)
def _reader(api: Api, untrue: frozenset[str]) -> _Reader:
    """`FIELDS` of this API without the sources that this engine fills with an untruth."""
    kept = {
        name: tuple(s for s in sources if untrue.isdisjoint(s.paths)) for name, sources in FIELDS[api].items()
    }
    paths = {path for sources in kept.values() for s in sources for path in s.paths}
    return _Reader(
        marks=tuple(f'"{mark}"'.encode() for mark in sorted({_mark(path) for path in paths})),
        fields=tuple(kept.items()),
        reported=frozenset(name for name, sources in kept.items() if any(s.paths for s in sources)),
    )


def _mark(path: str) -> str:
    keys = path.split(".")
    return next((key for key in keys if key in ("usage", "timings")), keys[-1])
