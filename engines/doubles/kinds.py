"""What each kind of double imitates: which recording, and how that engine behaves around it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class HeadersAt(StrEnum):
    """When a stream's response headers leave."""

    ONCE = "at once, also while queued"
    SLOT = "with a slot, before the first token"
    FIRST_TOKEN = "with the first token"


@dataclass(frozen=True, slots=True)
class Imitation:
    """Sources: the notes of the measurements beside the recordings, by section."""

    kind: str
    title: str
    recording: str  # <engine>/<version>
    headers_at: HeadersAt
    names: tuple[str, ...]  # of the models, unless told otherwise
    idle: str = "idle"  # the recorded state whose pages are cloned
    streams: str = "streams"  # where its refusals were recorded; whole replies are always in `streams`
    loading: str | None = None  # the recorded state whose pages are answered while the one model loads
    one_process: bool = True  # one model, whatever its names
    refuses_unknown: bool = False  # False: serves a model it does not know
    echoes_name: bool = False  # the reply repeats the name that was asked
    idle_close_s: float | None = None  # idle connections are closed after it
    closes_after_stream: bool = False
    keep_alive: str | None = None  # a header of replies on a connection that stays open
    counts_cache: bool = True
    guesses_input: bool = False  # of a messages stream, before it has counted
    unload_at_zero: bool = False  # keep_alive 0 unloads


KINDS = {
    k.kind: k
    for k in (
        Imitation(
            "llamacpp",
            "llama.cpp",
            "llamacpp/b11434",
            HeadersAt.SLOT,  # 1.2
            ("smollm2",),
            loading="loading",
            idle_close_s=5.0,  # 9
            closes_after_stream=True,  # llama-swap 13
            keep_alive="timeout=5, max=100",
        ),
        Imitation(
            "llamacpp-router",
            "llama.cpp in router mode",
            "llamacpp/b11434",
            HeadersAt.SLOT,
            ("smollm2", "smollm2-b"),
            idle="router-loaded",
            streams="router-streams",
            one_process=False,
            refuses_unknown=True,  # 8
            echoes_name=True,
            idle_close_s=5.0,
            closes_after_stream=True,
            keep_alive="timeout=5, max=100",
        ),
        Imitation(
            "vllm",
            "vLLM",
            "vllm/v0.32.0",
            HeadersAt.ONCE,  # 1.2
            ("smollm2",),
            refuses_unknown=True,
            echoes_name=True,
            idle_close_s=5.0,  # 9
        ),
        Imitation(
            "sglang",
            "SGLang",
            "sglang/v0.5.23",
            HeadersAt.FIRST_TOKEN,  # S1.1
            ("smollm2",),
            echoes_name=True,  # S1.7
            idle_close_s=5.0,  # S5
        ),
        Imitation(
            "ollama",
            "Ollama",
            "ollama/v0.32.15",
            HeadersAt.FIRST_TOKEN,  # O1.2
            ("smollm2:135m", "smollm2-b:latest"),
            one_process=False,
            refuses_unknown=True,
            echoes_name=True,  # O3
            counts_cache=False,  # O4
            guesses_input=True,  # O4
            unload_at_zero=True,  # O2
        ),
        Imitation(
            "llama-swap",
            "llama-swap",
            "llama-swap/v250",
            HeadersAt.SLOT,  # llama-swap 4, and the engine behind it
            ("smollm2-a", "smollm2-b"),
            one_process=False,
            refuses_unknown=True,
        ),
        Imitation(
            "mlx-lm",
            "mlx-lm",
            "mlx-lm/v0.32.2",
            HeadersAt.ONCE,  # 6: the rest get headers and then nothing
            ("/srv/smollm2",),
            refuses_unknown=True,  # 8: tries to download it
            echoes_name=True,
        ),
    )
}
