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
    """One measured value. `direct_...` is the same call without the gateway and `nginx_...` the same through
    nginx, measured in the same run; None: not measured."""

    name: str
    unit: str
    p50: float | None
    p99: float | None = None
    direct_p50: float | None = None
    direct_p99: float | None = None
    note: str = ""
    nginx_p50: float | None = None
    nginx_p99: float | None = None

    @property
    def ratio(self) -> float | None:
        return _ratio(self.p50, self.direct_p50)

    @property
    def nginx_ratio(self) -> float | None:
        return _ratio(self.p50, self.nginx_p50)


def _ratio(ours: float | None, theirs: float | None) -> float | None:
    return ours / theirs if ours is not None and theirs else None


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which `share` (0..1) of the values lie. At least one value."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def figure(
    name: str,
    unit: str,
    values: Sequence[float],
    direct: Sequence[float] = (),
    note: str = "",
    nginx: Sequence[float] = (),
) -> Figure:
    return Figure(name, unit, *_both(values), *_both(direct), note, *_both(nginx))


def _both(values: Sequence[float]) -> tuple[float | None, float | None]:
    return (quantile(values, 0.5), quantile(values, 0.99)) if values else (None, None)


def show(console: Console, figures: Sequence[Figure]) -> None:
    table = Table(title="What Pharos costs on this machine", title_justify="left", pad_edge=False)
    table.add_column("")
    headings = ("unit", "p50", "p99", "direct\np50", "\np99", "×\ndirect", "nginx\np50", "\np99", "×\nnginx")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    notes = list(dict.fromkeys(f.note for f in figures if f.note))
    for f in figures:
        mark = f" [dim]({notes.index(f.note) + 1})[/dim]" if f.note else ""
        shown = (f.p50, f.p99, f.direct_p50, f.direct_p99, f.ratio, f.nginx_p50, f.nginx_p99, f.nginx_ratio)
        table.add_row(f.name + mark, f.unit, *map(_number, shown))
    console.print(table)
    for number, note in enumerate(notes, 1):
        console.print(f"  ({number}) {note}", soft_wrap=True, highlight=False)
    console.print(f"Load average of the last minute: {os.getloadavg()[0]:.2f} on {os.cpu_count()} CPUs.")


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
    body = {
        "machine": machine,
        "figures": [{**asdict(f), "ratio": f.ratio, "nginx_ratio": f.nginx_ratio} for f in figures],
    }
    path.write_text(json.dumps(body, indent=2) + "\n")
    return path
