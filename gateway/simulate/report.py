"""A comparison as tables for a terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gateway.simulate.compare import ORACLE, Summary
from gateway.simulate.scenario import Scenario

UNKNOWN = "–"


def seconds(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    return f"{value:.2f} s" if value < 10 else f"{value:.0f} s"


def share(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.0%}"


def number(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.0f}" if value == round(value) else f"{value:.1f}"


def times(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.2f}×"


Column = tuple[str, Callable[[Summary], str]]

COLUMNS: tuple[Column, ...] = (
    ("router", lambda s: s.router),
    ("TTFT p50", lambda s: seconds(s.p50)),
    ("p95", lambda s: seconds(s.p95)),
    ("p99", lambda s: seconds(s.p99)),
    ("p50 to oracle", lambda s: times(s.p50_to_oracle)),
    ("p95", lambda s: times(s.p95_to_oracle)),
    ("cached", lambda s: share(s.cached_share)),
    ("loads", lambda s: number(s.loads)),
    ("Jain", lambda s: UNKNOWN if s.jain is None else f"{s.jain:.2f}"),
    ("refused", lambda s: number(s.refused)),
    ("gave up", lambda s: number(s.gave_up)),
    ("requests", lambda s: f"{s.requests:.0f}"),
)


def detail_columns(found: Sequence[Summary]) -> tuple[Column, ...]:
    """By kind of user and by key, and how good the gateway's estimates were."""

    def kind(name: str) -> Column:
        return f"{name} p50, p95", lambda s: _two(s.p50_by_kind.get(name), s.p95_by_kind.get(name))

    def key(name: str) -> Column:
        return f"wait {name}", lambda s: _two(s.wait_by_key.get(name), s.p95_wait_by_key.get(name))

    return (
        COLUMNS[0],
        *map(kind, found[0].p50_by_kind),
        *map(key, found[0].wait_by_key),
        ("estimate off", lambda s: share(s.off_by_share)),
        ("hits right", lambda s: share(s.hits_right)),
    )


def _two(a: float | None, b: float | None) -> str:
    return UNKNOWN if a is None or b is None else f"{a:.2f}, {b:.2f}" if b < 10 else f"{a:.1f}, {b:.0f}"


def screen(scenario: Scenario, found: Sequence[Summary]) -> RenderableType:
    head = Text(scenario.name, "bold")
    head.append(f"  {scenario.about}. {scenario.minutes:g} min × {found[0].seeds} seed(s)", "not bold")
    legend = Text(
        "Means over the seeds. Waits are mean and p95 in seconds, until an engine begins to work. Estimates: "
        "the median error of the time from the grant to the first token. Jain: of tokens served by weight.",
        "dim",
    )
    return Padding(
        Group(head, Text(), _table(COLUMNS, found), Text(), _table(detail_columns(found), found), legend),
        (1, 1, 1, 1),
    )


def _table(columns: Sequence[Column], found: Sequence[Summary]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, header_style="dim", show_edge=False, pad_edge=False, padding=(0, 1))
    for at, (name, _) in enumerate(columns):
        table.add_column(name, justify="right" if at else "left", overflow="fold")
    for summary in found:
        style = "dim" if summary.router == ORACLE else None
        table.add_row(*(cell(summary) for _, cell in columns), style=style)
    return table
