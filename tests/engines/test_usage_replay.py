"""Token usage of every recorded reply, line by line, against an oracle that knows nothing of paths."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from engines.usage import Api, Usage, merge, read_usage
from tests.engines.recorded_usage import ALL, Reply, oracle, untrue


def read_reply(reply: Reply) -> Usage:
    usage: Usage | None = None
    for line in lines_of(reply.body):
        usage = merge(usage, read_usage(line, reply.api, untrue(reply.engine)))
    return usage or Usage()


def lines_of(body: bytes) -> list[bytes]:
    """The lines of a stream; a plain reply is one line, however it is laid out."""
    if body.lstrip().startswith(b"{") and b"\n{" not in body:
        return [body]
    return [line.removeprefix(b"data:").strip() for line in body.split(b"\n")]


COUNTS = {"prompt_tokens", "completion_tokens"}
CACHED = COUNTS | {"cached_tokens"}
TIMED = CACHED | {"prefill_s", "decode_s"}
NATIVE = COUNTS | {"prefill_s", "decode_s", "load_s", "total_s"}
EMBED = COUNTS | {"load_s", "total_s"}

LLAMACPP = {
    Api.CHAT: TIMED,
    Api.COMPLETIONS: TIMED,
    Api.EMBEDDINGS: COUNTS,
    Api.MESSAGES: CACHED,
    Api.RESPONSES: TIMED,
}
LLAMA_SWAP = {**LLAMACPP, Api.EMBEDDINGS: set()}  # the model behind it was no embedding model
OLLAMA = {
    Api.CHAT: COUNTS,
    Api.COMPLETIONS: COUNTS,
    Api.EMBEDDINGS: COUNTS,
    Api.MESSAGES: COUNTS,
    Api.RESPONSES: COUNTS,
    Api.OLLAMA: NATIVE,
    Api.OLLAMA_EMBED: EMBED,
}
VLLM = {
    Api.CHAT: CACHED,
    Api.COMPLETIONS: CACHED,
    Api.EMBEDDINGS: COUNTS,
    Api.MESSAGES: CACHED,
    Api.RESPONSES: CACHED,
}

REPORTED = {
    "llama-swap/v250": LLAMA_SWAP,
    "llama-swap/v250-5-g0bdb37": LLAMA_SWAP,
    "llamacpp/b9093": {**LLAMACPP, Api.RESPONSES: CACHED},
    "llamacpp/b10092": LLAMACPP,
    "llamacpp/b10434": LLAMACPP,
    "llamacpp/b11434": LLAMACPP,
    "mlx-lm/v0.32.2": {Api.CHAT: CACHED, Api.COMPLETIONS: CACHED},
    "ollama/v0.24.0": OLLAMA,
    "ollama/v0.32.15": OLLAMA,
    "sglang/v0.5.23": {
        Api.CHAT: CACHED,
        Api.COMPLETIONS: CACHED,
        Api.MESSAGES: CACHED,
        Api.RESPONSES: CACHED,
        Api.OLLAMA: COUNTS | {"total_s"},
    },
    # no cache fields in its /v1/messages, no long enough prompt in its completions, no embedding model
    "vllm/v0.20.0": {**VLLM, Api.COMPLETIONS: COUNTS, Api.MESSAGES: COUNTS, Api.EMBEDDINGS: set()},
    "vllm/v0.32.0": VLLM,
}
"""The fields that each engine version has reported at least once, by API."""


def test_each_recorded_reply_reads_as_the_engine_wrote_it() -> None:
    wrong = [
        f"{r.engine}/{r.version}/{r.name} ({r.api}): {read_reply(r)} instead of {oracle(r)}"
        for r in ALL
        if read_reply(r) != oracle(r)
    ]
    assert wrong == []


def test_each_engine_version_reports_what_the_table_says() -> None:
    reported: dict[str, dict[Api, set[str]]] = {}
    for reply in ALL:
        known = reported.setdefault(f"{reply.engine}/{reply.version}", {}).setdefault(reply.api, set())
        known |= {name for name, value in asdict(read_reply(reply)).items() if value is not None}
    for version, apis in reported.items():
        assert {a: k for a, k in apis.items() if k} == {a: k for a, k in REPORTED[version].items() if k}, (
            version
        )
    assert set(reported) == set(REPORTED)


def test_the_recordings_are_all_there() -> None:
    assert len(ALL) > 1000
    assert {r.api for r in ALL} == set(Api)


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("llamacpp/b10434/streams/chat-stream.sse", Usage(41, 29, 0, 0.166904, 0.312042)),
        ("ollama/v0.32.15/streams/messages-stream.sse", Usage(20, 24)),
        ("ollama/v0.32.15/streams/completion-stream-usage.sse", Usage(14, 14)),
        ("ollama/v0.24.0/killed-runner/messages-stream.sse", Usage()),
        ("sglang/v0.5.23/streams/messages-stream.sse", Usage(41, 24, 40)),
        ("sglang/v0.5.23/queue-limit/refused-responses-stream.sse", Usage()),
        ("vllm/v0.32.0/streams/messages-prefix-warm.sse", Usage(2109, 16, 2048)),
        ("vllm/v0.20.0/streams/messages-prefix-warm.sse", Usage(2109, 16)),
        ("vllm/v0.32.0/streams/chat-stream.sse", Usage()),
        ("vllm/v0.32.0/embeddings-mode/streams/embeddings.json", Usage(4, 0)),
        ("mlx-lm/v0.32.2/streams/body-escaped.json", Usage(54, 24, 53)),
    ],
)
def test_some_replies_read_by_eye(file: str, expected: Usage) -> None:
    (reply,) = (r for r in ALL if f"{r.engine}/{r.version}/{r.name}" == file)
    assert read_reply(reply) == expected
