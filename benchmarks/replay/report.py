"""What a run came to, how runs compare, and how they are shown and kept."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.replay.client import Asked
from benchmarks.replay.fronts import PHAROS, ROUND_ROBIN
from benchmarks.report import FOLDER, quantile


@dataclass(frozen=True, slots=True)
class Run:
    front: str
    repeat: int
    asked: Sequence[Asked]
    told: Sequence[dict[str, Any]]  # by Pharos, of its own requests
    took_s: float
    load_1m: float  # of the machine, at its end


@dataclass(frozen=True, slots=True)
class Sum:
    """Seconds, tokens. None where no request says."""

    ttft_p50: float | None
    ttft_p95: float | None
    prompt: int
    cached: int
    errors: int

    @property
    def computed(self) -> int:
        return self.prompt - self.cached


def sum_of(asked: Sequence[Asked]) -> Sum:
    ttfts = [row.ttft_s for row in asked if row.ttft_s is not None]
    counted = [row for row in asked if row.computed_tokens is not None]
    return Sum(
        quantile(ttfts, 0.5) if ttfts else None,
        quantile(ttfts, 0.95) if ttfts else None,
        sum(row.prompt_tokens or 0 for row in counted),
        sum(row.cached_tokens or 0 for row in counted),
        sum(row.error is not None for row in asked),
    )


@dataclass(frozen=True, slots=True)
class Foresight:
    """How well Pharos knew beforehand. Shares are 0 to 1; None: nothing to say it of."""

    right: float | None  # hits and misses, of the requests whose reply tells
    error_s: float | None  # the median of how far the time to the first token was off, either way
    bias: float | None  # the median of predicted by actual: 1 is right, more is too long


def foresight(told: Sequence[dict[str, Any]]) -> Foresight:
    outcomes = [row["decisions"].get("prefix") for row in told]
    known = [o for o in outcomes if o not in (None, "unknown")]
    pairs = [
        (row["predicted_s"], row["ttft_s"])
        for row in told
        if row["predicted_s"] is not None and row["ttft_s"]
    ]
    return Foresight(
        sum(o in ("predicted_hit", "miss") for o in known) / len(known) if known else None,
        quantile([abs(predicted - came) for predicted, came in pairs], 0.5) if pairs else None,
        quantile([predicted / came for predicted, came in pairs], 0.5) if pairs else None,
    )


def show(console: Console, runs: Sequence[Run]) -> None:
    table = Table(title="The same conversations over the same engines", title_justify="left", pad_edge=False)
    for heading in ("repeat", ""):
        table.add_column(heading)
    headings = (
        "TTFT p50\ns",
        "p95\ns",
        "prompt\ntokens",
        "of these\ncached",
        "computed",
        "errors",
        "run\ns",
        "load",
    )
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for repeat in sorted({run.repeat for run in runs}):
        for run in (run for run in runs if run.repeat == repeat):
            table.add_row(
                str(repeat + 1), run.front, *_cells(run.asked), f"{run.took_s:.0f}", f"{run.load_1m:.1f}"
            )
        table.add_section()
    for front in (PHAROS, ROUND_ROBIN):
        table.add_row("all", front, *_cells(asked_of(runs, front)))
    table.add_row("", "Pharos ÷ round-robin", *_ratios(runs))
    console.print(table)
    _show_foresight(console, [row for run in runs for row in run.told])
    for run in runs:
        for error in sorted({row.error for row in run.asked if row.error}):
            console.print(f"{run.front}, repeat {run.repeat + 1}: {error}", soft_wrap=True, highlight=False)


def asked_of(runs: Sequence[Run], front: str) -> list[Asked]:
    return [row for run in runs if run.front == front for row in run.asked]


def _cells(asked: Sequence[Asked]) -> list[str]:
    s = sum_of(asked)
    share = f"{s.cached:,} ({s.cached / s.prompt:.0%})" if s.prompt else ""
    return [
        _seconds(s.ttft_p50),
        _seconds(s.ttft_p95),
        f"{s.prompt:,}",
        share,
        f"{s.computed:,}",
        str(s.errors),
    ]


def _ratios(runs: Sequence[Run]) -> list[str]:
    ours, theirs = sum_of(asked_of(runs, PHAROS)), sum_of(asked_of(runs, ROUND_ROBIN))
    pairs = (
        (ours.ttft_p50, theirs.ttft_p50),
        (ours.ttft_p95, theirs.ttft_p95),
        (ours.prompt, theirs.prompt),
        (ours.cached, theirs.cached),
        (ours.computed, theirs.computed),
    )
    return [f"{our / their:.2f}" if our is not None and their else "" for our, their in pairs]


def _show_foresight(console: Console, told: Sequence[dict[str, Any]]) -> None:
    seen = foresight(told)
    if seen.right is None or seen.error_s is None or seen.bias is None:
        return
    console.print(
        f"What Pharos expected of the caches was right for {seen.right:.0%} of its requests. Its estimate of "
        f"the time to the first token was off by {seen.error_s:.2f} s, and {seen.bias:.2f} × "
        "what came (medians).",
        soft_wrap=True,
        highlight=False,
    )


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def file() -> Path:
    """Where the runs that begin now are kept."""
    return FOLDER / time.strftime("routing-%Y%m%dT%H%M%SZ.json", time.gmtime())


def keep(path: Path, runs: Sequence[Run], seed: int) -> None:
    """All that was measured so far, request by request."""
    path.parent.mkdir(exist_ok=True)
    body = {
        "seed": seed,
        "cpus": os.cpu_count(),
        "runs": [{**asdict(run), "sum": asdict(sum_of(run.asked))} for run in runs],
    }
    path.write_text(json.dumps(body, indent=1) + "\n")
