"""vLLM: everything but its limits, one engine step late."""

from __future__ import annotations

from engines.signals import Reading, Residency, Signal
from tests.engines.expected import NOTHING


def load(running: int, waiting: int, kv_usage: float) -> dict[str, Reading | None]:
    return {
        "vllm-running": {"": running},
        "vllm-waiting": {"": waiting},
        "vllm-kv-cache-usage-perc": {"": kv_usage},
    }


REFUSES: dict[str, Reading | None] = dict.fromkeys(
    ("openai-models", "vllm-owned", "vllm-version", "vllm-sleep-state", *load(0, 0, 0.0)), NOTHING
)

PROBES: dict[str, dict[str, Reading | None]] = {
    "vllm": {
        "openai-models": {"smollm2": None},
        "vllm-owned": {"smollm2": None},
        "vllm-sleep-state": {"": Residency.LOADED},
        **load(0, 0, 0.0),
    },
    "vllm/v0.20.0": {"vllm-version": {"": "0.20.0"}},
    "vllm/v0.32.0": {"vllm-version": {"": "0.32.0"}},
    "vllm/*/busy": load(3, 0, 0.004126547455295726),
    "vllm/*/defaults-busy": load(2, 0, 0.0027510316368638543),
    "vllm/*/full": load(4, 0, 0.005502063273727598),
    "vllm/*/saturated": load(4, 5, 0.005502063273727598),
    "vllm/*/queue-limit": load(2, 0, 0.005502063273727598),
    "vllm/*/dev-mode-api-key": {"openai-models": NOTHING, "vllm-owned": NOTHING},  # 401; all else is open
    "vllm/v0.20.0/loading": REFUSES,
    "vllm/v0.32.0/loading": REFUSES,
}

DETECTED: dict[str, str] = {
    "vllm": "vllm",
    "vllm/*/loading": "nothing answers",
    "vllm/*/dev-mode-api-key": "key",
}

NOT_SHOWN = frozenset({Signal.VRAM_BYTES, Signal.SIZE_BYTES, Signal.CAPACITY})
UNKNOWN = {
    "vllm": NOT_SHOWN,  # the capacity is in the log only, and a folder is replayed without it
    # without the key there is no list of models, so no model to say anything about
    "vllm/*/dev-mode-api-key": NOT_SHOWN | {Signal.MODELS},
    "vllm/*/loading": frozenset(Signal),
}

LATE = {
    "vllm/*/prefill": {
        "requests_running": (0, "the gauges are written when a step ends, and this is the first step")
    }
}

NOT_REPLAYED = {
    "vllm/*/engine-dead": "reply bodies only",
    "vllm/*/killed-sigkill": "reply bodies only",
    "vllm/*/killed-sigterm": "reply bodies only",
    "vllm/*/killed-sigterm-1": "reply bodies only",
    "vllm/*/streams": "reply bodies only",
}

LOG: dict[str, dict[str, list[Reading]]] = {"vllm": {"vllm-log-max-num-seqs": [{"": 4}]}}
