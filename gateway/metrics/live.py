"""Series of what is so now. They are read when the page is written, so what is taken out is gone from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import Metric

from gateway.fleet.backend import Backend
from gateway.fleet.fleet import Fleet
from gateway.fleet.target import Target
from gateway.metrics.series import Gauges, Labels
from gateway.routing.scheduler import Scheduler

UP = Gauges(
    "pharos_backend_up",
    "1: it answered its last round. Kind and version are empty until it has told them.",
    ("backend", "kind", "version"),
)
LOG_UP = Gauges("pharos_backend_log_feed_up", "1: the engine's log can be read.", ("backend",))
PROBES = Gauges("pharos_backend_probes_active", "Probes that the engine answers.", ("backend",))
IN_FLIGHT = Gauges(
    "pharos_target_inflight", "Requests of this Pharos that are at the target.", ("backend", "model")
)
UNKNOWN = Gauges(
    "pharos_target_signals_unknown",
    "How many of residency, running, waiting, capacity and KV usage are not known.",
    ("backend", "model"),
)
WAITING = Gauges("pharos_queue_waiting", "Requests that wait for a place at an engine.")

GAUGES = (UP, LOG_UP, PROBES, IN_FLIGHT, UNKNOWN, WAITING)

Values = Iterator[tuple[Labels, float]]


class Live:
    def __init__(self, fleet: Fleet, scheduler: Scheduler[Target], now: Callable[[], float]) -> None:
        self.fleet, self.scheduler, self.now = fleet, scheduler, now

    def collect(self) -> Iterator[Metric]:
        """A few series at a time; whoever asks for the next may let the loop run in between."""
        backends = [b for b in self.fleet.backends if b.up or not b.searched]
        targets = [t for b in self.fleet.backends for t in b.targets.values() if t.up or self._busy(t)]
        yield from UP.pieces(map(_up, backends))
        yield from LOG_UP.pieces(((b.url,), float(b.log_up is True)) for b in backends if _has_log(b))
        yield from PROBES.pieces(_probes(backends))
        yield from IN_FLIGHT.pieces((_labels(t), self.scheduler.in_flight(t)) for t in targets)
        yield from UNKNOWN.pieces((_labels(t), _unknown(t, self.now())) for t in targets)
        yield from WAITING.pieces([((), self.scheduler.waiting)])

    def _busy(self, target: Target) -> bool:
        return self.scheduler.in_flight(target) > 0


def _labels(target: Target) -> Labels:
    return target.backend.url, target.model


def _up(backend: Backend) -> tuple[Labels, float]:
    plan = None if backend.view is None else backend.view.plan
    kind = (backend.config.engine_kind or "") if plan is None else plan.recipe.kind
    version = "" if plan is None or plan.version is None else plan.version
    return (backend.url, kind, version), float(backend.up)


def _has_log(backend: Backend) -> bool:
    """Is there one to follow, and something to be read in it?"""
    view = backend.view
    return backend.config.log_path is not None and view is not None and bool(view.plan.log_probes)


def _probes(backends: list[Backend]) -> Values:
    """Of those that are up: what a backend answers that is down is not known."""
    for backend in backends:
        if backend.up and backend.view is not None:
            yield (backend.url,), len(backend.view.plan.active)


def _unknown(target: Target, now: float) -> float:
    view = target.view(now)
    known = (view.warm, view.running, view.waiting, view.capacity, view.kv_usage)
    return float(sum(value is None for value in known))
