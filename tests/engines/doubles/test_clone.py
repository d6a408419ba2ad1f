"""A cloned reply is the recorded one in every byte but its numbers, names and text."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from engines.doubles.clone import Cloned, Numbers, Shape, clone_reply, events, shape_of, text_of
from engines.doubles.kinds import KINDS
from tests.engines.replay import CAPTURES

CLONED = ("chat", "completion", "messages", "responses", "api-chat", "api-generate")
USED = re.compile(rf"^({'|'.join(CLONED)})(-length)?-stream(-usage)?$")
STREAMS = sorted(
    path
    for known in KINDS.values()
    for ending in ("sse", "ndjson")
    for path in (CAPTURES / known.recording / known.streams).glob(f"*.{ending}")
    if USED.match(path.stem)
)
PLAIN = sorted(
    path
    for known in KINDS.values()
    for name in CLONED
    if (path := CAPTURES / known.recording / known.streams / f"{name}.json").is_file()
    and path.with_suffix(".headers").read_text().split(" ")[1] == "200"
)

TIMES = re.compile(
    rb'"(created|created_at|completed_at|\w+_duration|prompt_ms|predicted_ms|\w+_per_token_ms|\w+_per_second)"'
    rb': ?("[^"]*"|[\d.e+-]+)'
)


class RecordedIds(Numbers):
    def id_like(self, recorded: str) -> str:
        return recorded


def each(paths: list[Path]) -> pytest.MarkDecorator:
    ids = ["/".join(p.parts[-4:]) for p in paths]
    return pytest.mark.parametrize("path", paths, ids=ids)


def found(value: Any, key: str) -> list[Any]:
    """Every value of a key, anywhere."""
    if isinstance(value, list):
        return [f for v in value for f in found(v, key)]
    if not isinstance(value, dict):
        return []
    return [v for k, v in value.items() if k == key] + [f for v in value.values() for f in found(v, key)]


def recorded_numbers(values: list[Any], text: str, tokens: int) -> Numbers:
    """What the recording itself says of its request."""

    def last(*keys: str) -> int:
        got = [v for key in keys for v in found(values, key) if isinstance(v, int)]
        return max(got, default=0)

    read = last("cache_read_input_tokens")
    prompt = last("prompt_tokens", "prompt_eval_count") or (last("input_tokens") + read)
    prompt = prompt or last("prompt_n") + last("cache_n")
    stopped = not {"length", "max_tokens"} & set(
        map(str, found(values, "finish_reason") + found(values, "stop_reason") + found(values, "done_reason"))
    )
    return RecordedIds(
        next(iter(found(values, "model")), ""),
        prompt,
        read or last("cached_tokens", "cache_n"),
        last("completion_tokens", "output_tokens", "eval_count", "predicted_n") or tokens,
        text,
        1_795_998_624.0,
        stopped,
    )


def without_times(body: bytes) -> bytes:
    return TIMES.sub(rb'"\1":0', body)


def whole(shape: Shape, n: Numbers, tokens: list[str]) -> bytes:
    cloned = Cloned(shape, n)
    pieces = cloned.head()
    pieces += [cloned.token(i, len(tokens), t) for i, t in enumerate(tokens)]
    return b"".join(pieces + cloned.tail())


def test_there_are_recordings_of_every_kind() -> None:
    assert {p.parts[-4] for p in STREAMS} == {k.recording.split("/")[0] for k in KINDS.values()}
    assert len(PLAIN) > 15


@each(STREAMS)
def test_a_stream_with_the_recorded_numbers_is_the_recording(path: Path) -> None:
    body = path.read_bytes()
    shape = shape_of(body)
    values = [e.value for e in events(body)]
    n = recorded_numbers(values, shape.recorded_text, len(shape.tokens))
    n.guesses_input = "ollama" in str(path)
    assert without_times(whole(shape, n, shape.tokens)) == without_times(body)


@each(PLAIN)
def test_a_plain_reply_with_the_recorded_numbers_is_the_recording(path: Path) -> None:
    body = path.read_bytes()
    value = json.loads(body)
    assert without_times(clone_reply(body, recorded_numbers([value], text_of(value), 0))) == without_times(
        body
    )


def shapeless(value: Any) -> Any:
    """Keys and kinds of values, no values."""
    if isinstance(value, dict):
        return {k: shapeless(v) for k, v in value.items()}
    if isinstance(value, list):
        return [shapeless(v) for v in value[:1]]
    return type(value).__name__


@each(STREAMS)
def test_other_numbers_change_no_key_and_no_kind_of_value(path: Path) -> None:
    shape = shape_of(path.read_bytes())
    n = Numbers("other/model", 1234, 1000, len(shape.tokens), "x" * len(shape.tokens), 1_800_000_000.5)
    n.total_s, n.load_s, n.prefill_s, n.decode_s = 4.5, 1.5, 1.25, 1.75
    came = events(whole(shape, n, ["x"] * len(shape.tokens)))
    recorded = events(path.read_bytes())
    assert [e.lead for e in came] == [e.lead for e in recorded]
    assert [shapeless(e.value) for e in came] == [shapeless(e.value) for e in recorded]


@each(STREAMS)
@pytest.mark.parametrize("count", [1, 2, 300])
def test_the_text_of_a_stream_is_the_tokens_it_was_given(path: Path, count: int) -> None:
    shape, tokens = shape_of(path.read_bytes()), [f"{i} <&>é\n" for i in range(count)]
    n = Numbers("m", 10, 0, count, "".join(tokens), 0.0)
    assert [t for e in events(whole(shape, n, tokens)) if (t := text_of(e.value))] == tokens


def test_counts_are_the_doubles_in_each_api() -> None:
    n = Numbers("m", 100, 60, 7, "text", 0.0)

    def usage(stem: str) -> Any:
        return json.loads(clone_reply((CAPTURES / f"{stem}.json").read_bytes(), n))["usage"]

    chat = usage("llamacpp/b11434/streams/chat")
    assert (chat["prompt_tokens"], chat["completion_tokens"], chat["total_tokens"]) == (100, 7, 107)
    assert chat["prompt_tokens_details"]["cached_tokens"] == 60
    messages = usage("llamacpp/b11434/streams/messages")
    assert messages == {"cache_read_input_tokens": 60, "input_tokens": 40, "output_tokens": 7}


def test_a_count_that_an_engine_leaves_out_stays_out() -> None:
    body = b'{"usage":{"prompt_tokens":0,"completion_tokens":0,"total_tokens":0},"x":{"cached_tokens":null}}'
    assert clone_reply(body, Numbers("m", 100, 60, 7, "t", 0.0)) == body


def test_two_clones_of_one_recording_have_different_ids_of_one_shape() -> None:
    import random

    n = Numbers("m", 1, 0, 1, "t", 0.0, rng=random.Random(1))
    recorded = "chatcmpl-pDoU0Ji2"
    first = n.id_like(recorded)
    assert n.id_like(recorded) == first != recorded
    assert re.fullmatch(r"chatcmpl-[a-z][A-Z][a-z][A-Z]\d[A-Z][a-z]\d", first)
