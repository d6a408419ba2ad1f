"""What one line of a reply says about its cost."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.usage import FIELDS, Api, Usage, merge, read_usage


def line(value: Any) -> bytes:
    return json.dumps(value).encode()


def chat(**usage: Any) -> Usage | None:
    return read_usage(line({"choices": [], "usage": usage}), Api.CHAT)


def test_a_chunk_of_text_reports_nothing() -> None:
    assert read_usage(line({"choices": [{"delta": {"content": "hi"}}]}), Api.CHAT) is None


def test_text_that_speaks_of_usage_reports_nothing() -> None:
    text = '"usage": {"prompt_tokens": 7}'
    assert read_usage(line({"choices": [{"delta": {"content": text}}]}), Api.CHAT) is None


def test_usage_null_reports_nothing() -> None:
    assert read_usage(b'{"choices":[],"usage":null}', Api.CHAT) is None


def test_done_and_comments_report_nothing() -> None:
    assert [read_usage(b, Api.CHAT) for b in (b"[DONE]", b"", b": keepalive 1/1", b"[]")] == [None] * 4


def test_cached_tokens_that_are_null_stay_unknown() -> None:
    usage = chat(prompt_tokens=41, completion_tokens=3, prompt_tokens_details=None)
    assert usage == Usage(prompt_tokens=41, completion_tokens=3)


@pytest.mark.parametrize("bad", [-1, "41", True, 1.5, [41], {"n": 41}, 2**60, 1e300])
def test_what_is_no_count_is_unknown_and_its_neighbours_are_read(bad: object) -> None:
    assert chat(prompt_tokens=bad, completion_tokens=3) == Usage(completion_tokens=3)


@pytest.mark.parametrize("bad", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_not_a_number_is_unknown_and_its_neighbours_are_read(bad: str) -> None:
    body = b'{"usage":{"prompt_tokens":%s,"completion_tokens":3}}' % bad.encode()
    assert read_usage(body, Api.CHAT) == Usage(completion_tokens=3)


def test_a_prompt_of_zero_tokens_is_a_placeholder() -> None:
    """Ollama's /v1/completions has zeros in every chunk but the last."""
    assert chat(prompt_tokens=0, completion_tokens=0, total_tokens=0) is None


def test_no_generated_token_is_a_count() -> None:
    assert chat(prompt_tokens=5, completion_tokens=0) == Usage(5, 0)


def test_llamacpp_timings_stand_in_for_usage() -> None:
    timings = {"cache_n": 40, "prompt_n": 1, "prompt_ms": 15.5, "predicted_n": 24, "predicted_ms": 250.0}
    usage = read_usage(line({"choices": [], "timings": timings}), Api.CHAT)
    assert usage == Usage(41, 24, 40, prefill_s=0.0155, decode_s=0.25)


def test_usage_wins_over_timings() -> None:
    body = {"usage": {"prompt_tokens": 50}, "timings": {"cache_n": 40, "prompt_n": 1}}
    usage = read_usage(line(body), Api.CHAT)
    assert usage is not None
    assert usage.prompt_tokens == 50


def test_timings_without_the_cached_part_are_no_prompt() -> None:
    assert read_usage(line({"timings": {"prompt_n": 1, "predicted_n": 2}}), Api.CHAT) == Usage(
        completion_tokens=2
    )


def test_anthropic_input_is_the_sum_of_fresh_and_cached_tokens() -> None:
    body = {
        "usage": {
            "input_tokens": 61,
            "cache_read_input_tokens": 2000,
            "cache_creation_input_tokens": 48,
            "output_tokens": 9,
        }
    }
    assert read_usage(line(body), Api.MESSAGES) == Usage(2109, 9, 2000)


def test_an_unreadable_cached_part_leaves_the_anthropic_prompt_unknown() -> None:
    body = {"usage": {"input_tokens": 61, "cache_read_input_tokens": "2048", "output_tokens": 9}}
    assert read_usage(line(body), Api.MESSAGES) == Usage(completion_tokens=9)


