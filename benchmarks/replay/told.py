"""A gateway that also keeps what it expected of each request, and what came."""

from __future__ import annotations

from pathlib import Path

from gateway.config import Config
from gateway.proxy.decisions import stage_of
from gateway.proxy.done import Done
from gateway.proxy.feedback import ttft_s
from gateway.runtime import Gateway


class Telling(Gateway):
    """Keeps every request that is over, for whoever measures."""

    def __init__(self, config: Config, file: Path | None = None) -> None:
        self.told: list[Done] = []
        super().__init__(config, file=file)

    def _done(self, done: Done) -> None:
        super()._done(done)
        self.told.append(done)


def row(done: Done) -> dict[str, object]:
    """What was expected, and what came. Seconds, tokens; None is unknown."""
    told: dict[str, object] = {
        "arrived": done.arrived,
        "backend": done.backend,
        "waited_s": done.granted_s,
        "predicted_s": done.predicted_s,
        "ttft_s": ttft_s(done),
        "prefill_s": done.prefill_s,
        "prompt_tokens": done.prompt_tokens,
        "expected_cached": done.expected_cached,
        "cached_tokens": done.cached_tokens,
        "decisions": {stage_of(d): str(d) for d in done.decisions},
        "reason": done.reason,
    }
    if (decision := done.decision) is not None:
        chosen, score = decision.candidates[decision.at], decision.scores[decision.at]
        told |= {"score": score._asdict(), "candidate": chosen._asdict()}
    return told
