"""Every recorded reply through the tap: the bytes that come out, and what it has read."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.usage import Api, Usage
from gateway.proxy.apis import ANTHROPIC, OLLAMA, OPENAI, RESPONSES, Framing
from gateway.proxy.tap import Reading, Stream, Tap, Whole
from tests.engines.recorded_usage import ALL, Reply, oracle, untrue

FAMILY = {
    Api.CHAT: OPENAI,
    Api.COMPLETIONS: OPENAI,
    Api.EMBEDDINGS: OPENAI,
    Api.MESSAGES: ANTHROPIC,
    Api.RESPONSES: RESPONSES,
    Api.OLLAMA: OLLAMA,
    Api.OLLAMA_EMBED: OLLAMA,
}
FRAMING = {"sse": Framing.SSE, "ndjson": Framing.NDJSON}


def framing(reply: Reply) -> Framing | None:
    return FRAMING.get(reply.name.rpartition(".")[2])


def name(reply: Reply) -> str:
    return f"{reply.engine}/{reply.version}/{reply.name}"


STREAMS = [r for r in ALL if framing(r) is not None]
SMALL = [r for r in STREAMS if len(r.body) < 8000]
STRIPPABLE = [r for r in STREAMS if r.api in (Api.CHAT, Api.COMPLETIONS)]
BY_NAME = {name(r): r for r in ALL}


def tap_of(reply: Reply, *, strip: bool = False) -> Tap:
    kind = framing(reply)
    if kind is None:
        return Whole(reply.api, untrue(reply.engine))
    return Stream(kind, FAMILY[reply.api], reply.api, untrue(reply.engine), strip=strip)


def through(tap: Tap, pieces: Sequence[bytes]) -> tuple[bytes, Reading]:
    out = [tap.feed(piece) for piece in pieces]
    out.append(tap.end())
    return b"".join(out), tap.reading


def one_by_one(body: bytes) -> list[bytes]:
    return [body[i : i + 1] for i in range(len(body))]


def cut_up(body: bytes, at: Sequence[int]) -> list[bytes]:
    edges = [0, *sorted(a % (len(body) + 1) for a in at), len(body)]
    return [body[a:b] for a, b in itertools.pairwise(edges)]


# -- what is to be left out, found without the tap ---------------------------------------------


def events(body: bytes) -> list[bytes]:
    """A recorded SSE stream, all of which end their lines with LF, in its events."""
    parts = body.split(b"\n\n")
    return [p + b"\n\n" for p in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


def is_extra(event: bytes) -> bool:
    value = event.strip().removeprefix(b"data:")
    try:
        said = json.loads(value)
    except ValueError:
        return False
    return isinstance(said, dict) and said.get("choices") == [] and isinstance(said.get("usage"), dict)


def without_extra(body: bytes) -> bytes:
    return b"".join(e for e in events(body) if not is_extra(e))


def test_the_recordings_have_streams_of_every_engine_with_and_without_such_a_chunk() -> None:
    with_it = {r.engine for r in STRIPPABLE if without_extra(r.body) != r.body}
    without = {r.engine for r in STRIPPABLE if without_extra(r.body) == r.body}
    assert with_it == without == {"llama-swap", "llamacpp", "mlx-lm", "ollama", "sglang", "vllm"}


# -- every recording ---------------------------------------------------------------------------


def test_what_every_recorded_reply_says_it_cost_is_read() -> None:
    wrong = [
        f"{name(r)}: {got} instead of {oracle(r)}"
        for r in ALL
        if (got := through(tap_of(r), [r.body])[1].usage) != oracle(r)
    ]
    assert wrong == []


def test_every_recorded_reply_passes_byte_for_byte() -> None:
    assert [name(r) for r in ALL if through(tap_of(r), [r.body])[0] != r.body] == []


def test_of_every_recorded_stream_just_the_chunk_that_was_not_asked_for_is_left_out() -> None:
    wrong = []
    for reply in STRIPPABLE:
        out, reading = through(tap_of(reply, strip=True), [reply.body])
        if out != without_extra(reply.body) or reading != through(tap_of(reply), [reply.body])[1]:
            wrong.append(name(reply))
    assert wrong == []


@pytest.mark.parametrize("strip", [False, True])
def test_every_byte_of_a_stream_may_come_alone(strip: bool) -> None:
    wrong = []
    for reply in SMALL:
        whole = through(tap_of(reply, strip=strip), [reply.body])
        if through(tap_of(reply, strip=strip), one_by_one(reply.body)) != whole:
            wrong.append(name(reply))
    assert wrong == []


@pytest.mark.slow
@pytest.mark.parametrize("strip", [False, True])
def test_every_byte_of_a_long_stream_may_come_alone(strip: bool) -> None:
    for reply in STREAMS:
        if reply not in SMALL:
            whole = through(tap_of(reply, strip=strip), [reply.body])
            assert through(tap_of(reply, strip=strip), one_by_one(reply.body)) == whole, name(reply)


CUTS = st.lists(st.integers(0, 1 << 20), max_size=30)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(ALL), CUTS, st.booleans())
def test_any_split_gives_the_same_bytes_and_the_same_reading(
    reply: Reply, at: list[int], strip: bool
) -> None:
    whole = through(tap_of(reply, strip=strip), [reply.body])
    assert through(tap_of(reply, strip=strip), cut_up(reply.body, at)) == whole


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(STRIPPABLE), CUTS, st.lists(st.sampled_from([b"\n", b"\r\n", b"\r"]), min_size=1))
def test_any_line_ends_in_any_split_lose_just_that_chunk(
    reply: Reply, at: list[int], ends: list[bytes]
) -> None:
    told = [e.replace(b"\n", end) for e, end in zip(events(reply.body), itertools.cycle(ends), strict=False)]
    kept = [t for t, e in zip(told, events(reply.body), strict=True) if not is_extra(e)]
    out, reading = through(tap_of(reply, strip=True), cut_up(b"".join(told), at))
    assert out == b"".join(kept)
    assert reading == through(tap_of(reply), [reply.body])[1]


# -- at once -----------------------------------------------------------------------------------


def test_every_whole_event_goes_on_at_once() -> None:
    for reply in STRIPPABLE:
        tap = tap_of(reply, strip=True)
        for event in events(reply.body):
            assert tap.feed(event) == (b"" if is_extra(event) else event), name(reply)


def test_up_to_the_finish_not_a_byte_waits() -> None:
    for reply in STRIPPABLE:
        if len(reply.body) < 8000:
            tap = tap_of(reply, strip=True)
            for byte in one_by_one(reply.body):
                if tap.finished:
                    break
                assert tap.feed(byte) == byte


def test_a_client_that_asked_waits_for_nothing() -> None:
    for reply in SMALL[::5]:
        tap = tap_of(reply)
        assert [tap.feed(b) for b in one_by_one(reply.body)] == one_by_one(reply.body)


# -- the first token ---------------------------------------------------------------------------


def pieces(reply: Reply) -> Iterator[bytes]:
    if framing(reply) is Framing.SSE:
        yield from events(reply.body)
    else:
        yield from reply.body.splitlines(keepends=True)


def first_token(reply: Reply) -> bytes | None:
    """The event that is taken for it."""
    tap = tap_of(reply)
    for piece in pieces(reply):
        tap.feed(piece)
        if tap.first_token:
            return piece
    return None


def test_a_stream_has_a_first_token_just_when_it_generated_something() -> None:
    """By the engine's own count. A stream that broke has none, and may have generated."""
    for reply in STREAMS:
        written = oracle(reply).completion_tokens
        if written is not None and written > 1:  # one token may be the end of text alone
            assert first_token(reply) is not None, name(reply)
        elif written == 0:
            assert first_token(reply) is None, name(reply)


