"""Results side by side: one router over all seeds of a scenario, and how far it is from the oracle."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean

import msgspec

from gateway.simulate.measure import Result, Times

ORACLE = "oracle"


class Summary(msgspec.Struct, frozen=True):
    """Means over the seeds. Times in seconds."""

    router: str
    seeds: int
    requests: float
    p50: float | None
    p95: float | None
    p99: float | None
    p50_to_oracle: float | None  # the mean of each seed's ratio
    p95_to_oracle: float | None
    cached_share: float | None
    computed_tokens: float
    loads: float
    wait_by_key: dict[str, float | None]
    p95_wait_by_key: dict[str, float | None]
    p50_by_kind: dict[str, float | None]
    p95_by_kind: dict[str, float | None]
    jain: float | None
    refused: float
    gave_up: float
    off_by_s: float | None
    off_by_share: float | None
    hits_right: float | None


def routers_of(results: Iterable[Result]) -> list[str]:
    return list(dict.fromkeys(r.router for r in results))


def summaries(results: Sequence[Result]) -> list[Summary]:
    """Of one scenario; one a router, in the order of the results."""
    oracle = {r.seed: r for r in results if r.router == ORACLE}
    return [_summary([r for r in results if r.router == name], oracle) for name in routers_of(results)]


def _summary(mine: Sequence[Result], oracle: dict[int, Result]) -> Summary:
    pairs = [(r.ttft, oracle[r.seed].ttft) for r in mine if r.seed in oracle]
    keys, kinds = mine[0].wait_by_key, mine[0].ttft_by_kind
    return Summary(
        router=mine[0].router,
        seeds=len(mine),
        requests=fmean(r.requests for r in mine),
        p50=mean(r.ttft.p50 for r in mine),
        p95=mean(r.ttft.p95 for r in mine),
        p99=mean(r.ttft.p99 for r in mine),
        p50_to_oracle=mean(_ratio(a.p50, b.p50) for a, b in pairs),
        p95_to_oracle=mean(_ratio(a.p95, b.p95) for a, b in pairs),
        cached_share=mean(r.cached_share for r in mine),
        computed_tokens=fmean(r.computed_tokens for r in mine),
        loads=fmean(r.loads for r in mine),
        wait_by_key={k: mean(_at(r.wait_by_key, k).mean for r in mine) for k in keys},
        p95_wait_by_key={k: mean(_at(r.wait_by_key, k).p95 for r in mine) for k in keys},
        p50_by_kind={k: mean(_at(r.ttft_by_kind, k).p50 for r in mine) for k in kinds},
        p95_by_kind={k: mean(_at(r.ttft_by_kind, k).p95 for r in mine) for k in kinds},
        jain=mean(r.jain for r in mine),
        refused=fmean(r.refused for r in mine),
        gave_up=fmean(r.gave_up for r in mine),
        off_by_s=mean(r.off_by_s for r in mine),
        off_by_share=mean(r.off_by_share for r in mine),
        hits_right=mean(r.hits_right for r in mine),
    )


def mean(values: Iterable[float | None]) -> float | None:
    """Of the known ones."""
    known = [v for v in values if v is not None]
    return fmean(known) if known else None


def _ratio(mine: float | None, best: float | None) -> float | None:
    return None if mine is None or not best else mine / best


NO_TIMES = Times(0, None, None, None, None)


def _at(times: dict[str, Times], name: str) -> Times:
    return times.get(name, NO_TIMES)
