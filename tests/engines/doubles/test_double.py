"""What a client of each double notices: when headers come, who waits, what is in memory, what it is told."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engines.doubles import KINDS, PHYSICS, Double, NoRecording, running
from engines.doubles.recordings import read_bytes
from gateway.management.commands.pharos_double import introduction
from tests.engines.doubles.client import HI, ask, chat, free, talk, until

ALL = pytest.mark.parametrize("kind", sorted(KINDS))
CHAT = "/v1/chat/completions"


def stuck(kind: str) -> Double:
    """Its prompts take for ever: whoever has its one slot keeps it."""
    return Double(kind, physics=replace(PHYSICS[kind], prefill_s_per_token=1000.0, slots=1))


def streaming(double: Double, **more: object) -> dict[str, object]:
    return {"model": double.names[0], **HI, "stream": True, **more}


def data_of(body: bytes) -> list[Any]:
    lines = [line.removeprefix(b"data: ") for line in body.splitlines()]
    return [json.loads(line) for line in lines if line.startswith(b"{")]


# -- headers and the queue ---------------------------------------------------------------------


async def test_llamacpp_sends_headers_with_a_slot_and_none_while_queued() -> None:
    async with running(stuck("llamacpp")) as double, talk(double) as first, talk(double) as second:
        await first.ask(CHAT, streaming(double))
        assert " 200 " in await first.head()
        await second.ask(CHAT, streaming(double))
        assert await second.silent()
        assert (double.machine.running(), double.machine.waiting()) == (1, 1)


async def test_vllm_sends_headers_at_once_though_queued() -> None:
    async with running(stuck("vllm")) as double, talk(double) as first, talk(double) as second:
        await first.ask(CHAT, streaming(double))
        await second.ask(CHAT, streaming(double))
        assert " 200 " in await second.head()
        assert await second.silent()


@pytest.mark.parametrize("kind", ["ollama", "sglang"])
async def test_ollama_and_sglang_send_headers_with_the_first_token(kind: str) -> None:
    async with running(stuck(kind)) as double, talk(double) as t:
        await t.ask(CHAT, streaming(double))
        await until(lambda: double.machine.running() == 1)
        assert await t.silent()


async def test_the_next_in_the_queue_is_served_when_the_first_one_leaves() -> None:
    async with running(Double("vllm", slots=1)) as double:
        async with talk(double) as first, talk(double) as second:
            await first.ask(CHAT, streaming(double, max_tokens=10_000, ignore_eos=True))
            await first.head()
            await second.ask(CHAT, streaming(double, max_tokens=1))
            await until(lambda: double.machine.waiting() == 1)
            first.leave()
            assert (await second.came()).whole
        await until(lambda: free(double))


# -- replies -----------------------------------------------------------------------------------


@ALL
async def test_stream_and_plain_reply_say_the_same(kind: str) -> None:
    async with running(Double(kind, speed=1000)) as double:
        plain = (await chat(double, max_tokens=7)).json
        stream = data_of((await chat(double, max_tokens=7, stream=True)).body)
    text = "".join(c["delta"].get("content") or "" for e in stream for c in e.get("choices", []))
    assert plain["choices"][0]["message"]["content"] == text
    assert plain["usage"]["completion_tokens"] == 7
    assert plain["choices"][0]["finish_reason"] == "length"


@ALL
async def test_usage_comes_in_a_stream_when_it_is_asked_for(kind: str) -> None:
    async with running(Double(kind, speed=1000)) as double:
        asked = data_of((await chat(double, stream=True, stream_options={"include_usage": True})).body)
        bare = data_of((await chat(double, stream=True)).body)
    assert any(e.get("usage") for e in asked)
    assert not any(e.get("usage") for e in bare)


@pytest.mark.parametrize("kind", ["llamacpp", "vllm", "sglang", "mlx-lm", "llama-swap"])
async def test_a_repeated_prompt_is_reported_as_cached(kind: str) -> None:
    long = {"messages": [{"role": "user", "content": "Tell me of the sea. " * 60}]}
    async with running(Double(kind, speed=1000)) as double:
        model = double.names[0]
        came = [(await ask(double, CHAT, {"model": model, **long})).json for _ in range(2)]
    cached = [c["usage"]["prompt_tokens_details"]["cached_tokens"] for c in came]
    assert cached[0] == 0
    assert cached[1] > 200


async def test_ollama_never_says_what_its_cache_had() -> None:
    async with running(Double("ollama", speed=1000)) as double:
        for _ in range(2):
            body = {"model": double.names[0], "input": "Tell me of the sea. " * 60}
            came = await ask(double, "/v1/responses", body)
            assert came.json["usage"]["input_tokens_details"]["cached_tokens"] == 0


@pytest.mark.parametrize("kind", ["llamacpp", "vllm", "sglang", "ollama", "llama-swap"])
@pytest.mark.parametrize(
    ("path", "last"),
    [
        ("/v1/messages", b"event: message_stop"),
        ("/v1/responses", b"event: response."),
        ("/v1/completions", b"data: [DONE]"),
    ],
)
async def test_the_other_apis_stream_too(kind: str, path: str, last: bytes) -> None:
    async with running(Double(kind, speed=1000)) as double:
        body = {"model": double.names[0], **HI, "prompt": "x", "input": "x", "stream": True, "max_tokens": 9}
        came = await ask(double, path, body)
    assert came.whole
    assert last in came.body[-3000:]


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
async def test_ollamas_own_api_streams_unless_told_otherwise(path: str) -> None:
    async with running(Double("ollama", speed=1000)) as double:
        body = {"model": double.names[0], **HI, "prompt": "x", "options": {"num_predict": 5}}
        came = await ask(double, path, body)
        lines = [json.loads(line) for line in came.body.splitlines()]
        plain = (await ask(double, path, {**body, "stream": False})).json
    assert [line["done"] for line in lines] == [False] * 5 + [True]
    assert lines[-1]["eval_count"] == plain["eval_count"] == 5
    assert lines[-1]["done_reason"] == "length"


@pytest.mark.parametrize("kind", ["llamacpp", "vllm", "ollama"])
@pytest.mark.parametrize("embeds", [True, False])
async def test_a_server_for_embeddings_embeds_and_another_refuses(kind: str, embeds: bool) -> None:
    async with running(Double(kind, speed=1000, embeds=embeds)) as double:
        came = await ask(double, "/v1/embeddings", {"model": double.names[0], "input": "harbour"})
        assert (came.status == 200) is embeds
        assert free(double)


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("vllm", 404),
        ("ollama", 404),
        ("llama-swap", 404),
        ("llamacpp-router", 400),
        ("llamacpp", 200),
        ("sglang", 200),
    ],
)
async def test_an_unknown_model_is_refused_or_served_as_recorded(kind: str, status: int) -> None:
    async with running(Double(kind, speed=1000)) as double:
        came = await ask(double, CHAT, {"model": "no/such", **HI})
        assert came.status == status
        if status != 200 and kind != "llama-swap":
            assert b"no/such" in came.body


@ALL
@pytest.mark.parametrize("body", [b"{", b"[]", b"\xff", b"[" * 9999])
async def test_what_is_no_json_object_is_an_error_of_the_engine(kind: str, body: bytes) -> None:
    async with running(Double(kind, speed=1000)) as double:
        assert (await ask(double, CHAT, body)).status >= 400
        assert free(double)


async def test_a_chunked_request_and_an_expectation_are_understood() -> None:
    async with running(Double("vllm", speed=1000)) as double, talk(double) as t:
        body = json.dumps({"model": "smollm2", **HI}).encode()
        t.writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
            b"Expect: 100-continue\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
        )
        assert (await t.head()).startswith("HTTP/1.1 100")
        assert (await t.came()).status == 200


async def test_mlx_lm_speaks_http_1_0() -> None:
    async with running(Double("mlx-lm", speed=1000)) as double:
        came = await chat(double, stream=True)
    assert came.head.startswith("HTTP/1.0 200")
    assert came.body.startswith(b": keepalive")
    assert came.body.endswith(b"data: [DONE]\n\n")


async def test_a_seed_and_a_clock_make_a_reply_the_same_to_the_last_byte() -> None:
    async def reply() -> bytes:
        async with running(Double("vllm", speed=1000, seed=7, wall=lambda: 1_800_000_000.0)) as double:
            return (await chat(double, stream=True)).body

    assert await reply() == await reply()


# -- memory ------------------------------------------------------------------------------------


async def loaded(double: Double) -> list[str]:
    return [m["name"] for m in (await ask(double, "/api/ps")).json["models"]]


async def test_ollama_does_not_list_a_model_that_is_being_loaded() -> None:
    async with running(Double("ollama", loaded=(), speed=0.001)) as double, talk(double) as t:
        await t.ask("/api/chat", {"model": "smollm2:135m", **HI})
        await until(lambda: double.machine.waiting() == 1)
        assert await loaded(double) == []
        assert await t.silent()


async def test_ollama_lists_a_model_once_it_is_loaded() -> None:
    async with running(Double("ollama", loaded=(), speed=1000)) as double:
        await ask(double, "/api/chat", {"model": "smollm2:135m", **HI})
        assert await loaded(double) == ["smollm2:135m"]


async def test_ollama_loads_without_a_prompt_and_unloads_with_keep_alive_0() -> None:
    async with running(Double("ollama", loaded=(), speed=100)) as double:
        model = double.names[0]
        came = await ask(double, "/api/generate", {"model": model})
        assert came.json["done_reason"] == "load"
        assert await loaded(double) == [model]
        came = await ask(double, "/api/generate", {"model": model, "keep_alive": 0})
        assert came.json["done_reason"] == "unload"
        assert await loaded(double) == []


async def test_ollama_evicts_for_a_third_model() -> None:
    async with running(Double("ollama", models=("a:1", "b:1", "c:1"), speed=100)) as double:
        for model in ("b:1", "c:1"):
            await ask(double, "/api/chat", {"model": model, **HI, "stream": False})
        assert set(await loaded(double)) == {"b:1", "c:1"}


async def test_ollama_repeats_a_name_as_it_was_asked() -> None:
    async with running(Double("ollama", speed=1000)) as double:
        came = await ask(double, "/api/chat", {"model": "smollm2-b", **HI, "stream": False})
        assert came.json["model"] == "smollm2-b"


async def test_a_full_queue_of_ollama_is_a_503_in_the_apis_shape() -> None:
    physics = replace(PHYSICS["ollama"], max_waiting_for_load=0)
    async with running(Double("ollama", loaded=(), physics=physics)) as double:
        native = await ask(double, "/api/chat", {"model": double.names[0], **HI})
        openai = await chat(double)
        anthropic = await ask(double, "/v1/messages", {"model": double.names[0], **HI, "max_tokens": 5})
    assert [c.status for c in (native, openai, anthropic)] == [503] * 3
    assert isinstance(native.json["error"], str)
    assert openai.json["error"]["type"] == "api_error"
    assert anthropic.json["error"]["type"] == "overloaded_error"


async def test_llama_swaps_limit_is_a_429_with_retry_after() -> None:
    physics = replace(PHYSICS["llama-swap"], max_outstanding=0)
    async with running(Double("llama-swap", physics=physics)) as double:
        came = await chat(double)
    assert (came.status, came.header("retry-after")) == (429, "1")


async def test_a_routers_page_that_names_a_model_loads_it_and_evicts_another() -> None:
    async with running(Double("llamacpp-router", speed=1000)) as double:
        await ask(double, "/props?model=smollm2-b&autoload=false")
        assert set(double.machine.residents) == {"smollm2"}
        await ask(double, "/props?model=smollm2-b")
        assert set(double.machine.residents) == {"smollm2-b"}


# -- people ------------------------------------------------------------------------------------


async def test_it_says_where_it_is_what_it_plays_and_how_to_ask_it() -> None:
    async with running(Double("vllm", models=("it's",), speed=20)) as double:
        said = introduction(double)
        assert said.startswith(f"{double.url} plays vLLM v0.32.0 with it's: 4 slot(s), 20 times as fast.")
        assert f"curl -N {double.url}/v1/chat/completions" in said
        assert "it'\\''s" in said


def test_an_unknown_kind_names_those_there_are() -> None:
    with pytest.raises(ValueError, match="no double of 'lmstudio'; there are llamacpp"):
        Double("lmstudio")


def test_without_the_recordings_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(NoRecording, match="run from a checkout"):
        read_bytes("vllm/v0.32.0/idle/paths.tsv", tmp_path)


@pytest.mark.parametrize(
    "junk",
    [b"\x16\x03\x01\r\n\r\n", b"GET /\r\n\r\n", b"POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n"],
)
async def test_what_is_no_http_ends_the_connection_and_nothing_else(junk: bytes) -> None:
    async with running(Double("vllm", speed=1000)) as double:
        async with talk(double) as t:
            t.writer.write(junk)
            assert await t.closed()
        assert (await chat(double)).status == 200


async def test_many_streams_at_once_all_end_and_give_their_slots_back() -> None:
    async with running(Double("llamacpp", speed=2000)) as double:
        came = await asyncio.gather(*(chat(double, stream=True) for _ in range(60)))
        assert all(c.whole for c in came)
        await until(lambda: free(double) and double.connections == 0)
