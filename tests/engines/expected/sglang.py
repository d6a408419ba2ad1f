"""SGLang: everything but bytes, from /v1/loads; from /metrics only when it agrees with itself."""

from __future__ import annotations

from engines.signals import Reading, Residency, Signal
from tests.engines.expected import NOTHING


def loads(running: int, waiting: int, kv_usage: float, capacity: int = 2) -> dict[str, Reading | None]:
    return {
        "sglang-loads-running": {"": running},
        "sglang-loads-waiting": {"": waiting},
        "sglang-loads-capacity": {"": capacity},
        "sglang-loads-kv": {"": kv_usage},
    }


def gauges(running: int, waiting: int, kv_usage: float) -> dict[str, Reading | None]:
    return {
        "sglang-metrics-running": {"": running},
        "sglang-metrics-waiting": {"": waiting},
        "sglang-metrics-kv": {"": kv_usage},
    }


STALE: dict[str, Reading | None] = dict.fromkeys(gauges(0, 0, 0.0), NOTHING)
KEY_WANTED: dict[str, Reading | None] = dict.fromkeys(
    ("openai-models", "sglang-owned", "sglang-version", "sglang-loads-residency", *loads(0, 0, 0.0)), NOTHING
)

PROBES: dict[str, dict[str, Reading | None]] = {
    "sglang": {
        "openai-models": {"smollm2": None},
        "sglang-owned": {"smollm2": None},
        "sglang-version": {"": "0.5.23"},
        "sglang-loads-residency": {"": Residency.LOADED},
        **loads(0, 0, 0.0),
        **gauges(0, 0, 0.0),
    },
    "sglang/*/busy": {**loads(2, 0, 0.0136), **gauges(2, 0, 0.01)},
    "sglang/*/full": {**loads(1, 1, 0.22), **gauges(1, 1, 0.19)},
    "sglang/*/saturated": {**loads(2, 4, 0.0151), **gauges(2, 4, 0.01)},
    "sglang/*/queue-limit": {**loads(2, 2, 0.006), **STALE},  # the page says 0/0 and 7 open requests
    "sglang/*/prefill": STALE,  # 0/0 and 1 open request
    "sglang/*/loading": {"sglang-loads-residency": NOTHING, **STALE},  # gauges not written yet
    "sglang/*/defaults": {**loads(0, 0, 0.0, capacity=2500), **STALE},  # metrics are off
    "sglang/*/defaults-busy": {**loads(6, 0, 0.0157, capacity=2500), **STALE},
    "sglang/*/api-key": KEY_WANTED,  # /metrics alone is open
}

DETECTED: dict[str, str] = {"sglang": "sglang", "sglang/*/api-key": "key"}

NOT_SHOWN = frozenset({Signal.VRAM_BYTES, Signal.SIZE_BYTES})
UNKNOWN = {
    "sglang": NOT_SHOWN,
    "sglang/*/loading": NOT_SHOWN | {Signal.RESIDENCY},
    "sglang/*/api-key": frozenset(Signal) - {Signal.RUNNING, Signal.WAITING, Signal.KV_USAGE},
}

LATE = {
    "sglang/*/prefill": {"requests_running": (0, "/v1/loads counts a request when its first token is there")}
}

NOT_REPLAYED = {
    "sglang/*/admin": "reply bodies only",
    "sglang/*/engine-dead": "reply bodies only",
    "sglang/*/killed-sigkill": "reply bodies only",
    "sglang/*/killed-sigterm": "reply bodies only",
    "sglang/*/lag": "what was polled, as a table",
    "sglang/*/streams": "reply bodies only",
}
