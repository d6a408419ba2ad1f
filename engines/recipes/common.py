"""What several recipes share: the one list that every engine with an OpenAI API has."""

from __future__ import annotations

import msgspec

from engines.probes import Path, Probe, ProbeError, json_probe
from engines.signals import Reading, Signal

V1_MODELS = Path(
    "/v1/models",
    "a plain list: no engine seen loads or wakes a model for it (llama.cpp, its router, llama-swap, "
    "Ollama, vLLM, SGLang and mlx-lm answer it in under 1 ms)",
)


class ListedModel(msgspec.Struct):
    """One entry of the list. Engines differ in everything but `id`."""

    id: str | None = None
    owned_by: str | None = None


class ModelList(msgspec.Struct):
    data: list[ListedModel] | None = None


def listed(body: ModelList) -> list[ListedModel] | None:
    """The entries; None when the body is no such list. Raises ProbeError for an entry without a name."""
    if body.data is None:
        return None
    for at, model in enumerate(body.data):
        if not model.id:
            raise ProbeError(f"/v1/models: data[{at}] has no id")
    return body.data


def _models(body: ModelList) -> Reading | None:
    models = listed(body)
    return None if models is None else {str(m.id): None for m in models}


OPENAI_MODELS: Probe = json_probe("openai-models", Signal.MODELS, V1_MODELS, ModelList, _models)
"""The names that `/v1/models` lists.

LM Studio answers paths it does not know with 200 and an `error`: a body without `data` reads nothing.
"""


def owned_by(name: str, owner: str) -> Probe:
    """A fingerprint: every listed model says it is served by `owner`. An empty list proves nothing."""

    def take(body: ModelList) -> Reading | None:
        models = listed(body)
        if not models or any(m.owned_by != owner for m in models):
            return None
        return {str(m.id): None for m in models}

    return json_probe(name, Signal.MODELS, V1_MODELS, ModelList, take)
