"""vLLM: its load is in /metrics, one engine step late; its limit of requests is nowhere but in the log.

Seen on 0.20.0 and 0.32.0. The gauges are written when a step ends: a request in its first prefill step
(seconds, for a long prompt) is counted neither as running nor as waiting, and a burst shows up as
running 1 until its first step is over. They never say more than there is. Nothing listens until the
engine is ready, so a vLLM that answers has its model in memory unless it was put to sleep.

`/load` is no probe: without --enable-server-load-tracking it answers 200 and 0, whatever is running,
and nothing tells that 0 from a true one. `/health` says nothing that the list of models does not.

One process is one engine for one model: served under several names, or with adapters, they all share
its places and its cache. So its load is the whole backend's, not that of the name in the label.
"""

from __future__ import annotations

import math

import msgspec

from engines.probes import Path, Probe, ProbeError, json_probe, log_line, prom, samples
from engines.recipes.base import Findings, PromptCache, Recipe
from engines.recipes.common import OPENAI_MODELS, owned_by
from engines.signals import WHOLE_BACKEND, Reading, Residency, Signal

VERSION = Path("/version", "a constant, answered in 1 ms also during prefills; open without an API key")
METRICS = Path("/metrics", "renders counters kept anyway: 3 to 9 ms, 53 to 67 kB, never blocked by a prefill")


class Version(msgspec.Struct):
    version: str | None = None


def _version(body: Version) -> Reading | None:
    return {WHOLE_BACKEND: body.version} if body.version else None


VLLM_VERSION = json_probe("vllm-version", Signal.VERSION, VERSION, Version, _version)

# By exact name: `vllm:num_requests_waiting_by_reason` repeats the value of `vllm:num_requests_waiting`.
VLLM_RUNNING = prom("vllm-running", METRICS, Signal.RUNNING, "vllm:num_requests_running")
VLLM_WAITING = prom("vllm-waiting", METRICS, Signal.WAITING, "vllm:num_requests_waiting")
# 0..1 in spite of its name. 0.10 has both names, 0.11 and later the first, older ones the second.
VLLM_KV = prom("vllm-kv-cache-usage-perc", METRICS, Signal.KV_USAGE, "vllm:kv_cache_usage_perc")
VLLM_KV_OLD = prom("vllm-gpu-cache-usage-perc", METRICS, Signal.KV_USAGE, "vllm:gpu_cache_usage_perc")

SLEEP_STATE = "vllm:engine_sleep_state"


def _residency(body: bytes) -> Reading | None:
    """Loaded while every engine of the process is awake, cold when none is, unknown in between."""
    awake: set[bool] = set()
    for labels, value in samples(body, SLEEP_STATE):
        if labels.get("sleep_state") != "awake" or math.isnan(value):
            continue
        if value not in (0, 1):
            raise ProbeError(f'{SLEEP_STATE}{{sleep_state="awake"}} is {value!r}, which is neither 0 nor 1')
        awake.add(bool(value))
    if len(awake) != 1:
        return None
    return {WHOLE_BACKEND: Residency.LOADED if awake.pop() else Residency.COLD}


VLLM_SLEEP_STATE = Probe("vllm-sleep-state", Signal.RESIDENCY, METRICS, _residency)

# Written at the start, and only when the option was given. With several engines in the process, or
# with the second limit of newer versions, the number is not the capacity: such a line is left alone.
VLLM_LOG_MAX_NUM_SEQS = log_line(
    "vllm-log-max-num-seqs",
    Signal.CAPACITY,
    r"^.{0,80}?\bINFO \d\d-\d\d [\d:]+ \[\w+\.py:\d+\] non-default args: \{"
    r"(?!.*'(?:data_parallel_|max_num_active_seqs))"
    r".*?'max_num_seqs': (?P<value>[1-9]\d{0,5})[,}]",
)


def advice(findings: Findings) -> list[str]:
    known = findings.snapshot.source
    notes = []
    if Signal.RUNNING not in known:
        notes.append(
            "vLLM shows no load: it was started with --disable-log-stats, which empties /metrics. Start it "
            "without, or the gateway counts its own requests only."
        )
    if Signal.CAPACITY not in known:
        notes.append(
            "How many requests vLLM works on at a time is not known, as it does not show --max-num-seqs. Put "
            "that number into the config as `capacity: N` (256 on most GPUs unless you set it)."
        )
    if any(m.state is Residency.COLD for m in (findings.snapshot.models or {}).values()):
        notes.append(
            "vLLM is asleep and does not wake for a request: wake it with `curl -X POST <address>/wake_up`."
        )
    notes.append(
        "Cached prompt tokens are in its replies only when it is started with --enable-prompt-tokens-details."
    )
    return notes


RECIPE = Recipe(
    kind="vllm",
    title="vLLM",
    probes=(
        VLLM_VERSION,
        OPENAI_MODELS,
        VLLM_SLEEP_STATE,
        VLLM_RUNNING,
        VLLM_WAITING,
        VLLM_KV,
        VLLM_KV_OLD,
        VLLM_LOG_MAX_NUM_SEQS,
    ),
    fingerprint=(VLLM_VERSION, owned_by("vllm-owned", "vllm")),
    ports=(8000,),
    prompt_cache=PromptCache.SHARED,  # two at once: the second had 2176 of 2268 tokens cached (0.32)
    advice=advice,
)
