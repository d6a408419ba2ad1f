"""Which routes an engine has, told from every recorded answer to a POST of `{}`."""

from __future__ import annotations

import pytest

from engines.fetch import Answer
from engines.routes import ROUTES, served
from tests.engines.replay import Capture, captures

OPENAI = {"/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"}
ANTHROPIC = {"/v1/messages", "/v1/messages/count_tokens"}
OLLAMA = {"/api/chat", "/api/generate", "/api/embed"}

HAS = {
    "llama-swap": OPENAI | ANTHROPIC,
    "llamacpp": (OPENAI | ANTHROPIC) - {"/v1/embeddings"},
    "mlx-lm": {"/v1/chat/completions", "/v1/completions"},
    "ollama": (OPENAI | {"/v1/messages"} | OLLAMA),
    "sglang": OPENAI | ANTHROPIC | {"/api/chat", "/api/generate"},
    "vllm": (OPENAI | ANTHROPIC) - {"/v1/embeddings"},
}


def truth(capture: Capture, route: str) -> bool | None:
    state = capture.key.split("/")[2]
    if "api-key" in state or (capture.engine == "llamacpp" and state == "loading"):
        return None
    if capture.engine == "llamacpp" and (state.startswith("router-") or state == "embeddings-mode"):
        return route in OPENAI | ANTHROPIC
    if capture.engine == "vllm" and state.startswith("embeddings-mode"):
        return route == "/v1/embeddings"
    return route in HAS[capture.engine]


@pytest.mark.parametrize("capture", [pytest.param(c, id=c.key) for c in captures() if c.replayable])
def test_every_recorded_answer_tells_whether_the_route_is_there(capture: Capture) -> None:
    said, true = {}, {}
    for (method, path), row in capture.rows().items():
        if method == "POST" and path in ROUTES and row.status.isdigit():
            said[path] = served(row.answer_of(capture.folder, {}))
            true[path] = truth(capture, path)
    assert said == true


def json(status: int, body: str) -> Answer:
    return Answer(status, body.encode(), {"content-type": "application/json"})


@pytest.mark.parametrize(
    ("answer", "there"),
    [
        pytest.param(
            json(200, '{"error":"Unexpected endpoint or method. (POST /api/chat)"}'),
            False,
            id="LM Studio's 200",
        ),
        pytest.param(json(200, '{"error":"overloaded"}'), None, id="another error in a 200"),
        pytest.param(
            Answer(200, b"<!doctype html>", {"content-type": "text/html"}), False, id="a page for every path"
        ),
        pytest.param(
            json(404, '{"src":"llama-swap","error":"no router for requested model"}'), True, id="swap"
        ),
        pytest.param(
            Answer(400, b"could not find suitable inference handler for ", {"content-type": "text/plain"}),
            True,
            id="old llama-swap",
        ),
        pytest.param(
            Answer(400, b"<html>400 The plain HTTP request was sent to HTTPS port"), None, id="a proxy"
        ),
        pytest.param(
            json(404, '{"error":{"code":404,"message":"File Not Found"}}'), False, id="llama.cpp's 404"
        ),
        pytest.param(Answer(404, b""), False, id="an empty 404"),
        pytest.param(Answer(405, b"Method Not Allowed"), False, id="405"),
        pytest.param(json(403, "{}"), None, id="403"),
        pytest.param(json(429, '{"error":"too many requests for the model"}'), None, id="429"),
        pytest.param(Answer(502, b"Bad Gateway"), None, id="a proxy without its engine"),
        pytest.param(Answer(500, b"Internal Server Error"), None, id="a crash"),
        pytest.param(json(500, "[" * 100_000), None, id="nested too deeply"),
        pytest.param(json(404, "\xff"), False, id="bytes that are no text"),
    ],
)
def test_answer_that_no_engine_gave_in_a_recording(answer: Answer, there: bool | None) -> None:
    assert served(answer) is there


def test_recorded_answers_of_every_route_are_looked_at() -> None:
    looked_at = {path for c in captures() if c.replayable for method, path in c.rows() if method == "POST"}
    assert set(ROUTES) <= looked_at
