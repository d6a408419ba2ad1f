"""Token usage of every recorded reply, against an oracle that knows nothing of paths: it looks for the
last number behind each name in the raw bytes."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from engines.recipes import RECIPES
from engines.usage import API_OF_PATH, Api, Usage, merge, read_usage
from tests.engines.replay import CAPTURES

SUFFIXES = (".sse", ".ndjson", ".json", ".body")
KINDS = {"mlx-lm": "openai"}


@dataclass(frozen=True)
class Reply:
    engine: str
    version: str
    name: str  # path below the version's folder
    api: Api
    body: bytes


def replies() -> Iterator[Reply]:
    """Every recorded reply to a request that can cost tokens: those that replies.tsv lists, then the rest."""
    seen: set[Path] = set()
    for table in sorted(CAPTURES.rglob("replies.tsv")):
        with table.open(newline="") as rows:
            for row in csv.DictReader(rows, delimiter="\t"):
                found = [table.parent / (row["name"] + s) for s in SUFFIXES]
                seen.update(found)
                if api := API_OF_PATH.get(row["path"].removeprefix("/upstream/smollm2-a")):
                    yield from (_reply(f, api) for f in found if f.exists())
    for file in sorted(CAPTURES.rglob("*")):
        if file.suffix in (".sse", ".ndjson") and file not in seen:
            yield _reply(file, Api.OLLAMA if file.suffix == ".ndjson" else Api.CHAT)


def _reply(file: Path, api: Api) -> Reply:
    engine, version, *rest = file.relative_to(CAPTURES).parts
    return Reply(engine, version, "/".join(rest), api, file.read_bytes())


def untrue(engine: str) -> frozenset[str]:
    return RECIPES[KINDS.get(engine, engine)].untrue_usage


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


# -- the oracle --------------------------------------------------------------------------------


def last(name: str, text: bytes, number: bytes = rb"\d+") -> int | None:
    found = re.findall(rb'"%s":\s*(%s)[,}\s]' % (name.encode(), number), text)
    return int(found[-1]) if found else None


def last_float(name: str, text: bytes) -> float | None:
    found = re.findall(rb'"%s":\s*([-\d.eE+]+)' % name.encode(), text)
    return float(found[-1]) if found else None


def anthropic_prompt(reply: Reply) -> int | None:
    prompt = None
    for line in reply.body.split(b"\n"):
        fresh = last("input_tokens", line)
        if fresh is None or (reply.engine == "ollama" and b"message_start" in line):
            continue
        prompt = fresh + (last("cache_read_input_tokens", line) or 0)
        prompt += last("cache_creation_input_tokens", line) or 0
    return prompt


def oracle(reply: Reply) -> Usage:
    text = reply.body
    prompt_n, cache_n = last("prompt_n", text), last("cache_n", text)
    timed = None if prompt_n is None or cache_n is None else prompt_n + cache_n
    cached: int | None = None
    if reply.api in (Api.OLLAMA, Api.OLLAMA_EMBED):
        prompt, written = last("prompt_eval_count", text), last("eval_count", text)
    elif reply.api is Api.MESSAGES:
        prompt, cached = anthropic_prompt(reply), last("cache_read_input_tokens", text)
        ended = b"\n".join(line for line in text.split(b"\n") if b"message_start" not in line)
        written = last("output_tokens", ended)
    elif reply.api is Api.RESPONSES:
        prompt, written = last("input_tokens", text), last("output_tokens", text)
        cached = None if reply.engine == "ollama" else last("cached_tokens", text)
    else:
        prompt, written = last("prompt_tokens", text), last("completion_tokens", text)
        cached = last("cached_tokens", text)
    if prompt is None:
        prompt, written, cached = timed, last("predicted_n", text), cache_n
    if reply.api in (Api.EMBEDDINGS, Api.OLLAMA_EMBED):
        written = None if prompt is None else 0
    if prompt == 0:
        prompt = written = cached = None
    return Usage(prompt, written, cached, *times(reply))


OLLAMA_TIMES = ("prompt_eval_duration", "eval_duration", "load_duration", "total_duration")
LLAMACPP_TIMES = ("prompt_ms", "predicted_ms")


def times(reply: Reply) -> tuple[float | None, ...]:
    """prefill, decode, load, total in seconds."""
    if reply.api in (Api.OLLAMA, Api.OLLAMA_EMBED):
        return tuple(None if (v := last(n, reply.body)) is None else v / 1e9 for n in OLLAMA_TIMES)
    return tuple(None if (ms := last_float(n, reply.body)) is None else ms / 1e3 for n in LLAMACPP_TIMES)


ALL = list(replies())

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
