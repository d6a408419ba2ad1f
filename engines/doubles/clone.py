"""A recorded reply with other numbers in it, byte for byte in the recorded shape. Pure.

How this works. A body is cut into its events, each event's JSON is decoded, the values that are a
request's own are replaced (names, ids, times, counts, text), and it is encoded again in the very style it
was recorded in: every engine has its own spaces and escapes. The rules:

- a key that was not recorded is not added, and the order of keys stays;
- null stays null and a usage of zeros stays zeros: that is how an engine leaves a count out;
- given the recorded values, the result is the recording itself.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

Json = Any

# -- style -------------------------------------------------------------------------------------


def _go(text: str) -> str:
    """Go's encoder escapes what could end a script in a web page."""
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text


Encode = Callable[[Json], bytes]


def _encoder(spaced: bool, ascii_only: bool, go: bool) -> Encode:
    separators = (", ", ": ") if spaced else (",", ":")

    def encode(value: Json) -> bytes:
        text = json.dumps(value, separators=separators, ensure_ascii=ascii_only)
        return (_go(text) if go else text).encode("utf-8", "surrogatepass")

    return encode


STYLES = tuple(_encoder(s, a, g) for s in (False, True) for a in (False, True) for g in (False, True))


def style_of(raw: Sequence[bytes]) -> Encode:
    """The encoder that gives most of these texts back unchanged."""
    values = [json.loads(text) for text in raw]
    return max(STYLES, key=lambda e: sum(e(v) == text for v, text in zip(values, raw, strict=True)))


# -- numbers -----------------------------------------------------------------------------------


@dataclass(slots=True)
class Numbers:
    """What is a reply's own. Times in seconds; `now` since the epoch."""

    model: str
    prompt_tokens: int
    cached_tokens: int
    out_tokens: int
    text: str
    now: float
    stopped: bool = True  # by itself, not at the limit: the last of `out_tokens` has no text
    total_s: float = 0.0
    load_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    counts_cache: bool = True  # False: the engine says 0 whatever its cache had
    guesses_input: bool = False  # message_start has a guess: Ollama 0.32.15 said 12 of 20, and 2216 of 2113
    rng: random.Random = field(default_factory=lambda: random.Random(0))
    ids: dict[str, str] = field(default_factory=dict)

    def id_like(self, recorded: str) -> str:
        """One new id for each recorded one, of the same shape."""
        if recorded not in self.ids:
            kept = re.match(r"[A-Za-z]+[-_]", recorded)
            at = kept.end() if kept else 0
            self.ids[recorded] = recorded[:at] + "".join(map(self._char_like, recorded[at:]))
        return self.ids[recorded]

    def _char_like(self, char: str) -> str:
        for kind in ("0123456789", "abcdef", "ghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ"):
            if char in kind:
                return self.rng.choice(kind)
        return char


ID_KEYS = frozenset({"id", "item_id", "response_id", "request_id"})
TIME_KEYS = frozenset({"created", "created_at", "completed_at"})
LIMIT_WORDS = {"finish_reason": ("stop", "length"), "stop_reason": ("end_turn", "max_tokens"),
               "done_reason": ("stop", "length")}  # fmt: skip


def fill(value: Json, n: Numbers, recorded_text: str = "", *, guess: bool = False) -> Json:
    """A copy of a recorded value with the numbers put in. `guess`: a count made before the work."""
    if isinstance(value, list):
        return [fill(v, n, recorded_text, guess=guess) for v in value]
    if isinstance(value, str) and recorded_text and value == recorded_text:
        return n.text
    if not isinstance(value, dict):
        return value
    guess = guess or value.get("type") == "message_start"
    new = {k: _own(k, v, n, recorded_text, guess) for k, v in value.items()}
    _counts(new, n, guess)
    return new


def _own(key: str, value: Json, n: Numbers, recorded_text: str, guess: bool) -> Json:
    if key in ID_KEYS and isinstance(value, str) and value:
        return n.id_like(value)
    if key == "model" and isinstance(value, str):
        return n.model
    if key in TIME_KEYS and isinstance(value, int) and not isinstance(value, bool):
        return int(n.now)
    if key in TIME_KEYS and isinstance(value, str):
        return rfc3339(n.now, like=value)
    if key in LIMIT_WORDS and value in LIMIT_WORDS[key]:
        return LIMIT_WORDS[key][0 if n.stopped else 1]
    return fill(value, n, recorded_text, guess=guess)


