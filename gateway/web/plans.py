"""What each probe of a backend reads now, out of what is known of its targets. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from engines.probes import Log, Probe
from engines.signals import LOAD_FIELDS, Signal
from gateway.web.filters import size
from gateway.web.snapshot import BackendShot, TargetShot
from gateway.web.words import residency

MOST_VALUES = 6


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    signal: str
    feed: str  # the path it asks, or `log`
    own: bool
    value: str | None  # None: unknown now


def rows(backend: BackendShot) -> list[Row]:
    """The active probes, by signal, and the signals that none reads."""
    if backend.plan is None:
        return []
    order = list(Signal)
    active = sorted(backend.plan.active, key=lambda p: order.index(p.signal))
    return [Row(p.name, str(p.signal), _feed(p), p.own, value(p.signal, backend)) for p in active]


def unread(backend: BackendShot) -> list[str]:
    if backend.plan is None:
        return []
    return [str(s) for s in Signal if all(p.signal is not s for p in backend.plan.active)]


def _feed(probe: Probe) -> str:
    return "log" if isinstance(probe.feed, Log) else probe.feed.url


def value(signal: Signal, backend: BackendShot) -> str | None:
    """For people. None: unknown."""
    targets = backend.targets
    if signal is Signal.VERSION:
        return None if backend.plan is None else backend.plan.version
    if signal is Signal.MODELS:
        return f"{backend.models} listed"
    if signal is Signal.RESIDENCY:
        counts = Counter(residency(t.view.warm, t.view.loading) or "unknown" for t in targets)
        return ", ".join(f"{n} {state}" for state, n in counts.items()) or None
    if signal in LOAD_FIELDS:
        return _of_models([(t.model, _load(t, signal)) for t in targets])
    field = "vram_bytes" if signal is Signal.VRAM_BYTES else "size_bytes"
    sizes = [(t.model, getattr(t.view, field)) for t in targets]
    return _of_models([(m, None if n is None else str(size(n))) for m, n in sizes])


def _load(target: TargetShot, signal: Signal) -> str | None:
    found = getattr(target.view, LOAD_FIELDS[signal])
    if found is None:
        return None
    return f"{found:.0%}" if signal is Signal.KV_USAGE else str(found)


def _of_models(found: Sequence[tuple[str, str | None]]) -> str | None:
    """One value where all models have the same, else each model's that is known."""
    known = [(model, v) for model, v in found if v is not None]
    if not known:
        return None
    if len({v for _, v in found}) == 1:
        return known[0][1]
    shown = ", ".join(f"{model}: {v}" for model, v in known[:MOST_VALUES])
    return shown + (f" and {len(known) - MOST_VALUES} more" if len(known) > MOST_VALUES else "")
