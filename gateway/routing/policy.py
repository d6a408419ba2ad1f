"""Where a request's first token comes soonest. Pure: values in, a decision out.

A policy is a function of one request and its candidates. It never chooses an infeasible one, which is a
model that is known not to be loaded and whose load would push out a model in use. Two rules hold in all of
them: what is unknown is estimated (the median of the other candidates, then a default) and never 0; and of
equals the one with more room wins, then chance, so that equal requests do not all run to one target.

Times are seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median
from typing import NamedTuple

TIE_S = 0.001
"""Two estimates this close are equal: no estimate here is that good."""
KV_PRESSURE = 0.9
"""Share of the KV cache in use from which cached prefixes start to be dropped."""


class Candidate(NamedTuple):
    """One target as the policy sees it. None is unknown."""

    target: int
    name: str  # for the reason
    warm: bool | None  # False: known not to be loaded
    loading: bool  # a load of it is under way
    capacity: int  # requests at a time, at least 1
    free: int  # places left; 0 or less: it must be waited for
    queue_ahead: int  # requests that wait for it already
    kv_usage: float | None = None  # 0 to 1
    matched_tokens: int = 0  # of the prompt, expected in its prefix cache
    prefill_s_per_token: float | None = None
    load_s: float | None = None
    service_s: float | None = None  # of one request, start to end
    fits: bool | None = None  # False: loading it would push out a model in use

    @property
    def cold(self) -> bool:
        """A request would start a load. (Unknown residency: such an engine has its one model loaded.)"""
        return self.warm is False and not self.loading

    @property
    def feasible(self) -> bool:
        return not (self.cold and self.fits is False)

    @property
    def utilization(self) -> float:
        return 1 - max(self.free, 0) / max(self.capacity, 1)


class Route(NamedTuple):
    """What a policy knows of the request. `seed` is random, and breaks exact ties."""

    prompt_tokens: int
    seed: int = 0


class Defaults(NamedTuple):
    """For what no candidate knows."""

    prefill_s_per_token: float = 0.005  # measured between 3 and 15 ms on a CPU with a 0.5B model
    load_s: float = 10.0  # assumed: 0.8 to 19 s were seen for a 3B model, by where its file was
    service_s: float = 5.0  # assumed


DEFAULTS = Defaults()


class Why(StrEnum):
    ONLY_CHOICE = "only_choice"
    LEAST_LOADED = "least_loaded"
    CACHE = "cache"
    WARM = "warm"


class Score(NamedTuple):
    """The estimate for one candidate, in seconds. An infeasible one has none."""

    target: int
    feasible: bool
    wait_s: float = 0.0
    load_s: float = 0.0
    prefill_s: float = 0.0
    saved_s: float = 0.0  # of the prefill, by its cache

    @property
    def ttft_s(self) -> float:
        return self.wait_s + self.load_s + self.prefill_s


@dataclass(frozen=True, slots=True)
class Decision:
    target: int
    wait: bool  # it has no free place: stay in the queue
    reason: str  # for people
    why: Why
    ttft_s: float
    scores: tuple[Score, ...]


Policy = Callable[[Route, Sequence[Candidate], Defaults], "Decision | None"]
"""None: no candidate is feasible now."""


def cost(route: Route, candidates: Sequence[Candidate], defaults: Defaults = DEFAULTS) -> Decision | None:
    """The lowest estimate of seconds to the first token: wait, load and prefill."""
    scores = _scores(route, candidates, defaults)
    open_ = [(s.ttft_s, c, s) for c, s in zip(candidates, scores, strict=True) if s.feasible]
    if not open_:
        return None
    limit = min(t for t, _, _ in open_) + TIE_S
    near = [(c, s) for t, c, s in open_ if t <= limit]
    least = min(c.utilization for c, _ in near)
    return _decide(route, [(c, s) for c, s in near if c.utilization == least], [o[1:] for o in open_], scores)


def least_load(
    route: Route,
    candidates: Sequence[Candidate],
    defaults: Defaults = DEFAULTS,
) -> Decision | None:
    """The least utilized, whatever a load or a prefill costs there: for where the estimates mislead."""
    scores = _scores(route, candidates, defaults)
    open_ = [(c, s) for c, s in zip(candidates, scores, strict=True) if s.feasible]
    if not open_:
        return None
    least = min(_demand(c) for c, _ in open_)
    return _decide(route, [(c, s) for c, s in open_ if _demand(c) == least], open_, scores)


POLICIES: dict[str, Policy] = {"cost": cost, "least_load": least_load}


def _demand(c: Candidate) -> tuple[float, bool]:
    """Places taken and queued for, as a share; of equals a loaded one first."""
    queued = c.queue_ahead if c.free <= 0 else 0
    return c.utilization + queued / max(c.capacity, 1), c.cold


def _scores(route: Route, candidates: Sequence[Candidate], defaults: Defaults) -> tuple[Score, ...]:
    """One a candidate, in their order."""
    prefill_guess = _guess([c.prefill_s_per_token for c in candidates], defaults.prefill_s_per_token)
    load_guess = _guess([c.load_s for c in candidates], defaults.load_s)
    service_guess = _guess([c.service_s for c in candidates], defaults.service_s)
    scores = []
    for c in candidates:
        if not c.feasible:
            scores.append(Score(c.target, False))
            continue
        per_token = prefill_guess if c.prefill_s_per_token is None else c.prefill_s_per_token
        service_s = service_guess if c.service_s is None else c.service_s
        slot_s = service_s / max(c.capacity, 1)  # a place frees this often
        wait_s = 0.0 if c.free > 0 else (max(c.queue_ahead, 0) + 1) * slot_s
        load_s = 0.0 if not c.cold else load_guess if c.load_s is None else c.load_s
        matched = min(c.matched_tokens, route.prompt_tokens)
        if c.kv_usage is not None and c.kv_usage > KV_PRESSURE:
            # The nearer to full, the likelier the prefix is gone, and that the engine queues what we send.
            pressure = min((c.kv_usage - KV_PRESSURE) / (1 - KV_PRESSURE), 1.0)
            matched = int(matched * (1 - pressure))
            wait_s += pressure * slot_s
        prefill_s = (route.prompt_tokens - matched) * per_token
        scores.append(Score(c.target, True, wait_s, load_s, prefill_s, matched * per_token))
    return tuple(scores)


def _guess(values: Sequence[float | None], default: float) -> float:
    """The median of the *distinct* values: a twin of a known target must not move the guess for others."""
    if None not in values:
        return default  # nobody needs it
    known = {v for v in values if v is not None}
    return median(known) if known else default


def _decide(
    route: Route,
    equal: Sequence[tuple[Candidate, Score]],
    feasible: Sequence[tuple[Candidate, Score]],
    scores: tuple[Score, ...],
) -> Decision:
    best, score = equal[route.seed % len(equal)]
    others = [(c, s) for c, s in feasible if c.target != best.target]
    why = _why(best, score, others)
    reason = _reason(best, score, others, len(scores))
    return Decision(best.target, best.free <= 0, reason, why, score.ttft_s, scores)


def _why(best: Candidate, score: Score, others: Sequence[tuple[Candidate, Score]]) -> Why:
    """What told against the least utilized of the others: cache or residency, whichever saved more."""
    if not others:
        return Why.ONLY_CHOICE
    rival, its = min(others, key=lambda o: (o[0].utilization, o[1].ttft_s))
    cache_s, warm_s = score.saved_s - its.saved_s, its.load_s - score.load_s
    if best.utilization < rival.utilization or max(cache_s, warm_s) <= TIE_S:
        return Why.LEAST_LOADED
    return Why.CACHE if cache_s > warm_s else Why.WARM


def _reason(best: Candidate, score: Score, others: Sequence[tuple[Candidate, Score]], asked: int) -> str:
    text = f"{_state(best, score)}, est. {score.ttft_s:.1f} s"
    if others:
        rival, its = min(others, key=lambda o: o[1].ttft_s)
        return f"{text} against {its.ttft_s:.1f} s at {rival.name} ({_state(rival, its)})"
    if asked > 1:
        return f"{text}; elsewhere its load would push out a model in use"
    return f"the only backend with the model now: {text}"


def _state(c: Candidate, s: Score) -> str:
    residency = "loading" if c.loading and not c.warm else "to be loaded" if c.cold else ""
    if c.warm:
        residency = "loaded"
    cached = f"{_tokens(c.matched_tokens)} tokens cached" if s.saved_s > 0 else ""
    room = f"{c.queue_ahead} waiting ahead" if c.free <= 0 else f"{c.free} of {c.capacity} places free"
    return ", ".join(part for part in (residency, cached, room) if part)


def _tokens(n: int) -> str:
    return str(n) if n < 1000 else f"{n / 1000:.1f}k"
