"""SGLang: `/v1/loads` says what it is doing; its metrics are late and can contradict themselves.

Seen on 0.5.23, and on 0.5.9 while its captures were made. The rules of this recipe:

- `/v1/loads` first: right within one step on 0.5.23, except that a request in its prefill is not
  counted before its first token; needs no flag. 0.5.9 asks the scheduler, so it waits for the running
  step: a timeout there means busy. Before 0.5.8 the path does not exist.
- `/metrics` only when it agrees with itself. Its gauges are up to 40 decode steps late, and on 0.5.9
  keep their last values when the engine goes idle (2 running, 4 queued, for ever). The same page counts
  open HTTP requests, exactly on 0.5.23. Where running + queued is not that count the gauges are stale
  and nothing is read. Versions without that count are not read from `/metrics` at all.
- never `/health`: it generates a token and takes a second. Never `/server_info`: 37 kB, and it waits
  for a prefill. Never `/api/tags`, which imitates Ollama with sizes of 0.
- bytes stay unknown: `memory.*_gb` is rounded, does not say which GB it means, and is host memory on a
  machine without a GPU.

One process is one engine for one model, so its load is the whole backend's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter

import msgspec

from engines.probes import Path, Probe, ProbeError, count, json_probe, ratio, samples
from engines.recipes.base import Findings, PromptCache, Recipe
from engines.recipes.common import OPENAI_MODELS, owned_by
from engines.signals import WHOLE_BACKEND, Reading, Residency, Signal, Value

LOADS = Path(
    "/v1/loads",
    "a snapshot of the scheduler, 1 kB in 1 to 6 ms (0.5.23; 0.5.9 waits for the step that runs)",
)
METRICS = Path(
    "/metrics", "renders counters kept anyway: 94 kB, 8 to 20 ms, so it is asked only without /v1/loads"
)


# -- /v1/loads ---------------------------------------------------------------------------------


class Rank(msgspec.Struct):
    """One data-parallel copy of the engine: it has its own queue, places and cache."""

    num_running_reqs: int | None = None
    num_waiting_reqs: int | None = None
    max_running_requests: int | None = None
    token_usage: float | None = None
    max_total_num_tokens: int | None = None
    total_prefill_uncached_tokens: int | None = None


class Loads(msgspec.Struct):
    version: str | None = None
    loads: list[Rank] | None = None


def _version(body: Loads) -> Reading | None:
    return {WHOLE_BACKEND: body.version} if body.version else None


MAX_RANKS = 256


def _ranks(body: Loads) -> list[Rank]:
    ranks = body.loads or []
    if len(ranks) > MAX_RANKS:
        raise ProbeError(f"/v1/loads lists {len(ranks)} engines; more than {MAX_RANKS} are not believed")
    return ranks


def _summed(field: str) -> Callable[[Loads], Reading | None]:
    """The field summed over the ranks; unknown when one of them does not say."""
    get: Callable[[Rank], int | None] = attrgetter(field)

    def take(body: Loads) -> Reading | None:
        values = [get(rank) for rank in _ranks(body)]
        known = [count(f"/v1/loads: {field}", v) for v in values if v is not None]
        return {WHOLE_BACKEND: sum(known)} if known and len(known) == len(values) else None

    return take


def _kv_usage(body: Loads) -> Reading | None:
    """The ranks' usage, each weighted with the tokens that its cache holds."""
    used = held = 0.0
    for rank in _ranks(body):
        if rank.token_usage is None or not rank.max_total_num_tokens:
            return None
        size = count("/v1/loads: max_total_num_tokens", rank.max_total_num_tokens)
        used += ratio("/v1/loads: token_usage", rank.token_usage) * size
        held += size
    return {WHOLE_BACKEND: min(1.0, used / held)} if held else None


def _residency(body: Loads) -> Reading | None:
    """Loaded once every rank has computed a prompt.

    The listener is up 2 to 9 s before the engine is ready and answers everything but /health, with its
    model listed. SGLang then sends itself a prompt, so the count of computed tokens leaves 0 when it is
    ready (with --skip-server-warmup, when the first request came). It has no other sign, and 0 is none.
    """
    computed = [rank.total_prefill_uncached_tokens for rank in _ranks(body)]
    if not computed or not all(computed):
        return None
    return {WHOLE_BACKEND: Residency.LOADED}


SGLANG_VERSION = json_probe("sglang-version", Signal.VERSION, LOADS, Loads, _version)
SGLANG_RESIDENCY = json_probe("sglang-loads-residency", Signal.RESIDENCY, LOADS, Loads, _residency)
SGLANG_RUNNING = json_probe("sglang-loads-running", Signal.RUNNING, LOADS, Loads, _summed("num_running_reqs"))
SGLANG_WAITING = json_probe("sglang-loads-waiting", Signal.WAITING, LOADS, Loads, _summed("num_waiting_reqs"))
SGLANG_CAPACITY = json_probe(
    "sglang-loads-capacity", Signal.CAPACITY, LOADS, Loads, _summed("max_running_requests")
)
SGLANG_KV = json_probe("sglang-loads-kv", Signal.KV_USAGE, LOADS, Loads, _kv_usage)


