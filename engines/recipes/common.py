"""What several recipes share: the list every engine with an OpenAI API has, and llama-server's arguments."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec

from engines.probes import Path, Probe, ProbeError, json_probe
from engines.signals import Reading, Signal

V1_MODELS = Path(
    "/v1/models",
    "a plain list: no engine seen loads or wakes a model for it (llama.cpp, its router, llama-swap, "
    "Ollama, vLLM, SGLang and mlx-lm answer it in about a millisecond)",
)


class ListedModel(msgspec.Struct):
    """One entry of the list. Engines differ in everything but `id`."""

    id: str | None = None
    owned_by: str | None = None


class ModelList(msgspec.Struct):
    data: list[ListedModel] | None = None


def _models(body: ModelList) -> Reading | None:
    if body.data is None:
        return None
    return {named(model.id, at): None for at, model in enumerate(body.data)}


def named(model: str | None, at: int) -> str:
    """The name of an entry. Raises ProbeError when it has none."""
    if not model:
        raise ProbeError(f"entry {at} of the list has no name")
    return model


OPENAI_MODELS: Probe = json_probe("openai-models", Signal.MODELS, V1_MODELS, ModelList, _models)
"""The names that `/v1/models` lists.

LM Studio answers paths it does not know with 200 and an `error`: a body without `data` reads nothing.
"""


def owned_by(name: str, owner: str) -> Probe:
    """A fingerprint: every listed model says it is served by `owner`. An empty list proves nothing."""

    def take(body: ModelList) -> Reading | None:
        if not body.data or any(model.owned_by != owner for model in body.data):
            return None
        return _models(body)

    return json_probe(name, Signal.MODELS, V1_MODELS, ModelList, take)


def slots_of(args: Sequence[str]) -> int | None:
    """The number of slots that a llama-server's arguments ask for; None when they leave it to the server.

    Without the option, or with -1, the number is the server's own choice (1 in old builds, 4 in new ones).
    """
    asked: int | None = None
    for option, value in pairwise(args):
        if option in ("-np", "--parallel"):
            asked = int(value) if value.isascii() and value.isdigit() and len(value) < 6 else None
    return asked or None