def rfc3339(now: float, like: str) -> str:
    """With as many digits of a second as were recorded."""
    match = re.search(r"\.(\d+)", like)
    digits = len(match[1]) if match else 0
    whole = datetime.fromtimestamp(int(now), UTC).strftime("%Y-%m-%dT%H:%M:%S")
    part = f"{now % 1:.9f}"[2 : 2 + digits].ljust(digits, "0")
    return whole + (f".{part}" if digits else "") + ("Z" if like.endswith("Z") else "+00:00")


def _counts(new: dict[str, Json], n: Numbers, guess: bool) -> None:
    if "prompt_tokens" in new and new.get("total_tokens"):
        _set(new, prompt_tokens=n.prompt_tokens, completion_tokens=n.out_tokens)
        _set(new, total_tokens=n.prompt_tokens + n.out_tokens)
    if "input_tokens" in new:
        uncached = n.prompt_tokens - (n.cached_tokens if "cache_read_input_tokens" in new else 0)
        if guess and n.guesses_input:
            uncached = n.prompt_tokens * 3 // 5
        _set(new, input_tokens=uncached, cache_read_input_tokens=n.cached_tokens)
        _set(new, total_tokens=n.prompt_tokens + n.out_tokens)
    if not guess:
        _set(new, output_tokens=n.out_tokens)
    if n.counts_cache:
        _set(new, cached_tokens=n.cached_tokens)
    if "prompt_eval_count" in new:
        _set(new, prompt_eval_count=n.prompt_tokens, eval_count=n.out_tokens)
        _set(new, total_duration=_ns(n.total_s), load_duration=_ns(n.load_s))
        _set(new, prompt_eval_duration=_ns(n.prefill_s), eval_duration=_ns(n.decode_s))
        if isinstance(new.get("context"), list):
            seen = n.prompt_tokens + n.out_tokens - n.stopped
            new["context"] = (new["context"] * seen)[:seen]
    if "predicted_n" in new:
        _timings(new, n)


def _timings(new: dict[str, Json], n: Numbers) -> None:
    """llama.cpp's own."""
    computed = n.prompt_tokens - n.cached_tokens
    _set(new, cache_n=n.cached_tokens, prompt_n=computed, predicted_n=n.out_tokens)
    for name, count, seconds in (
        ("prompt", computed, n.prefill_s),
        ("predicted", n.out_tokens, n.decode_s),
    ):
        ms = round(seconds * 1000, 3)
        _set(new, **{f"{name}_ms": ms, f"{name}_per_token_ms": ms / max(1, count)})
        _set(new, **{f"{name}_per_second": count / seconds if seconds else 0.0})


def _set(new: dict[str, Json], **values: float) -> None:
    """Only where a number was recorded."""
    for key, value in values.items():
        if isinstance(new.get(key), int | float):
            new[key] = value


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


# -- text --------------------------------------------------------------------------------------


def text_place(value: Json) -> tuple[dict[str, Json], str] | None:
    """Where an event or a reply of any of the APIs carries generated text: the object and the key."""
    if not isinstance(value, dict):
        return None
    for where, key in _places(value):
        if isinstance(where, dict) and isinstance(where.get(key), str) and where[key]:
            return where, key
    return None


def _places(value: dict[str, Json]) -> Iterator[tuple[Json, str]]:
    for choice in value.get("choices") or []:
        yield choice.get("delta"), "content"
        yield choice.get("message"), "content"
        yield choice, "text"
    if value.get("type") == "content_block_delta":
        yield value.get("delta"), "text"
    if value.get("type") == "response.output_text.delta":
        yield value, "delta"
    if value.get("type") == "message":  # a plain reply of the messages API
        yield from ((block, "text") for block in value.get("content") or [])
    if value.get("object") == "response":
        for item in value.get("output") or []:
            yield from ((part, "text") for part in item.get("content") or [])
    if "done" in value:
        yield value.get("message"), "content"
        yield value, "response"


