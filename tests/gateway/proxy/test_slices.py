"""A body read in slices is the body read in one go, or is left to be read so."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.proxy import slices
from gateway.proxy.ask import decode
from gateway.proxy.refusals import Refusal

SIZES = st.integers(1, 40)

TEXT = st.text(st.sampled_from('ab"\\/\n\u00e9\u20ac\U0001f600{}[]:, 0'), max_size=60)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)
BODIES = st.builds(
    lambda value, ascii_only, indent: json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode(),
    st.dictionaries(TEXT, VALUES, max_size=5),
    st.booleans(),
    st.none() | st.integers(0, 2),
)


def read(body: bytes, size: int = slices.SLICE) -> dict[str, bytes] | None:
    steps = slices.read(body, size)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            fields: dict[str, bytes] | None = done.value
            return fields


def steps_of(body: bytes) -> int:
    return sum(1 for _ in slices.read(body))


def in_one_go(body: bytes) -> dict[str, bytes] | None:
    try:
        return decode(body)
    except Refusal:
        return None


@given(BODIES, SIZES)
def test_what_is_read_in_slices_is_what_is_read_in_one_go(body: bytes, size: int) -> None:
    assert read(body, size) in (None, decode(body))


@given(BODIES, SIZES, st.data())
@example(b'{"a":[1,]}', 1, None)
@example(b'{"a":[ ,1]}', 1, None)
@example(b'{"a":{"b":1,}}', 1, None)
@example(b'{"a":"x" "y"}', 40, None)
@example(b'{"a":"b","a":"c"}', 40, None)
@example(b'{"a":1}}', 40, None)
@example(b'"{"": null, ",": null}', 9, None)
@example(b'"a","b","c"', 1, None)
def test_a_damaged_body_is_never_read_as_a_whole_one(
    body: bytes, size: int, data: st.DataObject | None
) -> None:
    if data is not None:
        at = data.draw(st.integers(0, len(body)))
        cut = data.draw(st.integers(0, 3))
        put = data.draw(
            st.sampled_from([b"", b",", b"]", b"}", b'"', b"\\", b":", b"0", b"[", b"{", b" ", b"\xff"])
        )
        body = body[:at] + put + body[at + cut :]
    found = read(body, size)
    assert found is None or found == in_one_go(body)


LONG = 3 * slices.SLICE
LARGE = {
    "one text": "x" * LONG,
    "text with escapes": 'print("\u00fc")\n' * (LONG // 10),
    "nothing but escapes": "\U0001f600" * (LONG // 12),
    "many messages": [{"role": "user", "content": "hello \u20ac " * 100}] * (LONG // 1000),
    "numbers": list(range(LONG // 6)),
}


@pytest.mark.parametrize("content", LARGE.values(), ids=LARGE)
@pytest.mark.parametrize("ascii_only", [True, False])
def test_large_bodies_of_every_make_are_read_in_slices(content: object, ascii_only: bool) -> None:
    body = json.dumps({"model": "m", "messages": content, "n": 1}, ensure_ascii=ascii_only).encode()
    assert read(body) == decode(body)
    assert steps_of(body) >= len(body) // slices.SLICE


def test_a_value_of_megabytes_is_kept_byte_for_byte() -> None:
    text = b'"' + b"y" * (2 * slices.AT_ONCE) + b'"'
    fields = read(b'{ "model" : "m" , "prompt" :  ' + text + b" \n }")
    assert fields == {"model": b'"m"', "prompt": text}


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b'"x"', b"{", b"[" * 100, b'{"a":' + b"[" * 100_000, b'{"a":"\\ud83d"}', b'{"a":NaN}'],
)
def test_what_is_odd_is_left_to_the_one_who_reads_in_one_go(body: bytes) -> None:
    assert read(body) is None


def test_a_body_of_brackets_alone_is_left_after_a_bounded_number_of_steps() -> None:
    body = b'{"a":[' + b"[]," * 500_000 + b"[]]}"
    assert sum(1 for _ in slices.read(body, most=10_000)) < 10_000 // slices.TOKENS_A_STEP + 2