# -- /metrics, when it agrees with itself ------------------------------------------------------

RUNNING, QUEUED, USAGE = "sglang:num_running_reqs", "sglang:num_queue_reqs", "sglang:token_usage"
OPEN_REQUESTS = "sglang:http_requests_active"
GENERATING = frozenset(
    {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/messages",
        "/v1/responses",
        "/v1/embeddings",
        "/v1/rerank",
        "/generate",
        "/api/chat",
        "/api/generate",
    }
)
"""Endpoints whose open requests are work of the scheduler."""

RANK_LABELS = ("tp_rank", "pp_rank", "moe_ep_rank")


def _per_engine(body: bytes, metric: str) -> list[float]:
    """One value per data-parallel engine: the parts of one engine may each repeat the same value."""
    first: dict[frozenset[tuple[str, str]], tuple[list[str], float]] = {}
    for labels, value in samples(body, metric):
        part = [labels.get(name, "") for name in RANK_LABELS]
        engine = frozenset((k, v) for k, v in labels.items() if k not in RANK_LABELS)
        if engine not in first or part < first[engine][0]:
            first[engine] = (part, value)
    return [value for _, value in first.values()]


def _open_requests(body: bytes) -> Iterator[float]:
    for labels, value in samples(body, OPEN_REQUESTS):
        if labels.get("endpoint") in GENERATING:
            yield value


def _counted(metric: str, values: list[float]) -> int | None:
    return None if not values or any(map(math.isnan, values)) else count(metric, sum(values))


def _gauge(metric: str, value: Callable[[bytes], Value | None]) -> Callable[[bytes], Reading | None]:
    """A gauge that is believed only while the page as a whole agrees with itself."""

    def parse(body: bytes) -> Reading | None:
        read = value(body)
        if read is None:
            return None
        if next(samples(body, OPEN_REQUESTS), None) is None:
            raise ProbeError(f"{metric} can be stale, and this version has no {OPEN_REQUESTS} to tell")
        working = [_counted(m, _per_engine(body, m)) for m in (RUNNING, QUEUED)]
        opened = count(OPEN_REQUESTS, sum(_open_requests(body)))
        if None in working or sum(filter(None, working)) != opened:
            raise ProbeError(f"stale: running and queued are {working}, open requests {opened}")
        return {WHOLE_BACKEND: read}

    return parse


def _usage(body: bytes) -> float | None:
    values = _per_engine(body, USAGE)
    if not values or any(map(math.isnan, values)):
        return None
    return ratio(USAGE, sum(values) / len(values))


def _gauge_probe(
    name: str, signal: Signal, metric: str, value: Callable[[bytes], Value | None] | None = None
) -> Probe:
    read = value or (lambda body: _counted(metric, _per_engine(body, metric)))
    return Probe(name, signal, METRICS, _gauge(metric, read))


SGLANG_METRICS_RUNNING = _gauge_probe("sglang-metrics-running", Signal.RUNNING, RUNNING)
SGLANG_METRICS_WAITING = _gauge_probe("sglang-metrics-waiting", Signal.WAITING, QUEUED)
SGLANG_METRICS_KV = _gauge_probe("sglang-metrics-kv", Signal.KV_USAGE, USAGE, _usage)


# -- what will surprise ------------------------------------------------------------------------


def advice(findings: Findings) -> list[str]:
    known: Mapping[Signal, str] = findings.snapshot.source
    notes = []
    if Signal.RUNNING not in known:
        notes.append(
            "Its load could not be read: /v1/loads exists from SGLang 0.5.8 on and wants the API key when "
            "one is set (`api_key` in the config). A 500 there on 0.5.9 comes from a FastAPI too new for it."
        )
    if Signal.CAPACITY not in known:
        notes.append(
            "How many requests it works on at a time is not known. Put its --max-running-requests into the "
            "config as `capacity: N`."
        )
    notes += [
        "SGLang serves any model name with 200; the gateway sends it only names that it lists.",
        "Cached prompt tokens are in its replies only when it is started with --enable-cache-report.",
        "Point no health check at /health: it generates a token and takes at least a second. /v1/models "
        "costs nothing.",
    ]
    return notes


RECIPE = Recipe(
    kind="sglang",
    title="SGLang",
    probes=(
        SGLANG_VERSION,
        OPENAI_MODELS,
        SGLANG_RESIDENCY,
        SGLANG_RUNNING,
        SGLANG_WAITING,
        SGLANG_CAPACITY,
        SGLANG_KV,
        SGLANG_METRICS_RUNNING,
        SGLANG_METRICS_WAITING,
        SGLANG_METRICS_KV,
    ),
    fingerprint=(owned_by("sglang-owned", "sglang"),),
    ports=(30000,),
    prompt_cache=PromptCache.SHARED,  # one radix tree for all, by its source (0.5.20)
    advice=advice,
)
