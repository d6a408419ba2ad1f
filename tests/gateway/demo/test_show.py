"""What the demo says about the answer, and where it sends people next."""

from __future__ import annotations

import json
import shlex

import pytest

from gateway.demo.chat import Answer
from gateway.demo.show import Backend, DemoError, curl_line, first_model, who, why
from tests.gateway.demo.web import answering

BACKENDS = [Backend("http://127.0.0.1:5001", "one slot"), Backend("http://127.0.0.1:5002", "two slots")]


def answered(backend: str | None, reason: str | None = None) -> Answer:
    return Answer(backend, reason, 3, 0.1, 0.2)


@pytest.mark.parametrize(
    ("backend", "said"),
    [
        ("http://127.0.0.1:5002", "http://127.0.0.1:5002 (two slots)"),
        ("127.0.0.1:5001", "http://127.0.0.1:5001 (one slot)"),
        ("http://elsewhere:1", "http://elsewhere:1"),
        (None, "an engine that the gateway did not name"),
    ],
)
def test_the_engine_of_an_answer_is_named_in_words(backend: str | None, said: str) -> None:
    assert who(answered(backend), BACKENDS) == said


def test_a_reason_is_repeated_and_a_missing_one_is_said() -> None:
    assert why(answered("x", "idle")) == "because: idle"
    assert why(answered("x")) == "the gateway gave no reason"


def test_the_curl_line_can_be_pasted_into_a_shell() -> None:
    words = shlex.split(curl_line("http://127.0.0.1:8090", "it's a model"))
    assert words[:3] == ["curl", "-N", "http://127.0.0.1:8090/v1/chat/completions"]
    assert json.loads(words[-1])["model"] == "it's a model"


def models(*names: str) -> dict[str, str]:
    return {"/v1/models": json.dumps({"data": [{"id": name} for name in names]})}


def test_a_model_that_can_chat_is_chosen() -> None:
    with answering(models("nomic-embed-text", "smollm2")) as url:
        assert first_model(url) == "smollm2"


@pytest.mark.parametrize(
    ("bodies", "said"),
    [
        (models(), "it is empty"),
        (models("nomic-embed-text"), "nomic-embed-text"),
        ({"/v1/models": "[]"}, "gave no list"),
        ({}, "gave no list"),
    ],
)
def test_no_model_to_chat_with_is_said(bodies: dict[str, str], said: str) -> None:
    with answering(bodies) as url, pytest.raises(DemoError, match=said):
        first_model(url)
