"""What a body must be, and that what is checked is what is sent."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.proxy.ask import decode, encode, understand
from gateway.proxy.refusals import Refusal


def refused(body: bytes) -> str:
    with pytest.raises(Refusal) as e:
        understand(body)
    assert e.value.status == 400
    return e.value.message


def test_model_and_stream_are_read() -> None:
    ask = understand(b'{"messages": [], "model": "m\\u00e9", "stream": true}')
    assert (ask.model, ask.stream) == ("mé", True)


def test_without_stream_the_reply_is_plain() -> None:
    assert not understand(b'{"model":"m"}').stream


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m","x":"\\ud83d"}',  # a lone surrogate is the engine's business
        b'{"model":"m","temperature":NaN}',
        b'{"model":"m","n":1e999}',
        b'{"model":"m","bad":"\xff"}',
        b' \r\n{ "model" : "m" , "a":[1, 2] }\n',
    ],
)
def test_what_only_the_engine_cares_for_goes_on_as_it_came(body: bytes) -> None:
    ask = understand(body)
    assert ask.model == "m"
    assert ask.body_for("m") == body


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "empty"),
        (b"  ", "empty"),
        (b"{", "not JSON"),
        (b"[]", "must be a JSON object"),
        (b'"m"', "must be a JSON object"),
        (b"null", "must be a JSON object"),
        (b'{"model":"m"} x', "not JSON"),
        (b'\xef\xbb\xbf{"model":"m"}', "not JSON"),
        (b'{"model":"m","x":NaN,}', "not JSON"),
        (b'{"model":"m","x":NaN} {}', "not JSON"),
        (b"{}", "names no model"),
        (b'{"model":""}', "must be the name"),
        (b'{"model":7}', "must be the name"),
        (b'{"model":["m"]}', "must be the name"),
        (b'{"model":"\\ud83d"}', "must be the name"),
        (b'{"model":"a","model":"b"}', "'model' stands in the body twice"),
        (b'{"model":"a","x":NaN,"model":"b"}', "'model' stands in the body twice"),
        (b'{"model":"a","\\u006dodel":"b"}', "'model' stands in the body twice"),
        (b'{"model":"a","x":1,"x":2}', "'x' stands in the body twice"),
        (b'{"model":"a","Model":"b"}', "'Model' must be written 'model'"),
        (b'{"MODEL":"b"}', "'MODEL' must be written 'model'"),
        (b'{"model":"a","Stream":true}', "'Stream' must be written 'stream'"),
        (b'{"model":"m","a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
        (b'{"model":"m","b":NaN,"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
    ],
)
def test_a_body_that_cannot_be_meant_is_refused_in_words(body: bytes, said: str) -> None:
    assert said in refused(body)


def test_a_name_that_unicode_folds_onto_ours_is_refused() -> None:
    assert "must be written" in refused(
        '{"model":"a","\u017ftream":true}'.encode()
    )  # ſ folds to s, in Go as here


def test_another_name_of_the_model_leaves_every_other_byte() -> None:
    body = (
        b'{ "model":"alias", "temperature": 1.50, "messages":[{"role":"user","content":"\\u0041 \xc3\xa9"}]}'
    )
    sent = understand(body).body_for("real/name:7b")
    assert sent == (
        b'{"model":"real/name:7b","temperature":1.50,"messages":[{"role":"user","content":"\\u0041 \xc3\xa9"}]}'
    )


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), values))
def test_decoding_and_encoding_keep_every_value(members: dict[str, object]) -> None:
    body = json.dumps(members).encode()
    again = json.loads(encode(decode(body)))
    assert json.dumps(again) == json.dumps(members)


@given(st.binary())
def test_any_bytes_are_understood_or_refused(body: bytes) -> None:
    try:
        understand(body)
    except Refusal as e:
        assert e.status == 400


@given(st.text(alphabet='{}[]":,modelNaN\\u\ud8001 ', max_size=40))
def test_anything_like_json_is_understood_or_refused(text: str) -> None:
    try:
        understand(text.encode("utf-8", "surrogatepass"))
    except Refusal as e:
        assert e.status == 400
