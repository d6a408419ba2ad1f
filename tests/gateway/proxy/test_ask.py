"""What a body must be, and that what is checked is what is sent."""

from __future__ import annotations

import base64
import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.proxy.ask import credentials, decode, encode, key_of, may_generate, understand
from gateway.proxy.refusals import Refusal
from gateway.proxy.routes import ROUTES


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


# -- what else is read of a request ------------------------------------------------------------

STREAMED = {b"": (False, True), b',"stream":true': (True, True), b',"stream":false': (False, False),
            b',"stream":null': (False, True)}  # fmt: skip


@pytest.mark.parametrize("said", STREAMED)
def test_ollama_streams_unless_told_not_to_and_the_others_if_told_to(said: bytes) -> None:
    body = b'{"model":"m"' + said + b"}"
    asks = understand(body, ROUTES["/v1/chat/completions"]), understand(body, ROUTES["/api/chat"])
    assert (asks[0].stream, asks[1].stream) == STREAMED[said]


@pytest.mark.parametrize(
    "path", ["/v1/embeddings", "/api/embed", "/v1/messages/count_tokens", "/api/embeddings"]
)
def test_some_routes_never_stream(path: str) -> None:
    assert not understand(b'{"model":"m","stream":true}', ROUTES[path]).stream


def tokens(**fields: object) -> int:
    return understand(json.dumps({"model": "m", **fields}).encode()).prompt_tokens


def test_a_prompt_has_a_token_for_four_bytes_of_text() -> None:
    text = "four" * 10_000
    for fields in (
        {"messages": [{"role": "user", "content": text}]},
        {"prompt": text},
        {"input": text},
        {"system": text},
    ):
        assert 10_000 <= tokens(**fields) < 10_100


@pytest.mark.parametrize("text", ["机器" * 20_000, "машина" * 10_000, 'a "quoted"\n line' * 3000])
def test_an_escaped_prompt_is_as_long_as_one_that_is_not(text: str) -> None:
    escaped = understand(json.dumps({"model": "m", "prompt": text}).encode()).prompt_tokens
    plain = understand(json.dumps({"model": "m", "prompt": text}, ensure_ascii=False).encode()).prompt_tokens
    assert escaped == pytest.approx(plain, rel=0.05)
    assert plain == pytest.approx(len(text.encode()) / 4, rel=0.05)


def test_an_image_is_no_text() -> None:
    image = "data:image/png;base64," + base64.b64encode(random.Random(1).randbytes(1_000_000)).decode()
    content = [{"type": "text", "text": "what is it?"}, {"type": "image_url", "image_url": {"url": image}}]
    assert tokens(messages=[{"role": "user", "content": content}]) < 6000


def test_a_prompt_of_which_only_a_part_is_looked_at_is_about_as_long_as_it_is() -> None:
    text = "".join(random.Random(1).choices("abcdefghij \n", k=3_000_000))
    assert tokens(prompt=text) == pytest.approx(len(text) / 4, rel=0.02)


def test_other_fields_are_no_prompt() -> None:
    assert tokens(prompt="four" * 100, metadata="x" * 100_000) < 110


def test_nothing_is_a_prompt_of_no_tokens() -> None:
    assert tokens() == 0


BEARER = (b"authorization", b"Bearer sk-1")


def test_one_credential_is_one_key_however_it_is_presented() -> None:
    assert key_of([BEARER]) == key_of([(b"x-api-key", b"sk-1")]) != key_of([(b"x-api-key", b"sk-2")])


def test_a_key_tells_nothing_of_the_credential() -> None:
    assert len(key_of([BEARER])) == 12
    assert "sk-1" not in key_of([BEARER])


def test_without_a_credential_all_are_one() -> None:
    assert key_of([]) == key_of([(b"authorization", b"")]) == "anonymous"


