"""What requests teach about a target's speed. Pure: samples in, estimates out."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

WEIGHT = 0.2
"""Of the newest sample: about ten requests make an estimate new."""
MIN_UNCACHED_TOKENS = 256
"""Below this the time to first token is mostly overhead, and says nothing of the prefill."""
WARM_LOAD_S = 0.5
"""A load shorter than this was none: Ollama reports 1 to 100 ms for a warm model."""
SCALES = (0.5, 2.0)
"""What the text and the tokenizer can do to an estimate of tokens. More or less than that is something else:
a picture, which is not estimated, or an engine that counts new tokens only (Ollama 0.30.0)."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One successful generation, as the request path saw it. None is unknown. Seconds.

    `load_s` and `prefill_s` are what the engine's reply reports; `ttft_s` runs from sending to the first
    byte, which is the first token of a streamed reply only. `cold`: a load was expected when it was sent.
    A control call (an empty prompt that loads or unloads) is no generation: `control`.
    """

    streamed: bool = False
    cold: bool = False
    control: bool = False
    ttft_s: float | None = None
    predicted_s: float | None = None  # what the policy expected of `ttft_s`
    total_s: float | None = None
    prompt_tokens: int | None = None
    estimated_tokens: int | None = None  # of the prompt, before it was sent
    cached_tokens: int | None = None
    load_s: float | None = None
    prefill_s: float | None = None


@dataclass(slots=True)
class Stats:
    """Moving averages of one target; None until the first sample."""

    prefill_s_per_token: float | None = None
    load_s: float | None = None
    service_s: float | None = None
    token_scale: float | None = None  # the prompt's tokens, by those estimated
    error_s: float | None = None  # by how much the expected time to first token was off, either way

    def learn(self, sample: Sample) -> None:
        if sample.control:
            return
        self.load_s = _mean(self.load_s, _load(sample))
        self.prefill_s_per_token = _mean(self.prefill_s_per_token, _prefill(sample))
        self.token_scale = _mean(self.token_scale, _scale(sample))
        self.service_s = _mean(self.service_s, None if sample.cold else sample.total_s)
        if sample.predicted_s is not None and sample.ttft_s is not None and sample.streamed:
            self.error_s = _mean(self.error_s, abs(sample.ttft_s - sample.predicted_s))


def scaled(estimated_tokens: int, targets: Iterable[Stats]) -> int:
    """The estimate of a prompt's tokens, as targets of its model have taught it: they have one tokenizer."""
    scales = [stats.token_scale for stats in targets if stats.token_scale is not None]
    return round(estimated_tokens * sum(scales) / len(scales)) if scales else estimated_tokens


def _scale(sample: Sample) -> float | None:
    """Of short prompts much is the chat template, and a system prompt that it brings along."""
    if sample.prompt_tokens is None or (sample.estimated_tokens or 0) < MIN_UNCACHED_TOKENS:
        return None
    scale = sample.prompt_tokens / (sample.estimated_tokens or 1)
    return scale if SCALES[0] <= scale <= SCALES[1] else None


def _load(sample: Sample) -> float | None:
    """As the engine reports it, else what a cold stream took beyond its prefill.

    llama.cpp's router reports none. Most of that wait is the load; a guess would never be corrected.
    """
    if sample.load_s is not None:
        return sample.load_s if sample.load_s >= WARM_LOAD_S else None
    if not (sample.cold and sample.streamed) or sample.ttft_s is None:
        return None
    took_s = sample.ttft_s - (sample.prefill_s or 0.0)
    return took_s if took_s >= WARM_LOAD_S else None


def _prefill(sample: Sample) -> float | None:
    """Seconds per uncached token. The engine's own time is sure; the first byte's needs a warm stream."""
    if sample.prompt_tokens is None or sample.cached_tokens is None:
        return None
    uncached = sample.prompt_tokens - sample.cached_tokens
    if uncached < MIN_UNCACHED_TOKENS:
        return None
    warm = not sample.cold and _load(sample) is None
    seconds = sample.prefill_s
    if seconds is None and sample.streamed and warm:
        seconds = sample.ttft_s
    return None if seconds is None else seconds / uncached


def _mean(old: float | None, new: float | None) -> float | None:
    if new is None or not math.isfinite(new) or new <= 0:
        return old
    return new if old is None else old + WEIGHT * (new - old)
