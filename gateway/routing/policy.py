"""Where a request's first token comes soonest. Pure: values in, a decision out.

A policy is a function of one request and its candidates. It never chooses an infeasible one, which is a
model that is known not to be loaded and whose load would push out a model in use. Two rules hold in all of
them: what is unknown is estimated (the median of the other candidates, then a default) and never 0; and of
equals the one with more room wins, then chance, so that equal requests do not all run to one target.

Times are seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from math import inf
from operator import itemgetter
from typing import NamedTuple, cast

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
    displaces: bool = False  # loading it may push out one that is idle
    prefilling_s: float = 0.0  # until the prompts sent before are computed: one waits for the other

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


Estimate = tuple[float, float, float, float]
"""Seconds of wait, load, prefill, and saved by the cache, as in a score."""


@dataclass(frozen=True, eq=False)
class Decision:
    """What was chosen. Why, and against what, is worked out when somebody asks: most picks are to wait."""

    at: int  # of the candidates, the one that was chosen
    candidates: Sequence[Candidate]  # not to be changed afterwards
    estimates: Callable[[], Sequence[Estimate | None]] = field(repr=False)
    """One a candidate, in their order. None: infeasible."""

    @property
    def target(self) -> int:
        return self.candidates[self.at].target

    @property
    def matched_tokens(self) -> int:
        return self.candidates[self.at].matched_tokens

    @property
    def wait(self) -> bool:
        """It has no free place: stay in the queue."""
        return self.candidates[self.at].free <= 0

    @property
    def ttft_s(self) -> float:
        estimate = self.estimates()[self.at]
        return inf if estimate is None else estimate[0] + estimate[1] + estimate[2]

    @cached_property
    def scores(self) -> tuple[Score, ...]:
        """One a candidate, in their order."""
        pairs = zip(self.candidates, self.estimates(), strict=True)
        return tuple(Score(c.target, False) if e is None else Score(c.target, True, *e) for c, e in pairs)

    @cached_property
    def why(self) -> Why:
        return _why(self._best, self._others)

    @cached_property
    def reason(self) -> str:
        """For people."""
        return _reason(self._best, self._others, len(self.candidates))

    @property
    def _best(self) -> _Scored:
        return self.candidates[self.at], self.scores[self.at]

    @cached_property
    def _others(self) -> list[_Scored]:
        pairs = enumerate(zip(self.candidates, self.scores, strict=True))
        return [pair for at, pair in pairs if pair[1].feasible and at != self.at]


_Scored = tuple[Candidate, Score]

Policy = Callable[[Route, Sequence[Candidate], Defaults], Decision | None]
"""None: no candidate is feasible now."""


def cost(route: Route, candidates: Sequence[Candidate], defaults: Defaults = DEFAULTS) -> Decision | None:
    """The lowest estimate of seconds to the first token: wait, load and prefill.

    A load that pushes out another model counts twice: somebody will have to load that one again.
    """
    estimates = _estimates(route, candidates, defaults)
    ttfts = [
        inf if e is None else e[0] + e[1] + e[2] + (e[1] if e[1] and c.displaces else 0.0)
        for e, c in zip(estimates, candidates, strict=True)
    ]
    limit = min(ttfts, default=inf) + TIE_S
    if limit == inf:
        return None
    near = [at for at, ttft_s in enumerate(ttfts) if ttft_s <= limit]
    at = _one_of(near, [candidates[at].utilization for at in near], route.seed)
    return Decision(at, candidates, lambda: estimates)


def least_load(
    route: Route, candidates: Sequence[Candidate], defaults: Defaults = DEFAULTS
) -> Decision | None:
    """The least utilized, whatever a load or a prefill costs there: for where the estimates mislead.

    Places taken and queued for, as a share; of equals a loaded one first.
    """
    open_, demands = [], []
    for at, (_, _, warm, loading, capacity, free, ahead, _, _, _, _, _, fits, _, _) in enumerate(candidates):
        cold = warm is False and not loading
        if cold and fits is False:
            continue
        open_.append(at)
        demands.append((1 - free / capacity if free > 0 else 1 + ahead / capacity, cold))
    if not open_:
        return None
    at = _one_of(open_, demands, route.seed)
    return Decision(at, candidates, lambda: _estimates(route, candidates, defaults))


POLICIES: dict[str, Policy] = {"cost": cost, "least_load": least_load}


def _one_of(near: Sequence[int], ranks: Sequence[float] | Sequence[tuple[float, bool]], seed: int) -> int:
    """By chance one of those whose rank is the lowest."""
    lowest = min(ranks)
    equal = [at for at, rank in zip(near, ranks, strict=True) if rank == lowest]
    return equal[seed % len(equal)]


# The estimate. Each pick goes once over all candidates, and unpacks them: to look up a dozen attributes of
# each would take longer than all of the arithmetic.


def _estimates(route: Route, candidates: Sequence[Candidate], defaults: Defaults) -> list[Estimate | None]:
    prompt = route.prompt_tokens
    prefill_guess = _guess(map(_PREFILL, candidates), defaults.prefill_s_per_token)
    load_guess = _guess(map(_LOAD, candidates), defaults.load_s)
    service_guess = _guess(map(_SERVICE, candidates), defaults.service_s)
    estimates: list[Estimate | None] = []
    for c in candidates:
        (
            _, _, warm, loading, capacity, free, ahead, kv, matched, per_token, load_s, service_s, fits, _,
            busy_s,
        ) = c  # fmt: skip
        if warm is not False or loading:
            load_s = 0.0
        elif fits is False:
            estimates.append(None)
            continue
        elif load_s is None:
            load_s = load_guess
        if per_token is None:
            per_token = prefill_guess
        slot_s = (service_guess if service_s is None else service_s) / capacity  # a place frees this often
        wait_s = busy_s if free > 0 else busy_s + (ahead + 1) * slot_s
        if matched > prompt:
            matched = prompt
        if kv is not None and kv > KV_PRESSURE:
            # The nearer to full, the likelier the prefix is gone, and that the engine queues what we send.
            pressure = min((kv - KV_PRESSURE) / (1 - KV_PRESSURE), 1.0)
            matched = int(matched * (1 - pressure))
            wait_s += pressure * slot_s
        estimates.append((wait_s, load_s, (prompt - matched) * per_token, matched * per_token))
    return estimates


_PREFILL, _LOAD, _SERVICE = (
    itemgetter(Candidate._fields.index(name)) for name in ("prefill_s_per_token", "load_s", "service_s")
)


def _guess(values: Iterable[float | None], default: float) -> float:
    """The median of the *distinct* values: a twin of a known target must not move the guess for others."""
    distinct = set(values)
    if None not in distinct:
        return default  # nobody needs it
    distinct.remove(None)
    known = sorted(cast("set[float]", distinct))
    half = len(known) // 2
    return (known[half] + known[~half]) / 2 if known else default


def _why(best: _Scored, others: Sequence[_Scored]) -> Why:
    """What told against the least utilized of the others: cache or residency, whichever saved more."""
    if not others:
        return Why.ONLY_CHOICE
    chosen, score = best
    rival, its = min(others, key=lambda o: (o[0].utilization, o[1].ttft_s))
    cache_s, warm_s = score.saved_s - its.saved_s, its.load_s - score.load_s
    if chosen.utilization < rival.utilization or max(cache_s, warm_s) <= TIE_S:
        return Why.LEAST_LOADED
    return Why.CACHE if cache_s > warm_s else Why.WARM


def _reason(best: _Scored, others: Sequence[_Scored], asked: int) -> str:
    text = f"{_state(*best)}, est. {_estimate(*best)}"
    if others:
        rival, its = min(others, key=lambda o: o[1].ttft_s)
        return f"{text} against {_estimate(rival, its)} at {rival.name} ({_state(rival, its)})"
    if asked > 1:
        return f"{text}; elsewhere its load would push out a model in use"
    return f"the only backend with the model now: {text}"


def _estimate(c: Candidate, s: Score) -> str:
    """How far a load has come that is under way, nobody can say: the estimate holds from its end."""
    return f"{s.ttft_s:.1f} s" + (" once loaded" if c.loading and not c.warm else "")


def _state(c: Candidate, s: Score) -> str:
    residency = "loading" if c.loading and not c.warm else "to be loaded" if c.cold else ""
    if c.warm:
        residency = "loaded"
    cached = f"{_tokens(c.matched_tokens)} tokens cached" if s.saved_s > 0 else ""
    room = f"{c.free} of {c.capacity} places free" if c.free > 0 else "no place free"
    queue = f"{c.queue_ahead} waiting ahead" if c.free <= 0 < c.queue_ahead else ""
    return ", ".join(part for part in (residency, cached, room, queue) if part)


def _tokens(n: int) -> str:
    return str(n) if n < 1000 else f"{n / 1000:.1f}k"
