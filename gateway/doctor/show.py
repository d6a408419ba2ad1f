"""A visit on a terminal, at 80 columns as well as at 120."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from engines.examine import Active
from engines.signals import WHOLE_BACKEND, Load, Signal
from gateway.doctor import words
from gateway.doctor.visit import Visit

MOST = 6  # models named in one cell
INSET = (1, 0, 0, 2)
STATE_STYLE = {"loaded": "green", "loading": "cyan", "cold": "", words.UNKNOWN: "yellow"}
PER_MODEL = (Signal.MODELS, Signal.RESIDENCY, Signal.SIZE_BYTES, Signal.VRAM_BYTES)


def screen(visits: Iterable[Visit]) -> RenderableType:
    return Group(*(Padding(Group(*_parts(visit)), (1, 1, 0, 1)) for visit in visits))


def _parts(visit: Visit) -> Iterator[RenderableType]:
    found = visit.found
    well = found.error is None
    head = Text("● ", "green" if well else "red")
    head.append(visit.patient.url, "bold").append("  ").append(words.title(visit), "bold" if well else "")
    yield head
    if how := words.told_by(visit):
        yield Padding(Text(how, "dim"), (0, 0, 0, 2))
    if found.error is not None:
        yield Padding(Text(words.clean(found.error), "red"), (0, 0, 0, 2))
    if well:
        yield _signals(visit)
        if found.snapshot.models:
            yield _models(visit)
    facts = list(_facts(visit))
    if facts:
        yield Padding(_listed(facts), INSET)


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, header_style="dim", show_edge=False, pad_edge=False, padding=(0, 1))
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _signals(visit: Visit) -> RenderableType:
    table = _table("signal", "value now", "read by", "from")
    for active in visit.found.active:
        signal = active.probe.signal
        value = Text(_value(active), "yellow" if active.reading is None else "")
        table.add_row(words.SIGNALS[signal], value, words.clean(active.probe.name), words.source_of(active))
    shown = {active.probe.signal for active in visit.found.active}
    for signal in visit.found.snapshot.unknown:
        if signal not in shown:
            table.add_row(words.SIGNALS[signal], Text(words.UNKNOWN, "yellow"), "", "")
    return Padding(table, INSET)


def _value(active: Active) -> str:
    """The table of models says the rest."""
    reading = active.reading
    if reading is None or active.probe.signal not in PER_MODEL or WHOLE_BACKEND in reading:
        return words.value_of(active, MOST)
    if len(reading) > 1 or active.probe.signal is Signal.MODELS:
        return f"{len(reading)} model{'' if len(reading) == 1 else 's'}"
    return words.value_of(active, MOST)


def _models(visit: Visit) -> RenderableType:
    """Columns that nothing is known of are left out: the table of signals says so already."""
    models, loads = visit.found.snapshot.models or {}, visit.found.snapshot.load
    columns: dict[str, list[Text]] = {
        "model": [Text(words.clean(name)) for name in models],
        "in memory": [Text(words.state_of(i), STATE_STYLE[words.state_of(i)]) for i in models.values()],
        "size": [Text(words.size(i.size_bytes)) for i in models.values()],
        "GPU memory": [Text(words.size(i.vram_bytes)) for i in models.values()],
        "at work": [Text(_at_work(loads.get(name))) for name in models],
    }
    known = {head: cells for head, cells in columns.items() if any(c.plain != words.UNKNOWN for c in cells)}
    table = _table(*known)
    for row in zip(*known.values(), strict=True):
        table.add_row(*row)
    return Padding(table, INSET)


def _at_work(load: Load | None) -> str:
    """`2 of 4, 1 waiting`; what is not known is left out."""
    if load is None or (load.running is None and load.capacity is None):
        return words.UNKNOWN
    if load.running is None:
        return f"{load.capacity} at a time"
    busy = str(load.running) if load.capacity is None else f"{load.running} of {load.capacity}"
    return f"{busy}, {load.waiting} waiting" if load.waiting else busy


def _facts(visit: Visit) -> Iterator[tuple[str, Text]]:
    found = visit.found
    if found.error is None:
        for said, routes in words.route_lines(found.routes):
            yield said, Text("  ".join(routes), "dim" if said != "answers" else "")
    for probe, why in found.dropped.items():
        text = Text(words.clean(probe), "dim")
        yield "not used", text.append(f"  {words.clean(why)}", "dim")
    for note in visit.notes:
        yield "note", Text(words.clean(note))


def _listed(facts: Iterable[tuple[str, Text]]) -> RenderableType:
    """A label and what it says; a label that repeats is said once. Notes stand below, each with a bullet."""
    grid, bullets = Table.grid(padding=(0, 2)), Table.grid(padding=(0, 1))
    for table in (grid, bullets):
        table.add_column(style="dim", no_wrap=True)
        table.add_column(overflow="fold")
    last = ""
    for label, text in facts:
        if label == "note":
            bullets.add_row(Text("•", "cyan"), text)
        else:
            grid.add_row("" if label == last else label, text)
        last = label
    blank = [Text()] if grid.row_count and bullets.row_count else []
    return Group(*([grid] if grid.row_count else []), *blank, *([bullets] if bullets.row_count else []))
