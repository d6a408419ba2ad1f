"""What came out of a run, in numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from statistics import fmean

import msgspec


class Outcome(StrEnum):
    DONE = "done"
    REFUSED = "refused"
    GAVE_UP = "gave up"  # no token within the user's patience


class Row(msgspec.Struct, frozen=True):
    """One request. Times in seconds; None: it did not come to that."""

    kind: str
    key: str
    outcome: Outcome
    sent_at: float
    wait_s: float | None = None  # until an engine began to work on it: queues and loads
    ttft_s: float | None = None  # from the user's sending
    prompt_tokens: int = 0
    cached_tokens: int = 0
    out_tokens: int = 0
    expected_cached: int | None = None  # by the gateway, where it had a say
    expected_ttft_s: float | None = None  # from the grant on
    granted_ttft_s: float | None = None  # what it was


class Times(msgspec.Struct, frozen=True):
    """Seconds."""

    n: int
    p50: float | None
    p95: float | None
    p99: float | None
    mean: float | None


class Result(msgspec.Struct, frozen=True):
    """One run."""

    scenario: str
    router: str
    seed: int
    requests: int
    refused: int
    gave_up: int
    ttft: Times
    ttft_by_kind: dict[str, Times]
    wait_by_key: dict[str, Times]
    cached_share: float | None  # of all prompt tokens
    computed_tokens: int  # of prompts
    loads: int
    jain: float | None  # see `jain`
    served_by_key: dict[str, int]  # tokens
    off_by_s: float | None  # the median error of the estimate, from the grant to the first token
    off_by_share: float | None  # and relative to what it was, of those over 0.2 s
    hits_right: float | None  # share of predictions of the cache that held, where a match was predicted
    ttfts: list[float] = []  # sorted, for the plots


def measure(
    scenario: str, router: str, seed: int, rows: Sequence[Row], loads: int, weights: dict[str, int]
) -> Result:
    done = [r for r in rows if r.outcome is Outcome.DONE]
    prompt, cached = sum(r.prompt_tokens for r in done), sum(r.cached_tokens for r in done)
    kinds, keys = sorted({r.kind for r in rows}), sorted({r.key for r in rows})
    served = {k: sum(_work(r) for r in done if r.key == k) for k in keys}
    return Result(
        scenario,
        router,
        seed,
        requests=len(rows),
        refused=sum(r.outcome is Outcome.REFUSED for r in rows),
        gave_up=sum(r.outcome is Outcome.GAVE_UP for r in rows),
        ttft=times(r.ttft_s for r in rows),
        ttft_by_kind={k: times(r.ttft_s for r in rows if r.kind == k) for k in kinds},
        wait_by_key={k: times(r.wait_s for r in rows if r.key == k) for k in keys},
        cached_share=cached / prompt if prompt else None,
        computed_tokens=prompt - cached,
        loads=loads,
        jain=jain([served[k] / weights.get(k, 1) for k in keys]),
        served_by_key=served,
        off_by_s=_median(abs(e - a) for e, a in _estimates(done)),
        off_by_share=_median(abs(e - a) / a for e, a in _estimates(done) if a > 0.2),
        hits_right=_hits(done),
        ttfts=sorted(round(r.ttft_s, 4) for r in rows if r.ttft_s is not None),
    )


def times(values: Iterable[float | None]) -> Times:
    known = sorted(v for v in values if v is not None)
    return Times(
        len(known),
        percentile(known, 50),
        percentile(known, 95),
        percentile(known, 99),
        fmean(known) if known else None,
    )


def percentile(ordered: Sequence[float], percent: float) -> float | None:
    """Between the two nearest ranks. None: there are no values."""
    if not ordered:
        return None
    at = (len(ordered) - 1) * percent / 100
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def jain(shares: Sequence[float]) -> float | None:
    """Jain's index: 1 where all have alike, 1/n where one has all. Means something where all want more."""
    squares = sum(x * x for x in shares)
    return None if not squares else sum(shares) ** 2 / (len(shares) * squares)


def _work(row: Row) -> int:
    return row.prompt_tokens + row.out_tokens


def _estimates(rows: Iterable[Row]) -> Iterable[tuple[float, float]]:
    for row in rows:
        if row.expected_ttft_s is not None and row.granted_ttft_s is not None:
            yield row.expected_ttft_s, row.granted_ttft_s


def _hits(rows: Iterable[Row]) -> float | None:
    """A prediction is wrong where less than half of it was there."""
    expected = [(r.expected_cached, r.cached_tokens) for r in rows if r.expected_cached]
    return fmean(c >= e / 2 for e, c in expected if e is not None) if expected else None


def _median(values: Iterable[float]) -> float | None:
    return percentile(sorted(values), 50)