@pytest.mark.parametrize(
    ("file", "number", "text"),
    [
        ("llamacpp/b10434/streams/chat-stream.sse", 1, '"content":"1"'),  # after a role without content
        ("vllm/v0.32.0/streams/chat-stream.sse", 1, '"content":"1"'),  # after a role and ""
        ("vllm/v0.20.0/streams/tools-required-stream.sse", 1, '"get_weather"'),
        ("ollama/v0.32.15/streams/chat-stream.sse", 0, '"role":"assistant","content":"1"'),
        ("mlx-lm/v0.32.2/prefill/stream.sse", 2, '"content": "The"'),  # after two keepalives
        ("llama-swap/v250/loading-say/chat-stream.sse", 39, '"content":"Count"'),  # after its own words
        ("llama-swap/v250/loading-say/completion-stream.sse", 0, '"text":","'),
        ("llamacpp/b10434/streams/messages-stream.sse", 2, '"text":"1"'),
        ("vllm/v0.32.0/streams/responses-stream.sse", 4, '"delta":"One"'),
        ("ollama/v0.32.15/streams/api-chat-stream.ndjson", 0, '"content":"1"'),
    ],
)
def test_the_first_token_is_the_first_thing_generated(file: str, number: int, text: str) -> None:
    reply = BY_NAME[file]
    event = first_token(reply)
    assert event is not None
    assert list(pieces(reply)).index(event) == number
    assert text.encode() in event


def test_the_words_of_a_load_that_failed_are_no_token() -> None:
    assert first_token(BY_NAME["llama-swap/v250/loading-say/bad-request-stream.sse"]) is None


def test_a_reply_without_usage_reads_as_unknown_and_not_as_nothing() -> None:
    _, reading = through(tap_of(BY_NAME["vllm/v0.32.0/streams/chat-stream.sse"]), [b""])
    assert reading.usage == Usage()
    assert reading.usage.prompt_tokens is None