def text_of(value: Json) -> str:
    place = text_place(value)
    return place[0][place[1]] if place else ""


# -- plain replies -----------------------------------------------------------------------------


def clone_reply(body: bytes, n: Numbers) -> bytes:
    """A plain JSON reply. What is no JSON is given back as it is."""
    try:
        value = json.loads(body)
    except ValueError:
        return body
    end = body[len(body.rstrip()) :]
    return style_of([body.rstrip()])(fill(value, n, text_of(value))) + end


# -- streams -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Event:
    lead: bytes  # `data: `, an `event:` line …
    value: Json  # None: `lead` is all there is
    trail: bytes = b""


@dataclass(frozen=True, slots=True)
class Shape:
    """A recorded stream in parts. `text` are the events that carry text, one for each token."""

    head: tuple[Event, ...]
    text: tuple[Event, ...]
    tail: tuple[Event, ...]
    encode: Encode
    recorded_text: str

    @property
    def tokens(self) -> list[str]:
        return [text_of(e.value) for e in self.text]


def events(body: bytes) -> list[Event]:
    """Of an SSE or ndjson body, in order; joined again they are the body."""
    sse = not body.startswith(b"{")
    cut = b"\n\n" if sse else b"\n"
    pieces = [piece + cut for piece in body.split(cut)]
    pieces[-1] = pieces[-1][: -len(cut)]
    return [_event(p) for p in pieces if p]


def _event(piece: bytes) -> Event:
    at, end = piece.find(b"{"), piece.rfind(b"}") + 1
    if at < 0:
        return Event(piece, None)
    return Event(piece[:at], json.loads(piece[at:end]), piece[end:])


@lru_cache(maxsize=64)
def shape_of(body: bytes) -> Shape:
    """Raises ValueError when the body carries no text."""
    all_events = events(body)
    raw = re.findall(rb"\{.*\}", body)
    spoken = [i for i, e in enumerate(all_events) if text_place(e.value)]
    if not spoken:
        raise ValueError("a stream without text cannot be cloned")
    first, last = spoken[0], spoken[-1]
    text = tuple(all_events[first : last + 1])
    return Shape(
        tuple(all_events[:first]),
        tuple(e for e in text if text_place(e.value)),
        tuple(all_events[last + 1 :]),
        style_of(raw),
        "".join(text_of(e.value) for e in text),
    )


class Cloned:
    """One stream in a recorded shape, made piece by piece as its tokens come."""

    def __init__(self, shape: Shape, n: Numbers) -> None:
        self._shape, self._n = shape, n
        self._sequence = 0

    def head(self) -> list[bytes]:
        return [self._bytes(e) for e in self._shape.head]

    def token(self, at: int, of: int, text: str) -> bytes:
        """Token number `at` (from 0) of `of`."""
        return self._bytes(self._template(at, of), text)

    def _template(self, at: int, of: int) -> Event:
        spoken = self._shape.text
        if at == of - 1 and _finishes(spoken[-1].value):
            return spoken[-1]
        return spoken[min(at, 1, len(spoken) - 1)]

    def tail(self) -> list[bytes]:
        return [self._bytes(e) for e in self._shape.tail]

    def _bytes(self, event: Event, text: str | None = None) -> bytes:
        if event.value is None:
            return event.lead
        value = fill(event.value, self._n, "" if text is not None else self._shape.recorded_text)
        if text is not None:
            place = text_place(value)
            assert place is not None
            place[0][place[1]] = text
        if "sequence_number" in value:
            value["sequence_number"] = self._sequence
            self._sequence += 1
        return event.lead + self._shape.encode(value) + event.trail


def _finishes(value: Json) -> bool:
    return any(c.get("finish_reason") for c in value.get("choices") or [])


def substituted(value: Json, names: Mapping[str, str]) -> Json:
    """Strings that are exactly one of `names` replaced, anywhere, keys left alone."""
    if isinstance(value, dict):
        return {k: substituted(v, names) for k, v in value.items()}
    if isinstance(value, list):
        return [substituted(v, names) for v in value]
    return names.get(value, value) if isinstance(value, str) else value
