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
        yield Padding(_listed(facts), (0 if well else 1, 0, 0, 2))


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, header_style="dim", pad_edge=False, padding=(0, 1))
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
    return Padding(table, (0, 0, 0, 1))


def _value(active: Active) -> str:
    """The table of models says the rest."""
    reading = active.reading
    if reading is None or active.probe.signal not in PER_MODEL or WHOLE_BACKEND in reading:
        return words.value_of(active, MOST)
    if len(reading) > 1 or active.probe.signal is Signal.MODELS:
        return f"{len(reading)} model{'' if len(reading) == 1 else 's'}"
    return words.value_of(active, MOST)


def _models(visit: Visit) -> RenderableType:
    loads = visit.found.snapshot.load
    per_model = any(model in loads for model in visit.found.snapshot.models or {})
    table = _table("model", "in memory", "size", "GPU memory", *(["at work"] if per_model else []))
    for name, info in (visit.found.snapshot.models or {}).items():
        state = words.state_of(info)
        style = {"loaded": "green", "loading": "cyan", "cold": "", words.UNKNOWN: "yellow"}[state]
        cells: list[str | Text] = [words.clean(name), Text(state, style), words.size(info.size_bytes)]
        cells.append(words.size(info.vram_bytes))
        table.add_row(*cells, *([_at_work(loads.get(name))] if per_model else []))
    return Padding(table, (0, 0, 0, 1))


def _at_work(load: Load | None) -> str:
    if load is None:
        return words.UNKNOWN
    running = words.amount(Signal.RUNNING, load.running)
    return f"{running} of {words.amount(Signal.CAPACITY, load.capacity)}"


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


def _listed(facts: Iterable[tuple[str, Text]]) -> Table:
    """A label and what it says; a label that repeats is said once."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    last = ""
    for label, text in facts:
        if label == "note" and last != "note":
            grid.add_row("", "")
        bullet = Text("• ", "cyan") if label == "note" else Text("")
        grid.add_row("" if label == last else label, bullet + text)
        last = label
    return grid
