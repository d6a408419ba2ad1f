"""mlx-lm: a list of models, read from disk, and nothing else."""

from __future__ import annotations

from engines.signals import Reading, Signal
from tests.engines.expected import NOTHING

PROBES: dict[str, dict[str, Reading | None]] = {
    "mlx-lm": {"openai-models": {"/srv/smollm2": None}},
    "mlx-lm/*/no-hf-cache": {"openai-models": NOTHING},  # 200 with an empty body
    "mlx-lm/*/no-model-cold": {"openai-models": {}},
    "mlx-lm/*/no-model-loaded": {"openai-models": {}},
}

DETECTED: dict[str, str] = {
    "mlx-lm": "openai",
    "mlx-lm/*/no-hf-cache": "lists no models",
}

UNKNOWN = {
    "mlx-lm": frozenset(Signal) - {Signal.MODELS},
    "mlx-lm/*/no-hf-cache": frozenset(Signal),
}

NOT_REPLAYED = {"mlx-lm/*/streams": "reply bodies only"}