@pytest.mark.parametrize(
    ("path", "body", "most"),
    [
        ("/v1/chat/completions", {"max_tokens": 64}, 64),
        ("/v1/chat/completions", {"max_completion_tokens": 64, "max_tokens": 80}, 80),
        ("/v1/chat/completions", {"max_tokens": 64, "n": 3}, 192),
        ("/v1/completions", {"max_tokens": 64, "n": 2, "best_of": 4}, 256),
        ("/v1/responses", {"max_output_tokens": 9}, 9),
        ("/v1/messages", {"max_tokens": 0}, 0),
        ("/v1/chat/completions", {}, None),
        ("/v1/chat/completions", {"max_tokens": None}, None),
        ("/v1/chat/completions", {"max_tokens": -1}, None),
        ("/v1/chat/completions", {"max_tokens": "64", "n": "x"}, None),
        ("/v1/chat/completions", {"max_tokens": 10**30}, None),
        ("/v1/chat/completions", {"max_tokens": [1]}, None),
        ("/v1/chat/completions", {"options": {"num_predict": 5}}, None),
        ("/api/chat", {"options": {"num_predict": 5}}, 5),
        ("/api/generate", {"options": {"num_predict": -2}}, None),
        ("/api/generate", {"options": {"temperature": 1}}, None),
        ("/api/generate", {"options": [1]}, None),
        ("/v1/embeddings", {"max_tokens": 64}, 0),
        ("/api/embed", {}, 0),
    ],
)
def test_a_request_says_how_long_its_answer_may_become(
    path: str, body: dict[str, Any], most: int | None
) -> None:
    assert may_generate(understand(json.dumps({"model": "m", **body}).encode(), ROUTES[path])) == most


def test_both_credentials_are_looked_at_and_empty_ones_are_none() -> None:
    assert credentials([(b"X-Api-Key", b" b "), (b"Authorization", b"BEARER a")]) == [b"a", b"b"]
    assert credentials([(b"authorization", b"Bearer "), (b"x-api-key", b"")]) == []


# -- the wish for usage ------------------------------------------------------------------------

ASKS = b'"stream_options":{"include_usage":true}'


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_a_stream_that_does_not_ask_for_usage_is_made_to(path: str) -> None:
    ask = understand(b'{ "model":"m", "stream" :true, "t":1.50 }', ROUTES[path])
    assert ask.adds_usage
    assert ask.body_for("m") == b'{"model":"m","stream":true,"t":1.50,' + ASKS + b"}"
    assert ask.body_for("n") == b'{"model":"n","stream":true,"t":1.50,' + ASKS + b"}"


@pytest.mark.parametrize(
    ("given_", "sent"),
    [
        (b"null", b'{"include_usage":true}'),
        (b"{}", b'{"include_usage":true}'),
        (b'{"include_usage":false}', b'{"include_usage":true}'),
        (b'{"include_usage": null, "x": 1.0}', b'{"include_usage":true,"x":1.0}'),
        (b'{"continuous_usage_stats": false}', b'{"continuous_usage_stats":false,"include_usage":true}'),
    ],
)
def test_other_stream_options_stay_as_they_are(given_: bytes, sent: bytes) -> None:
    ask = understand(b'{"model":"m","stream":true,"stream_options":' + given_ + b',"n":1}')
    assert ask.adds_usage
    assert ask.body_for("m") == b'{"model":"m","stream":true,"stream_options":' + sent + b',"n":1}'


@pytest.mark.parametrize(
    "options",
    [
        b'{"include_usage": true}',
        b'{"include_usage":"yes"}',  # what the client wrote is the engine's to judge
        b'{"include_usage":false,"include_usage":true}',
        b'{"Include_Usage":true}',
        b"7",
        b"[]",
    ],
)
def test_a_client_with_a_wish_of_its_own_keeps_it(options: bytes) -> None:
    body = b'{"model":"m", "stream":true, "stream_options":' + options + b"}"
    ask = understand(body)
    assert not ask.adds_usage
    assert ask.body_for("m") == body


@pytest.mark.parametrize(
    ("path", "stream"),
    [
        ("/v1/chat/completions", b"false"),
        ("/v1/chat/completions", b"null"),
        ("/v1/embeddings", b"true"),
        ("/v1/messages", b"true"),
        ("/v1/responses", b"true"),
        ("/api/chat", b"true"),
    ],
)
def test_where_usage_comes_anyway_nothing_is_added(path: str, stream: bytes) -> None:
    body = b'{"model":"m", "stream":' + stream + b"}"
    ask = understand(body, ROUTES[path])
    assert not ask.adds_usage
    assert ask.body_for("m") == body
