"""Any split of a stream tells the same, and every recorded stream that finished is seen to finish."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.proxy.apis import ANTHROPIC, OLLAMA, OPENAI, RESPONSES, Family, Framing
from gateway.proxy.tap import MAX_EVENT, Tap

CAPTURES = Path(__file__).parents[3] / "fixtures" / "captures"


def watch(pieces: list[bytes], family: Family = OPENAI, framing: Framing = Framing.SSE) -> Tap:
    tap = Tap(framing, family.ends)
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


@given(st.lists(st.binary(max_size=30)))
def test_any_bytes_pass(pieces: list[bytes]) -> None:
    for family in (OPENAI, ANTHROPIC, RESPONSES):
        watch(pieces, family).end()
    watch(pieces, OLLAMA, Framing.NDJSON).end()


def test_an_error_event_is_one_whole_event_in_its_apis_words() -> None:
    from gateway.proxy.refusals import Refusal

    refusal = Refusal(502, "engine_failed", "It died.")
    for family in (OPENAI, ANTHROPIC, RESPONSES):
        event = family.error_event(refusal)
        tap = watch([event], family)
        assert (tap.finished, tap.on_boundary) == (True, True)
    assert json.loads(OLLAMA.error_event(refusal)) == {"error": "It died."}
