"""Every number the doubles assume, with where it comes from.

A double's bodies are recordings; only its time, memory and cache are models, and these are their
parameters. All were measured on two CPU cores with a model of 135 M parameters, so they are slow for an
engine and small for a model: set others (`dataclasses.replace`) to imitate a GPU. "NOTES" below is the
summary of the measurements that came with `fixtures/captures/`; `measure.txt` there has the raw numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class CacheKind(StrEnum):
    PER_SLOT = "per slot"  # a prefix held by a busy slot is of no use to others
    SHARED = "shared"  # one cache for all, also with requests still running


@dataclass(frozen=True, slots=True)
class Physics:
    """What the machine behind a double can do. Seconds, tokens, bytes."""

    slots: int  # requests worked on at a time, per loaded model
    prefill_s_per_token: float
    decode_s_per_token: float  # alone
    decode_share: float  # each further stream adds this part of decode_s_per_token; 0: batching is free
    prefill_stalls_decode: bool  # running streams wait while a prompt is computed
    batch_tokens: int  # a prefill whose client left goes on to the end of its batch
    cache: CacheKind
    cache_block_tokens: int  # a shared prefix counts in whole blocks
    cache_tokens: int  # of one loaded model: the size of its KV cache
    load_s: float
    unload_s: float
    model_bytes: int
    memory_bytes: int
    max_loaded: int  # models in memory at a time, whatever the memory
    keep_alive_s: float | None = None  # an idle model is unloaded after it; None: never
    max_outstanding: int | None = None  # running and waiting, per model; more are refused
    max_waiting_for_load: int | None = None  # requests of models not in memory; more are refused
    overtaking: bool = True  # requests of a loaded model pass those that wait for its eviction
    load_ends_with_client: bool = False  # a load whose request left is thrown away
    plain_outlives_client: bool = False  # a plain request runs to its end though its client left
    waiting_outlives_client: bool = False  # a waiting one keeps its place in the queue though its client left


BYTES_PER_TOKEN = 4
"""Of English text; no source but the usual rule. SmolLM2 makes 31 tokens of a system prompt of 130 bytes."""

MIN_SLOT_SIMILARITY = 0.1
"""llama.cpp takes the slot whose cached part of the prompt is larger (`-sps`; NOTES 10, b10434)."""

_WEIGHTS = 96_576_768
"""`meta.size` of /v1/models for SmolLM2-135M Q4_1 (llamacpp/b11434/idle)."""

_LLAMACPP = Physics(
    slots=4,  # -np 4 of the recorded command line
    prefill_s_per_token=0.0044,  # NOTES 2: 4.3 to 5.5 ms, 4.4 at 1200 tokens (b10434, one thread)
    decode_s_per_token=0.008,  # NOTES 2: 7 to 10 ms
    decode_share=1.04,  # NOTES 2: 18 ms for two streams, 33 for four
    prefill_stalls_decode=True,  # NOTES 2: 3 to 6 chunks in 10 to 25 s beside a prefill of 3500 tokens
    batch_tokens=2048,  # NOTES 2
    cache=CacheKind.PER_SLOT,  # NOTES 1.10
    cache_block_tokens=1,
    cache_tokens=16_384,  # -c 16384
    load_s=0.6,  # NOTES 2: exec to /health 200 in 0.4 to 0.8 s
    unload_s=0.0,
    model_bytes=_WEIGHTS,
    memory_bytes=24 * 2**30,  # the host
    max_loaded=1,
    plain_outlives_client=True,  # NOTES 1.1: 600 of 600 tokens
    waiting_outlives_client=True,  # NOTES llama-swap 14: stays in requests_deferred until a slot is free
)

_ROUTER = Physics(
    slots=2,  # --parallel 2 of the recorded children
    prefill_s_per_token=_LLAMACPP.prefill_s_per_token,
    decode_s_per_token=_LLAMACPP.decode_s_per_token,
    decode_share=_LLAMACPP.decode_share,
    prefill_stalls_decode=True,
    batch_tokens=2048,
    cache=CacheKind.PER_SLOT,
    cache_block_tokens=1,
    cache_tokens=8192,  # -c 8192
    load_s=0.9,  # NOTES 3: unloaded to loaded in 0.3 to 1.5 s
    unload_s=0.0,
    model_bytes=_WEIGHTS,
    memory_bytes=24 * 2**30,
    max_loaded=1,  # --models-max 1
    plain_outlives_client=True,
    waiting_outlives_client=False,  # no source: the router's own queue was not looked at
    # NOTES 1.9: b11434 lets a request for another model wait for the busy one (> 60 s seen).
    # Whether later requests pass it was not measured.
    overtaking=True,
)

_VLLM = Physics(
    slots=4,  # --max-num-seqs 4
    prefill_s_per_token=0.00115,  # NOTES 2: at 1200 to 2200 tokens (0.32.0)
    decode_s_per_token=0.023,  # NOTES 2: 20 to 26 ms
    decode_share=0.0,  # NOTES 2: 21 and 22 ms for two and four streams
    prefill_stalls_decode=False,  # chunked prefill: a step carries both
    batch_tokens=2048,  # NOTES 1.6: its chunk
    cache=CacheKind.SHARED,  # NOTES 1.10
    cache_block_tokens=128,  # NOTES 1.10: on CPU; 16 is usual on GPUs
    cache_tokens=728 * 128,  # blocks x tokens in vllm:cache_config_info (vllm/v0.32.0/busy)
    load_s=30.0,  # NOTES 2: 24 to 36 s
    unload_s=0.0,
    model_bytes=269_030_016,  # 134,515,008 parameters (llamacpp/b11434/idle) in bf16
    memory_bytes=24 * 2**30,
    max_loaded=1,
)

_SGLANG = Physics(
    slots=2,  # --max-running-requests 2
    prefill_s_per_token=0.00095,  # NOTES SGLang: 0.8 to 1.1 ms
    decode_s_per_token=0.033,  # NOTES SGLang: 30 to 37 ms
    decode_share=0.0,  # batched; the gen_throughput of two streams is twice that of one
    prefill_stalls_decode=False,  # no source: chunks of 2048 tokens were seen
    batch_tokens=2048,  # NOTES S1.4
    cache=CacheKind.SHARED,  # NOTES S3: one radix tree, shared with a request that is decoding
    cache_block_tokens=1,  # NOTES S3: exact to the token
    cache_tokens=20_000,  # --max-total-tokens 20000
    load_s=37.0,  # NOTES S2: refused for 29 to 46 s
    unload_s=0.0,
    model_bytes=269_030_016,
    memory_bytes=24 * 2**30,
    max_loaded=1,
)

_OLLAMA = Physics(
    slots=2,  # OLLAMA_NUM_PARALLEL=2
    prefill_s_per_token=0.0031,  # NOTES O4: 6643 ms for 2113 tokens (0.32.15)
    decode_s_per_token=0.0065,  # NOTES Ollama: when quiet
    decode_share=1.04,  # no source of its own: 0.32.15 runs llama-server
    prefill_stalls_decode=True,  # NOTES O5: 10 chunks in 9 s
    batch_tokens=1024,  # NOTES O5: 1024 to 1038 tokens after the client left
    cache=CacheKind.PER_SLOT,  # NOTES O5
    cache_block_tokens=1,
    cache_tokens=8192,  # -c 8192 of the runner
    load_s=0.65,  # NOTES O2: a cold start of 0.5 to 0.8 s
    unload_s=0.04,  # NOTES O2: 20 to 60 ms
    model_bytes=322_437_118,  # `size` of /api/ps (ollama/v0.32.15/two-loaded)
    memory_bytes=24 * 2**30,
    max_loaded=2,  # NOTES O7: 0.32.15 keeps two on a CPU
    keep_alive_s=300.0,  # NOTES O2
    max_waiting_for_load=513,  # NOTES O1.5: one in work and OLLAMA_MAX_QUEUE, 512
    overtaking=True,  # NOTES O1.6
    load_ends_with_client=True,  # NOTES O1.4
)

_LLAMA_SWAP = Physics(
    slots=2,  # -np 2 of the recorded children
    prefill_s_per_token=0.0043,  # `prompt_per_token_ms` of llama-swap/v250/streams/chat.json
    decode_s_per_token=0.0065,  # `predicted_per_token_ms` of the same
    decode_share=1.04,
    prefill_stalls_decode=True,
    batch_tokens=2048,
    cache=CacheKind.PER_SLOT,
    cache_block_tokens=1,
    cache_tokens=4096,  # -c 4096
    load_s=0.85,  # NOTES llama-swap 4: 0.44 or 1.25 s
    unload_s=0.05,  # NOTES llama-swap 7
    model_bytes=_WEIGHTS,
    memory_bytes=24 * 2**30,
    max_loaded=1,  # its models swap unless grouped
    max_outstanding=10,  # NOTES llama-swap 8
    overtaking=True,  # NOTES llama-swap 7: v250 starves the waiting model
    plain_outlives_client=True,  # NOTES llama-swap 15
)

_MLX_LM = Physics(
    slots=4,  # --decode-concurrency 4
    prefill_s_per_token=0.055,  # NOTES 2: 50 to 65 ms
    decode_s_per_token=0.105,  # NOTES 2: 102 to 110 ms
    decode_share=0.9,  # NOTES 2: 202 ms for two streams, 375 to 393 for four
    prefill_stalls_decode=True,  # no source
    batch_tokens=2048,  # NOTES 5: runs to its end
    cache=CacheKind.SHARED,  # no source of how it is shared; NOTES 2 has it warm when idle
    cache_block_tokens=1,
    cache_tokens=16_384,  # no source
    load_s=0.43,  # NOTES 8: a reload costs 0.74 instead of 0.31 s
    unload_s=0.0,
    model_bytes=75_000_000,  # the weights at 4 bit
    memory_bytes=24 * 2**30,
    max_loaded=1,
    plain_outlives_client=True,  # NOTES 1.1
)

PHYSICS = {
    "llamacpp": _LLAMACPP,
    "llamacpp-router": _ROUTER,
    "vllm": _VLLM,
    "sglang": _SGLANG,
    "ollama": _OLLAMA,
    "llama-swap": _LLAMA_SWAP,
    "mlx-lm": _MLX_LM,
}
