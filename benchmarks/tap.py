"""What watching a reply costs: per piece of a stream where nothing is to be read, and where something is."""

from __future__ import annotations

import time
from collections.abc import Callable

from benchmarks.reading import CAPTURES
from benchmarks.report import Figure, figure
from engines.usage import Api
from gateway.proxy.apis import ANTHROPIC, OLLAMA, OPENAI, RESPONSES, Family, Framing
from gateway.proxy.tap import MAX_WHOLE, Stream, Whole

ROUNDS = 400
PIECES = 200  # in a round: a clock that is read for each piece would cost as much as the piece
BUDGET_US = 3.0

STREAMS: dict[str, tuple[str, Family, Api]] = {
    "chat, vLLM": ("vllm/v0.32.0/streams/chat-stream-usage.sse", OPENAI, Api.CHAT),
    "chat, llama.cpp": ("llamacpp/b10434/streams/chat-stream-usage.sse", OPENAI, Api.CHAT),
    "Messages, llama.cpp": ("llamacpp/b10434/streams/messages-stream.sse", ANTHROPIC, Api.MESSAGES),
    "Responses, vLLM": ("vllm/v0.32.0/streams/responses-stream.sse", RESPONSES, Api.RESPONSES),
    "/api/chat, Ollama": ("ollama/v0.32.15/streams/api-chat-stream.ndjson", OLLAMA, Api.OLLAMA),
}


def measure() -> list[Figure]:
    note = f"one token each, whole events, usage asked for by Pharos; budget {BUDGET_US:g} µs"
    figures = [
        figure(f"tap, a piece of {name}", "µs", per_piece(*stream), note=note)
        for name, stream in STREAMS.items()
    ]
    figures.append(
        figure("tap, from the finish to the end", "µs", tail(), note="usage read, its chunk left out")
    )
    for size, name in ((200_000, "200 kB"), (MAX_WHOLE - 100, "4 MiB, the largest that is read")):
        figures.append(
            figure(f"tap, a plain reply of {name}", "µs", plain(size), note="loop time at its end")
        )
    return figures


def events(file: str, framing: Framing) -> list[bytes]:
    gap = b"\n\n" if framing is Framing.SSE else b"\n"
    return [part + gap for part in (CAPTURES / file).read_bytes().split(gap) if part]


def per_piece(file: str, family: Family, api: Api) -> list[float]:
    """The piece in the middle of a stream whose first token has come. Microseconds."""
    recorded = events(file, family.framing)
    middle = len(recorded) // 2
    tap = Stream(family.framing, family, api, strip=True)
    for event in recorded[:middle]:
        tap.feed(event)
    piece = recorded[middle]

    def round_of_pieces() -> None:
        for _ in range(PIECES):
            tap.feed(piece)

    return [micros(round_of_pieces) / PIECES for _ in range(ROUNDS)]


def tail() -> list[float]:
    """The last three events of a chat: the finish, the usage chunk, and `[DONE]`. Microseconds."""
    file, family, api = STREAMS["chat, llama.cpp"]
    recorded = events(file, family.framing)
    times = []
    for _ in range(ROUNDS):
        tap = Stream(family.framing, family, api, strip=True)
        for event in recorded[:-3]:
            tap.feed(event)
        times.append(micros(lambda t=tap: [t.feed(event) for event in recorded[-3:]]))  # type: ignore[misc]
        assert tap.reading.usage.prompt_tokens == 41
    return times


def plain(size: int) -> list[float]:
    """Microseconds."""
    body = b'{"usage":{"prompt_tokens":5},"choices":[{"message":{"content":"' + b"word " * (size // 5)
    body = body[: size - 5] + b'"}}]}'
    times = []
    for _ in range(20):
        tap = Whole(Api.CHAT)
        tap.feed(body)
        times.append(micros(tap.end))
        assert tap.reading.usage.prompt_tokens == 5
    return times


def micros(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1e6
