"""The one streamed chat of the demo: text as it comes, and words when no whole answer comes."""

from __future__ import annotations

import pytest

from gateway.demo import chat
from gateway.demo.chat import ChatError, Delta, deltas
from tests.gateway.demo.web import answering

HELLO = 'data: {"choices":[{"delta":{"role":"assistant","content":null}}]}'
HI = 'data: {"choices":[{"delta":{"content":"Hi"}}]}'
THERE = 'data: {"choices":[{"delta":{"content":" there"}}]}'
END = 'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}'
USAGE = 'data: {"choices":[],"usage":{"completion_tokens":2}}'
DONE = "data: [DONE]"


def test_text_roles_usage_and_the_end_are_told_apart() -> None:
    assert list(deltas([HELLO, "", HI, ": a comment", END, USAGE, DONE])) == [
        Delta(),
        Delta("Hi"),
        Delta(finish="stop"),
        Delta(),
    ]


@pytest.mark.parametrize("event", ['{"choices":', "null x"])
def test_an_event_that_is_not_json_is_said(event: str) -> None:
    with pytest.raises(ChatError, match="not JSON"):
        list(deltas([f"data: {event}"]))


def run(body: str, status: int = 200) -> tuple[chat.Answer, list[str]]:
    pieces: list[str] = []
    headers = {"x-pharos-backend": "http://127.0.0.1:1", "x-pharos-reason": "only one"}
    with answering({"/v1/chat/completions": body}, status, headers) as url:
        return chat.stream(url, chat.ask("m", "hello?", 5), pieces.append), pieces


def test_a_whole_answer_names_who_gave_it_and_why() -> None:
    answer, pieces = run("\n\n".join([HELLO, HI, THERE, END, USAGE, DONE]))
    assert pieces == ["Hi", " there"]
    assert (answer.backend, answer.reason, answer.pieces) == ("http://127.0.0.1:1", "only one", 2)


def test_a_stream_without_a_finish_reason_is_no_answer() -> None:
    with pytest.raises(ChatError, match="ended after 1 pieces without saying that it was finished"):
        run("\n\n".join([HELLO, HI, DONE]))


def test_a_refusal_is_shown_in_its_own_words() -> None:
    with pytest.raises(ChatError, match="answered 503: no engine lists this model"):
        run('{"error":{"message":"no engine lists this model","code":"x"}}', 503)


def test_an_error_inside_the_stream_is_shown_in_its_own_words() -> None:
    with pytest.raises(ChatError, match="the engine died"):
        run("\n\n".join([HI, 'data: {"error":{"message":"the engine died"}}']))


def test_a_gateway_that_is_not_there_is_said() -> None:
    with pytest.raises(ChatError, match="stream broke after 0 pieces"):
        chat.stream("http://127.0.0.1:9", chat.ask("m", "hello?", 5), lambda _: None)
