"""Which route is what, and what people are told who mistype one."""

from __future__ import annotations

import pytest

from gateway.proxy.apis import ANTHROPIC, OLLAMA, OPENAI, RESPONSES, Family
from gateway.proxy.refusals import Refusal
from gateway.proxy.routes import ROUTES, family_of, only, unknown

HOST = [(b"host", b"box:8090")]


@pytest.mark.parametrize("path", ROUTES)
def test_errors_on_a_route_come_in_the_shape_of_its_api(path: str) -> None:
    assert family_of(path, []) is ROUTES[path].family


@pytest.mark.parametrize(
    ("path", "family"),
    [
        ("/v1/v1/messages", ANTHROPIC),
        ("/messages", ANTHROPIC),
        ("/v1/api/chat", OLLAMA),
        ("/api/nope", OLLAMA),
        ("/api/tags", OLLAMA),
        ("/", OLLAMA),
        ("/api/v1/chat/completions", OPENAI),
        ("/chat/completions", OPENAI),
        ("/v1/models", OPENAI),
        ("/v1/responses/resp_1", RESPONSES),
    ],
)
def test_a_mistyped_path_is_answered_in_the_shape_its_client_reads(path: str, family: Family) -> None:
    assert family_of(path, []) is family


def test_a_list_of_models_is_anthropics_for_anthropics_clients() -> None:
    assert family_of("/v1/models", [(b"anthropic-version", b"2023-06-01")]) is ANTHROPIC


OPENAI_BASE = "the base URL for OpenAI clients is http://box:8090/v1"
OLLAMA_BASE = "the base URL for Ollama clients is http://box:8090, without anything after it"
ANTHROPIC_BASE = "the base URL for Anthropic clients is http://box:8090, without anything after it"


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("/chat/completions", OPENAI_BASE),
        ("/models", OPENAI_BASE),
        ("/responses", OPENAI_BASE),
        ("//v1/chat/completions", OPENAI_BASE),
        ("/v1/chat/completions/", OPENAI_BASE),
        ("/v1/chat/completions/chat/completions", OPENAI_BASE),
        ("/v1/v1/chat/completions", OPENAI_BASE),
        ("/openai/v1/chat/completions", OPENAI_BASE),
        ("/api/v1/chat/completions", OPENAI_BASE),
        ("/v1/nope", OPENAI_BASE),
        ("/anything", OPENAI_BASE),
        ("/v1/api/tags", OLLAMA_BASE),
        ("/v1/api/chat", OLLAMA_BASE),
        ("/api/api/chat", OLLAMA_BASE),
        ("/v1/v1/messages", ANTHROPIC_BASE),
        ("/messages", ANTHROPIC_BASE),
        ("/v1/v1/messages/count_tokens", ANTHROPIC_BASE),
    ],
)
def test_a_mistyped_base_url_is_told_the_right_one(path: str, hint: str) -> None:
    refusal = unknown(path, HOST)
    assert refusal.status == 404
    assert hint in refusal.message


@pytest.mark.parametrize("host", [b"evil\r\nx: y", b"<script>", b"a b", b"", b"x" * 300])
def test_a_host_that_is_none_is_not_repeated(host: bytes) -> None:
    assert "http://this-host:8090/v1" in unknown("/x", [(b"host", host)]).message


@pytest.mark.parametrize(
    "path", ["/api/pull", "/api/push", "/api/create", "/api/copy", "/api/delete", "/api/blobs/sha256:0"]
)
def test_managing_models_is_not_what_pharos_does(path: str) -> None:
    refusal = unknown(path, HOST)
    assert (refusal.status, refusal.code) == (501, "not_supported")


def test_a_wrong_method_is_told_the_right_ones() -> None:
    with pytest.raises(Refusal) as e:
        only("PUT", "GET", "HEAD")
    assert (e.value.status, e.value.headers) == (405, [(b"allow", b"GET, HEAD")])
