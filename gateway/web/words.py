"""Why a request went where it went, or went nowhere, in words for whoever runs Pharos. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.proxy.decisions import stage_of
from gateway.proxy.done import Done

MEND = {
    "invalid_api_key": "Its client sent no key, or one that is not in the config: `keys_new` makes one.",
    "invalid_request": "The client sent what no engine should get; it was told what to change.",
    "model_required": "The client named no model.",
    "encoded_body": "The client sent a compressed body, which Pharos cannot read.",
    "request_too_large": "The body is over `limits: body` of the config.",
    "rate_limit_exceeded": "The key's `rpm`, or its `tokens_per_day` beside what its requests hold now.",
    "insufficient_quota": "The key's `tokens_per_day`: raise it in the config, or wait for the next day.",
    "model_not_found": "No backend lists the model, or it is not among the key's `models`.",
    "model_unavailable": "Backends list the model and none of them is up: look at the backends above.",
    "no_engine": "No backend was left that could be asked: look at the backends above.",
    "route_not_served": "No engine that serves the model has this route.",
    "method_not_allowed": "The client used the wrong method.",
    "upgrade_refused": "The client asked for a websocket; it goes on without one.",
    "queue_full": "As many requests wait as `limits: queue` allows: the engines cannot keep up.",
    "draining": "Pharos was being stopped.",
    "engine_failed": "The engine failed with the request, and perhaps of it: nobody else was asked.",
    "engine_error": "The engine answered with an error.",
    "engine_redirects": "The backend sends clients elsewhere: its address in the config is not its API's.",
    "engine_timeout": "The engine was silent for longer than `limits: first_byte` or `idle` allow.",
    "engine_refused_key": "The engine does not take the `api_key` that the config has for this backend.",
    "client_left": "The client closed its connection before the end: nobody is to blame here.",
}

QUOTING = ("engine_error",)
"""Refusals that may hold what an engine said, which may hold a piece of a prompt."""


@dataclass(frozen=True, slots=True)
class Scored:
    """One candidate as the policy saw it. Times are seconds."""

    name: str
    chosen: bool
    feasible: bool
    residency: str | None  # None: unknown
    free: int
    capacity: int
    queue_ahead: int
    cached_tokens: int
    wait_s: float
    load_s: float
    prefill_s: float
    ttft_s: float


def candidates(done: Done) -> list[Scored]:
    """What it was chosen from, the best estimate first. Empty: no target was ever chosen."""
    if done.decision is None:
        return []
    found = [
        Scored(
            c.name, at == done.decision.at, s.feasible, residency(c.warm, c.loading), c.free, c.capacity,
            c.queue_ahead, c.matched_tokens, s.wait_s, s.load_s, s.prefill_s, s.ttft_s,
        )
        for at, (c, s) in enumerate(zip(done.decision.candidates, done.decision.scores, strict=True))
    ]  # fmt: skip
    return sorted(found, key=lambda s: (not s.chosen, not s.feasible, s.ttft_s))


def residency(warm: bool | None, loading: bool) -> str | None:
    """None: unknown."""
    if loading and not warm:
        return "loading"
    return None if warm is None else "loaded" if warm else "not loaded"


def phase(done: Done) -> str:
    """Of a request in flight."""
    if done.backend is None:
        return "waiting" if done.model is not None else "being read"
    if done.first_token_s is not None or done.first_byte_s is not None:
        return "answering"
    return "loading and prefill" if done.cold else "prefill"


def why(done: Done) -> list[str]:
    """The story of a request that is over, a sentence each."""
    told = []
    if done.granted_s is not None and done.granted_s >= 0.05:
        told.append(f"It waited {done.granted_s:.1f} s for a place.")
    if done.backend is not None:
        told.append(f"It went to {done.backend}: {done.reason}.")
    if done.cold:
        told.append("The model was not loaded there, so it paid for the load.")
    if done.expected_cached:
        told.append(f"About {done.expected_cached:,} tokens of its prompt were expected in the cache there.")
    if done.said and done.outcome not in QUOTING:
        told.append(f"Its client was told: {done.said}")
    if done.outcome in MEND:
        told.append(MEND[done.outcome])
    elif done.status is not None and done.status >= 400 and done.outcome == "ok":
        told.append(f"The engine itself answered {done.status}, and the client got its answer.")
    if done.finished is False:
        told.append("The engine's answer ended before its generation had, so it was cut.")
    if done.decisions:
        told.append("Step by step: " + ", ".join(f"{stage_of(d)} {d}" for d in done.decisions) + ".")
    return told
