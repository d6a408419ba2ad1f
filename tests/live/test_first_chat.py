"""A real answer through the whole gateway: Daphne, the request path and a live llama.cpp."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from gateway.demo import install
from gateway.demo.engines import MODEL_NAME, NEWEST, LlamaServer
from gateway.demo.processes import status_of
from gateway.demo.stage import Gateway
from tests.live.engine import chat, client, text_of, watching

pytestmark = pytest.mark.live

SOON_S = 6.0
"""Two rounds of the load probes; 16000 tokens take one thread three times as long."""

HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Say hello."}]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaServer]:
    """One slot, so that a client that left is felt by the next one."""
    install.install(install.LLAMA_SERVERS[NEWEST])
    install.install(install.SMOLLM2)
    folder = tmp_path_factory.mktemp("engine")
    with LlamaServer(folder, context=16384, extra=["--metrics"]) as server:
        server.wait_ready()
        yield server


@pytest.fixture(scope="module")
def gateway(engine: LlamaServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with Gateway(tmp_path_factory.mktemp("gateway"), [engine.url]) as gateway:
        gateway.wait_ready()
        yield gateway


async def test_a_streamed_answer_is_the_engines_own_token_by_token(
    gateway: Gateway, engine: LlamaServer
) -> None:
    body = chat(tokens=12, temperature=0)
    async with client() as http:
        texts = {}
        for url in (engine.url, gateway.url):
            async with http.stream("POST", f"{url}/v1/chat/completions", json=body) as reply:
                assert reply.status_code == 200
                texts[url] = [text async for line in reply.aiter_lines() if (text := text_of(line))]
    assert len(texts[gateway.url]) >= 10
    assert texts[gateway.url] == texts[engine.url]


async def test_a_reply_names_the_engine_and_the_reason(gateway: Gateway, engine: LlamaServer) -> None:
    async with client() as http:
        reply = await http.post(f"{gateway.url}/v1/chat/completions", json=chat(tokens=2, stream=False))
    assert reply.headers["x-pharos-backend"] == engine.url
    assert reply.headers["x-pharos-reason"]
    assert reply.headers["x-request-id"]


def test_the_openai_client_lists_models_and_gets_both_kinds_of_answer(gateway: Gateway) -> None:
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as api:
        assert [model.id for model in api.models.list()] == [MODEL_NAME]
        plain = api.chat.completions.create(model=MODEL_NAME, messages=HELLO, max_tokens=8)
        assert plain.choices[0].message.content
        assert plain.usage is not None
        assert plain.usage.completion_tokens > 0
        with api.chat.completions.stream(model=MODEL_NAME, messages=HELLO, max_tokens=8) as events:
            chunks = [event.chunk for event in events if event.type == "chunk"]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] in ("stop", "length")


def test_the_openai_client_gets_its_own_error_for_a_model_nobody_lists(gateway: Gateway) -> None:
    with (
        openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as api,
        pytest.raises(openai.NotFoundError) as e,
    ):
        api.chat.completions.create(model="no-such", messages=HELLO)
    assert MODEL_NAME in e.value.message


async def test_a_client_that_leaves_mid_stream_frees_the_slot(gateway: Gateway, engine: LlamaServer) -> None:
    async with watching(engine.url) as seen, client() as http:
        async with http.stream(
            "POST", f"{gateway.url}/v1/chat/completions", json=chat(tokens=16000)
        ) as reply:
            async for line in reply.aiter_lines():
                if text_of(line):
                    break
            busy = await seen.load()
            assert busy.running == 1
        free = await seen.load_when(lambda load: load.running == 0, SOON_S)
        assert free.running == 0
        async with asyncio.timeout(20):  # the next client is served at once, not after 16000 tokens
            reply = await http.post(f"{gateway.url}/v1/chat/completions", json=chat(tokens=2, stream=False))
        assert reply.status_code == 200


async def test_streams_one_after_another_all_arrive(gateway: Gateway) -> None:
    """llama.cpp closes a connection after each stream, whatever its headers promise (b10068 to b10434)."""
    async with client() as http:
        for _ in range(30):
            reply: httpx.Response = await http.post(
                f"{gateway.url}/v1/chat/completions", json=chat(tokens=2, temperature=0)
            )
            assert reply.status_code == 200
            assert "[DONE]" in reply.text


def test_the_demo_streams_an_answer_and_leaves_nothing_behind() -> None:
    done = subprocess.run(
        [sys.executable, "manage.py", "pharos_demo", "--once"],
        cwd=install.ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout
    assert "Answered by http://127.0.0.1:" in said
    assert "because: " in said
    assert "curl -N http://127.0.0.1:" in said
    ports = {
        int(word.rpartition(":")[2])
        for word in said.split()
        if word.startswith("http://127.0.0.1:") and "/" not in word[7:]
    }
    assert len(ports) == 3
    assert [status_of(port, "/health") for port in ports] == [None] * 3
