"""A visit in words: the lines that the plain text and the tables are made of. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from engines.examine import Active
from engines.recipes import RECIPES
from engines.signals import WHOLE_BACKEND, Load, ModelInfo, Reading, Signal, Value
from gateway.doctor.visit import Visit

SIGNALS = {
    Signal.VERSION: "version",
    Signal.MODELS: "models",
    Signal.RESIDENCY: "in memory",
    Signal.VRAM_BYTES: "GPU memory",
    Signal.SIZE_BYTES: "size",
    Signal.RUNNING: "running",
    Signal.WAITING: "waiting",
    Signal.CAPACITY: "at a time",
    Signal.KV_USAGE: "KV cache",
}
BYTES = (Signal.VRAM_BYTES, Signal.SIZE_BYTES)
UNKNOWN = "unknown"


def clean(text: str) -> str:
    """Names come from engines: what would steer a terminal is shown and not sent to it."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)


def title(visit: Visit) -> str:
    """`llama.cpp b11434`, or that it is not known what it is."""
    kind = visit.found.kind
    if kind is None:
        return "not known what it is"
    version = visit.found.snapshot.version
    return clean(f"{RECIPES[kind].title} {version}" if version else RECIPES[kind].title)


def told_by(visit: Visit) -> str | None:
    """How the kind is known."""
    if visit.found.kind is None:
        return None
    if visit.patient.kind is not None:
        return f"kind {visit.found.kind}, as you said"
    return clean(f"kind {visit.found.kind}, detected: {visit.found.evidence}")


def amount(signal: Signal, value: Value | None) -> str:
    if value is None:
        return UNKNOWN
    if signal in BYTES and isinstance(value, int):
        return size(value)
    if signal is Signal.KV_USAGE and isinstance(value, float):
        return f"{value:.0%}"
    return clean(str(value))


def size(value: int | None) -> str:
    """Bytes in decimal units, as model files are sold: 4.7 GB."""
    if value is None:
        return UNKNOWN
    number = float(value)
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} TB"


def value_of(active: Active, most: int | None = None) -> str:
    """What a probe reads, all models of it or `most`."""
    if active.reading is None:
        return "no match yet"
    signal = active.probe.signal
    parts = list(_parts(signal, active.reading))
    if most is not None and len(parts) > most:
        parts = [*parts[:most], f"and {len(parts) - most} more"]
    return ", ".join(parts) or "none"


def _parts(signal: Signal, reading: Reading) -> Iterator[str]:
    for model, value in reading.items():
        if signal is Signal.MODELS:
            yield clean(model)
        elif model == WHOLE_BACKEND:
            yield amount(signal, value)
        else:
            yield f"{clean(model)} {amount(signal, value)}"


def source_of(active: Active) -> str:
    """Where a probe reads, and whether it is the operator's own."""
    return clean(active.source) + (" (own)" if active.probe.own else "")


def state_of(info: ModelInfo) -> str:
    return UNKNOWN if info.state is None else str(info.state)


def load_parts(load: Load) -> list[str]:
    return [
        f"running {amount(Signal.RUNNING, load.running)}",
        f"waiting {amount(Signal.WAITING, load.waiting)}",
        f"at a time {amount(Signal.CAPACITY, load.capacity)}",
        f"KV cache {amount(Signal.KV_USAGE, load.kv_usage)}",
    ]


def route_lines(routes: Mapping[str, bool | None]) -> list[tuple[str, list[str]]]:
    """The routes by what is known of them, without what is empty."""
    said = ((True, "answers"), (False, "does not have"), (None, "not known"))
    sorted_out = [(words, [r for r, served in routes.items() if served is state]) for state, words in said]
    return [(words, found) for words, found in sorted_out if found]


def plain(visits: Iterable[Visit]) -> str:
    """One fact a line, nothing cut off and nothing drawn: for pipes and for reading aloud."""
    return "\n".join("\n".join(_lines(visit)) + "\n" for visit in visits)


def _lines(visit: Visit) -> Iterator[str]:
    found = visit.found
    yield visit.patient.url

    def line(label: str, text: str) -> str:
        return f"  {label:<10} {text}"

    yield line("engine", title(visit))
    if how := told_by(visit):
        yield line("", how)
    if found.error is not None:
        yield line("error", clean(found.error))
    for name, info in (found.snapshot.models or {}).items():
        memory = f"size {size(info.size_bytes)}, GPU memory {size(info.vram_bytes)}"
        yield line("model", f"{clean(name)}: {state_of(info)}, {memory}")
    for model, load in found.snapshot.load.items():
        yield line("load", (f"{clean(model)}: " if model else "") + ", ".join(load_parts(load)))
    for active in found.active:
        what = f"{active.probe.signal} = {value_of(active)}"
        yield line("reads", f"{what} (probe {clean(active.probe.name)}, {source_of(active)})")
    for probe, why in found.dropped.items():
        yield line("not used", f"{clean(probe)}: {clean(why)}")
    if found.snapshot.unknown and found.error is None:
        yield line("unknown", ", ".join(found.snapshot.unknown))
    for words, routes in route_lines(found.routes) if found.error is None else ():
        yield line("routes", f"{words}: {', '.join(routes)}")
    for note in visit.notes:
        yield line("note", clean(note))
