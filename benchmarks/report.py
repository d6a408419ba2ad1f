"""Figures, and how they are shown and kept."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

FOLDER = Path(__file__).resolve().parents[1] / ".benchmarks"


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value. `direct_p50` is the same call without the gateway, measured in the same run."""

    name: str
    unit: str
    p50: float | None
    p99: float | None = None
    direct_p50: float | None = None
    direct_p99: float | None = None
    note: str = ""

    @property
    def ratio(self) -> float | None:
        return self.p50 / self.direct_p50 if self.p50 is not None and self.direct_p50 else None


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which `share` (0..1) of the values lie. At least one value."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def figure(
    name: str, unit: str, values: Sequence[float], direct: Sequence[float] = (), note: str = ""
) -> Figure:
    return Figure(
        name,
        unit,
        quantile(values, 0.5),
        quantile(values, 0.99),
        quantile(direct, 0.5) if direct else None,
        quantile(direct, 0.99) if direct else None,
        note,
    )


def show(console: Console, figures: Sequence[Figure]) -> None:
    table = Table(title="What Pharos costs on this machine", title_justify="left")
    table.add_column("")
    for heading in ("unit", "p50", "p99", "direct p50", "direct p99", "× direct"):
        table.add_column(heading, justify="right", no_wrap=True)
    notes = list(dict.fromkeys(f.note for f in figures if f.note))
    for f in figures:
        mark = f" [dim]({notes.index(f.note) + 1})[/dim]" if f.note else ""
        numbers = [_number(n) for n in (f.p50, f.p99, f.direct_p50, f.direct_p99, f.ratio)]
        table.add_row(f.name + mark, f.unit, *numbers)
    console.print(table)
    for number, note in enumerate(notes, 1):
        console.print(f"  ({number}) {note}", soft_wrap=True, highlight=False)


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def keep(figures: Sequence[Figure]) -> Path:
    """Write the figures with what they were measured on. Returns the file."""
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / time.strftime("%Y%m%dT%H%M%SZ.json", time.gmtime())
    machine = {
        "cpus": os.cpu_count(),
        "load_1m": os.getloadavg()[0],
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }
    body = {"machine": machine, "figures": [{**asdict(f), "ratio": f.ratio} for f in figures]}
    path.write_text(json.dumps(body, indent=2) + "\n")
    return path
