"""Any split of a stream tells the same, and every recorded stream that finished is seen to finish."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.usage import Api, Usage
from gateway.proxy.apis import ANTHROPIC, OLLAMA, OPENAI, RESPONSES, Family, Framing
from gateway.proxy.tap import MAX_EVENT, MAX_HELD, MAX_WHOLE, Stream, Whole

CAPTURES = Path(__file__).parents[3] / "fixtures" / "captures"


def watch(pieces: list[bytes], family: Family = OPENAI, framing: Framing = Framing.SSE) -> Stream:
    tap = Stream(framing, family)
    for piece in pieces:
        tap.feed(piece)
    return tap


FINISH = b'data: {"choices":[{"finish_reason":"stop"}]}'


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r", b"\n\r\n", b"\r\n\n"])
def test_events_end_with_any_line_end(end: bytes) -> None:
    tap = watch([b"data: {}" + end + FINISH + end])
    assert (tap.finished, tap.on_boundary) == (True, True)


@pytest.mark.parametrize(
    "event",
    [
        b'data:{"choices":[{"finish_reason":"length"}]}\n\n',
        b': note\n\nevent: x\nid: 1\ndata: {"choices":[{},{"finish_reason":"stop"}]}\n\n',
        b'data: {"choices":\ndata: [{"finish_reason":"stop"}]}\n\n',
        b'data: {"error":{"message":"x"}}\n\n',
    ],
)
def test_a_finish_is_seen_in_every_form(event: bytes) -> None:
    assert watch([event]).finished


@pytest.mark.parametrize(
    "event",
    [
        b"data: [DONE]\n\n",
        b'data: {"choices":[{"finish_reason":null}]}\n\n',
        b'data: {"choices":[],"usage":{}}\n\n',
        b'data: {"choices":[{"delta":{"content":"\\"finish_reason\\":\\"stop\\""}}]}\n\n',
        b': data: {"choices":[{"finish_reason":"stop"}]}\n\n',
        b'data: not json "error"\n\n',
        b'data: {"choices":7,"type":[]}\n\n',
        FINISH + b"\n",  # its event has not ended yet
    ],
)
def test_what_is_no_finish_is_not_taken_for_one(event: bytes) -> None:
    assert not watch([event]).finished


@pytest.mark.parametrize("half", [b"data: {", b"data: {}\n", b"event: x\n", b": comm", b"\n\nd"])
def test_inside_an_event_is_no_boundary(half: bytes) -> None:
    assert not watch([half]).on_boundary


@pytest.mark.parametrize("whole", [b"", b"data: {}\n\n", b": ping\n\n", b"data: {}\r\n\r\n", b"data: {}\r\r"])
def test_between_events_is_a_boundary(whole: bytes) -> None:
    assert watch([whole]).on_boundary


def test_an_event_that_lacks_only_its_blank_line_counts_when_the_stream_is_over() -> None:
    tap = watch([FINISH])
    tap.end()
    assert tap.finished


def test_a_line_longer_than_the_limit_is_passed_over_and_the_next_is_read() -> None:
    tap = watch([b"data: ", b"x" * MAX_EVENT, b"y" * MAX_EVENT, b"\n\n", FINISH + b"\n\n"])
    assert tap.finished


def test_ndjson_ends_with_done() -> None:
    lines = [b'{"done":false}\n', b'{"done":true}']
    assert not watch(lines[:1], OLLAMA, Framing.NDJSON).finished
    tap = watch(lines, OLLAMA, Framing.NDJSON)
    tap.end()
    assert tap.finished


# -- the chunk that is left out ----------------------------------------------------------------

USAGE = b'data: {"id":"x","choices":[],"usage":{"prompt_tokens":5,"completion_tokens":0}}'
DONE = b"data: [DONE]\n\n"


def stripping(*pieces: bytes) -> tuple[list[bytes], Stream]:
    """What each piece lets out after a finish, and at last what the end does."""
    tap = Stream(Framing.SSE, OPENAI, Api.CHAT, strip=True)
    assert tap.feed(FINISH + b"\n\n") == FINISH + b"\n\n"
    return [*map(tap.feed, pieces), tap.end()], tap


def test_the_chunk_is_left_out_and_read() -> None:
    out, tap = stripping(USAGE + b"\n\n", DONE)
    assert out == [b"", DONE, b""]
    assert tap.reading.usage == Usage(prompt_tokens=5, completion_tokens=0)


def test_only_one_such_chunk_is_left_out() -> None:
    out, _ = stripping(USAGE + b"\n\n", USAGE + b"\n\n")
    assert out == [b"", USAGE + b"\n\n", b""]


@pytest.mark.parametrize(
    "event",
    [
        b'data: {"choices":[],"prompt_filter_results":[]}',
        b'data: {"choices":[],"usage":null}',
        b'data: {"choices":[{"finish_reason":"stop"}],"usage":{"prompt_tokens":5}}',
        b'data: {"choices": [ {"index":0}],"usage":{"prompt_tokens":5}}',
        b'data: {"usage":{"prompt_tokens":5}}',
        b": a note",
        b"event: ping",
        b'data: {"choices":[],"usage":{}',
    ],
)
def test_what_only_resembles_it_goes_on(event: bytes) -> None:
    assert stripping(event + b"\n\n")[0] == [event + b"\n\n", b""]


def test_before_the_finish_nothing_is_left_out() -> None:
    tap = Stream(Framing.SSE, OPENAI, Api.CHAT, strip=True)
    assert tap.feed(USAGE + b"\n\n") == USAGE + b"\n\n"


def test_a_chunk_without_its_blank_line_is_left_out_at_the_end() -> None:
    assert stripping(USAGE)[0] == [b"", b""]


def test_a_part_of_it_is_given_back_at_the_end() -> None:
    assert stripping(USAGE[:30])[0] == [b"", USAGE[:30]]


def test_what_turns_out_to_have_choices_is_let_go_before_it_is_whole() -> None:
    assert stripping(b'data: {"choices":', b"[{")[0] == [b"", b'data: {"choices":[{', b""]
    assert stripping(b"data: ", b"[DONE]")[0] == [b"", b"data: [DONE]", b""]
    assert stripping(b":", b" ping")[0] == [b":", b" ping", b""]


def test_no_more_than_a_usage_chunk_can_be_is_held_back() -> None:
    start, rest = b'data: {"choices":[],', b'"usage":{"prompt_tokens":5}}\n\n'
    assert stripping(start, b" " * MAX_HELD, rest)[0] == [b"", start + b" " * MAX_HELD, rest, b""]


def test_with_a_part_held_back_the_client_is_between_events() -> None:
    """So that an error can follow if the engine dies here."""
    tap = Stream(Framing.SSE, OPENAI, Api.CHAT, strip=True)
    tap.feed(FINISH + b"\n\n" + USAGE[:30])
    assert tap.on_boundary


def test_an_lf_that_comes_late_to_its_cr_is_held_back_with_it() -> None:
    assert stripping(b"data: {\r", b"\ndata: }\r\n\r\n")[0] == [b"", b"data: {\r\ndata: }\r\n\r\n", b""]


def test_an_lf_that_comes_late_to_its_cr_is_left_out_with_it() -> None:
    assert stripping(USAGE + b"\r\n\r", b"\n", DONE)[0] == [b"", b"", DONE, b""]


# -- usage -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "stream",
    [
        b'data:{"usage":{"prompt_tokens":5}}\n\n',
        b'\xef\xbb\xbfdata: {"usage":{"prompt_tokens":5}}\n\n',
        b'data: {"usage":\ndata: {"prompt_tokens":5}}\n\n',
        b': note\rid: 1\r\ndata: {"usage":{"prompt_tokens":5}}\n\r\n',
        b'data: {"usage":{"prompt_tokens":4}}\n\ndata: {"usage":{"prompt_tokens":5}}',
    ],
)
def test_usage_is_read_in_every_form_of_an_event(stream: bytes) -> None:
    tap = Stream(Framing.SSE, OPENAI, Api.CHAT)
    assert tap.feed(stream) + tap.end() == stream
    assert tap.reading.usage == Usage(prompt_tokens=5)


def test_an_event_over_the_limit_passes_unread_and_the_next_is_read() -> None:
    tap = Stream(Framing.SSE, OPENAI, Api.CHAT, strip=True)
    long = b'data: {"usage":{"prompt_tokens":9},"x":"' + b"y" * MAX_EVENT + b'"}\n\n'
    for piece in (long, long[:70], long[70:]):
        assert tap.feed(piece) == piece
    assert tap.reading.usage == Usage()
    tap.feed(b'data: {"usage":{"prompt_tokens":5}}\n\n')
    assert tap.reading.usage == Usage(prompt_tokens=5)


def test_of_an_event_with_a_line_over_the_limit_nothing_is_read() -> None:
    tap = Stream(Framing.SSE, OPENAI, Api.CHAT)
    boundaries = []
    rest = b'data: {"usage":{"prompt_tokens":5}}\n\n'
    for piece in (b"data: " + b" " * 99, b" " * MAX_EVENT, b"\n", rest):
        tap.feed(piece)
        boundaries.append(tap.on_boundary)
    assert boundaries == [False, False, False, True]
    assert tap.reading.usage == Usage()


def test_usage_that_begins_in_one_piece_and_ends_in_another_is_read() -> None:
    tap = Stream(Framing.SSE, OPENAI, Api.CHAT)
    tap.feed(b'data: {"choices":[{"text":"x"}]}\n\n')
    assert tap.first_token
    tap.feed(b'data: {"usage":\n')
    tap.feed(b'data: {"prompt_tokens":5}}\n\n')
    assert tap.reading.usage == Usage(prompt_tokens=5)


# -- the first token ---------------------------------------------------------------------------

BEARING = [
    (OPENAI, b'{"id":"x","choices":[{"delta":{"reasoning_content":"x"}}]}'),
    (OPENAI, b'{"choices":[{"delta":{"content":"x"}}]}'),
    (OPENAI, b'{"choices":[{"index":0,"delta":{"tool_calls":[{"function":{"name":"f"}}]}}]}'),
    (OPENAI, b'{"choices":[{"delta":{}},{"delta":{"refusal":"no"}}]}'),
    (OPENAI, b'{"choices":[{"text":" "}]}'),
    (ANTHROPIC, b'{"type":"content_block_start","content_block":{"type":"tool_use","name":"f","input":{}}}'),
    (ANTHROPIC, b'{"type":"content_block_delta","delta":{"type":"thinking_delta","thinking":"x"}}'),
    (RESPONSES, b'{"type":"response.output_item.added","item":{"type":"function_call","name":"f"}}'),
    (RESPONSES, b'{"type":"response.reasoning_text.delta","delta":"x"}'),
    (OLLAMA, b'{"message":{"role":"assistant","content":"","thinking":"x"},"done":false}'),
    (OLLAMA, b'{"message":{"content":"","tool_calls":[{"function":{"name":"f"}}]},"done":false}'),
    (OLLAMA, b'{"response":"x","done":false}'),
]
EMPTY = [
    (OPENAI, b'{"choices":[{"delta":{"role":"assistant","content":"","tool_calls":[],"refusal":null}}]}'),
    (OPENAI, b'{"choices":[{"delta":{"reasoning_content":"llama-swap loading model"}}]}'),
    (OPENAI, b'{"choices":[{"text":"","finish_reason":"stop"}]}'),
    (OPENAI, b'{"choices":7}'),
    (OPENAI, b"[DONE]"),
    (ANTHROPIC, b'{"type":"message_start","message":{"content":[],"usage":{"input_tokens":5}}}'),
    (ANTHROPIC, b'{"type":"content_block_start","content_block":{"type":"text","text":""}}'),
    (ANTHROPIC, b'{"type":"message_delta","delta":{"stop_reason":"end_turn"}}'),
    (ANTHROPIC, b'{"type":"ping"}'),
    (RESPONSES, b'{"type":"response.output_item.added","item":{"type":"message","content":[]}}'),
    (RESPONSES, b'{"type":"response.output_text.delta","delta":""}'),
    (OLLAMA, b'{"message":{"role":"assistant","content":""},"done":true}'),
]


@pytest.mark.parametrize(("family", "event"), BEARING)
def test_text_reasoning_and_tool_calls_are_tokens(family: Family, event: bytes) -> None:
    assert family.bears(event)


@pytest.mark.parametrize(("family", "event"), EMPTY)
def test_roles_frames_and_empty_text_are_none(family: Family, event: bytes) -> None:
    assert not family.bears(event)


# -- plain replies -----------------------------------------------------------------------------


def test_a_plain_reply_is_read_at_its_end() -> None:
    body = b'{"choices":[{}],"usage":{"prompt_tokens":5,\n"completion_tokens":0}}'
    tap = Whole(Api.CHAT)
    assert [tap.feed(body[:20]), tap.feed(body[20:]), tap.end()] == [body[:20], body[20:], b""]
    assert tap.reading.usage == Usage(prompt_tokens=5, completion_tokens=0)


@pytest.mark.parametrize("body", [b"", b"[]", b"nope", b'{"usage":7}', b'{"usage":{"prompt_tokens":"5"}}'])
def test_a_plain_reply_of_another_shape_is_unknown(body: bytes) -> None:
    tap = Whole(Api.CHAT)
    assert tap.feed(body) + tap.end() == body
    assert tap.reading.usage == Usage()


def test_a_plain_reply_over_the_limit_passes_and_is_unknown() -> None:
    tap = Whole(Api.CHAT)
    body = b'{"usage":{"prompt_tokens":5},"x":"' + b"y" * MAX_WHOLE + b'"}'
    assert tap.feed(body[:99]) + tap.feed(body[99:]) + tap.end() == body
    assert tap.reading.usage == Usage()


# -- recorded streams --------------------------------------------------------------------------


def families(name: str) -> Family | None:
    if name.startswith(("chat", "completion", "tool", "content", "image")):
        return OPENAI
    if name.startswith("messages"):
        return ANTHROPIC
    return RESPONSES if name.startswith("responses") else None


RECORDED = [
    (path, family)
    for path in sorted(CAPTURES.glob("*/*/streams/*.sse"))
    if (family := families(path.name)) and path.stat().st_size < 200_000
]


@pytest.mark.parametrize(
    ("path", "family"), RECORDED, ids=lambda v: str(v.relative_to(CAPTURES)) if isinstance(v, Path) else ""
)
def test_every_recorded_stream_is_seen_to_finish(path: Path, family: Family) -> None:
    tap = watch([path.read_bytes()], family)
    tap.end()
    assert tap.finished


@given(st.data())
def test_any_split_tells_the_same(data: st.DataObject) -> None:
    path, family = data.draw(st.sampled_from(RECORDED[:40]))
    body = path.read_bytes()[-3000:]
    cuts = sorted(data.draw(st.sets(st.integers(0, len(body)), max_size=40)))
    pieces = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    whole, split = watch([body], family), watch(pieces, family)
    assert (whole.finished, whole.on_boundary) == (split.finished, split.on_boundary)


@pytest.mark.parametrize("half", [b'data: {"half', b"data: {}\n", b"event: x\n"])
def test_the_end_of_the_bytes_puts_nothing_between_two_events(half: bytes) -> None:
    tap = watch([half])
    tap.end()
    assert not tap.on_boundary


# -- bytes of any kind -------------------------------------------------------------------------

WORDS = [
    b"data:", b" ", b"{", b"}", b'"choices":[]', b'"choices":[{', b'"usage":{}', b'"usage":{"prompt_tokens":1}',
    b",", b"\n", b"\r", b":", b"event: x", b'"finish_reason":"stop"}]', b'"error":1', b"[DONE]", b'"done":true',
    b'"delta":', b"NaN", b"\xff", b"\xef\xbb\xbf", b'{"type":"message_stop"}', FINISH + b"\n\n",
]  # fmt: skip


@given(st.lists(st.binary(max_size=30) | st.sampled_from(WORDS)), st.booleans())
def test_any_bytes_pass(pieces: list[bytes], strip: bool) -> None:
    """Whatever they are, nothing is raised, and nothing but a whole event of usage is left out."""
    for family in (OPENAI, ANTHROPIC, RESPONSES, OLLAMA):
        for framing in Framing:
            tap = Stream(framing, family, Api.CHAT, strip=strip)
            out = b"".join([*map(tap.feed, pieces), tap.end()])
            whole = b"".join(pieces)
            if b'"usage":{' not in whole or not strip:
                assert out == whole
            assert len(out) <= len(whole)


@given(st.lists(st.sampled_from(WORDS)), st.data())
def test_any_split_of_any_bytes_leaves_out_the_same(words: list[bytes], data: st.DataObject) -> None:
    whole = FINISH + b"\n\n" + b"".join(words)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(whole)), max_size=20)))
    pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    said = []
    for told in ([whole], pieces):
        tap = Stream(Framing.SSE, OPENAI, Api.CHAT, strip=True)
        said.append((b"".join([*map(tap.feed, told), tap.end()]), tap.reading))
    assert said[0] == said[1]


def test_an_error_event_is_one_whole_event_in_its_apis_words() -> None:
    from gateway.proxy.refusals import Refusal

    refusal = Refusal(502, "engine_failed", "It died.")
    for family in (OPENAI, ANTHROPIC, RESPONSES):
        event = family.error_event(refusal)
        tap = watch([event], family)
        assert (tap.finished, tap.on_boundary) == (True, True)
    assert json.loads(OLLAMA.error_event(refusal)) == {"error": "It died."}