def test_message_start_gives_the_prompt_and_no_output() -> None:
    start = {
        "type": "message_start",
        "message": {"usage": {"input_tokens": 1, "cache_read_input_tokens": 40, "output_tokens": 1}},
    }
    assert read_usage(line(start), Api.MESSAGES) == Usage(41, None, 40)


def test_message_start_and_message_delta_make_one_usage() -> None:
    start = read_usage(line({"message": {"usage": {"input_tokens": 1, "output_tokens": 1}}}), Api.MESSAGES)
    delta = read_usage(line({"usage": {"output_tokens": 24}}), Api.MESSAGES)
    assert merge(start, delta) == Usage(1, 24)


def test_a_later_count_replaces_an_earlier_one() -> None:
    assert merge(Usage(41, 1), Usage(41, 2, 40)) == Usage(41, 2, 40)


def test_a_line_without_usage_forgets_nothing() -> None:
    assert merge(Usage(41, 1), None) == Usage(41, 1)
    assert merge(None, Usage(41, 1)) == Usage(41, 1)
    assert merge(None, None) is None


def test_responses_report_in_the_last_event_of_a_stream() -> None:
    usage = {"input_tokens": 41, "input_tokens_details": {"cached_tokens": 40}, "output_tokens": 22}
    body = {"type": "response.incomplete", "response": {"output": [], "usage": usage}}
    assert read_usage(line(body), Api.RESPONSES) == Usage(41, 22, 40)


def test_an_engine_s_untrue_field_is_not_read() -> None:
    body = line({"usage": {"input_tokens": 20, "input_tokens_details": {"cached_tokens": 0}}})
    untrue = frozenset({"usage.input_tokens_details.cached_tokens"})
    assert read_usage(body, Api.RESPONSES, untrue) == Usage(20)


def test_ollama_durations_are_nanoseconds() -> None:
    body = {
        "done": True,
        "prompt_eval_count": 20,
        "eval_count": 24,
        "prompt_eval_duration": 58_000_000,
        "eval_duration": 500_000_000,
        "load_duration": 700_000,
        "total_duration": 600_000_000,
    }
    assert read_usage(line(body), Api.OLLAMA) == Usage(
        20, 24, None, prefill_s=0.058, decode_s=0.5, load_s=0.0007, total_s=0.6
    )


def test_ollama_s_cached_tokens_are_part_of_its_prompt() -> None:
    body = {
        "prompt_eval_count": 3209,
        "prompt_eval_cached_count": 3208,
        "eval_count": 10,
    }  # as 0.34.4 reports
    assert read_usage(line(body), Api.OLLAMA) == Usage(3209, 10, 3208)


def test_embeddings_generate_nothing() -> None:
    body = {"data": [{"embedding": [0.1] * 384}], "usage": {"prompt_tokens": 4, "total_tokens": 4}}
    assert read_usage(line(body), Api.EMBEDDINGS) == Usage(4, 0)


def test_embeddings_that_report_no_prompt_report_nothing() -> None:
    assert read_usage(line({"data": [], "usage": {"total_tokens": 4}}), Api.EMBEDDINGS) is None


def test_every_value_of_the_field_list_is_a_usage_field() -> None:
    names = {name for api in FIELDS.values() for name in api}
    assert names <= set(Usage.__dataclass_fields__)
    assert all("prompt_tokens" in api for api in FIELDS.values())


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "usage",
                    "timings",
                    "message",
                    "response",
                    "prompt_tokens",
                    "input_tokens",
                    "prompt_eval_count",
                ]
            ),
            inner,
        )
    ),
)


@given(json_values, st.sampled_from(Api))
def test_any_json_gives_a_usage_or_nothing(value: object, api: Api) -> None:
    usage = read_usage(line(value), api)
    assert usage is None or usage != Usage()


@given(st.binary(), st.sampled_from(Api))
def test_any_bytes_give_a_usage_or_nothing(body: bytes, api: Api) -> None:
    read_usage(b'{"usage":{"prompt_tokens":1,"prompt_eval_count":' + body, api)


@pytest.mark.parametrize("opening", [b"[", b'{"usage":'])
def test_a_line_nested_without_end_reports_nothing(opening: bytes) -> None:
    assert read_usage(b'{"usage":' + opening * 100_000, Api.CHAT) is None
