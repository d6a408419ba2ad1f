"""Anything that answers the OpenAI API and is none of the kinds we know better: mlx-lm, LM Studio.

Such an engine shows its list of models and nothing else. mlx-lm 0.32.2 has two GET paths, /health and
/v1/models, and both say the same whether it is loading, idle or has five requests waiting.
"""

from __future__ import annotations

from engines.recipes.base import Findings, Recipe
from engines.recipes.common import OPENAI_MODELS
from engines.signals import Signal


def advice(findings: Findings) -> list[str]:
    notes = []
    if Signal.CAPACITY not in findings.snapshot.source:
        notes.append(
            "This engine shows its list of models and nothing of its load, so what it can do at a time is "
            "not known: put `capacity: N` into its entry of the config (mlx-lm: the N of "
            "--decode-concurrency; LM Studio: the model's parallel requests)."
        )
    if Signal.MODELS not in findings.snapshot.source:
        notes.append(
            "The list of models could not be read, so no request will be sent here. mlx-lm answers an empty "
            "page when there is no Hugging Face cache folder: make one (mkdir -p ~/.cache/huggingface/hub)."
        )
    elif not findings.snapshot.models:
        notes.append(
            "The list of models is empty, so no request will be sent here. mlx-lm lists what lies in the "
            "Hugging Face cache, and a model of its own only when started with --model."
        )
    return notes


RECIPE = Recipe(
    kind="openai",
    title="OpenAI-compatible engine",
    probes=(OPENAI_MODELS,),
    fingerprint=(OPENAI_MODELS,),
    generic=True,
    ports=(1234, 8080),  # LM Studio, mlx-lm
    advice=advice,
)
