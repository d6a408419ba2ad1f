"""What /status shows, as a page and as JSON, made from one snapshot in a thread."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from gateway.accounts.usage import NOTHING, Counts
from gateway.proxy.decisions import stage_of
from gateway.proxy.done import Done
from gateway.proxy.feedback import ttft_s
from gateway.web import plans, words
from gateway.web.snapshot import BackendShot, Snapshot, TargetShot
from gateway.web.sums import By, Span, totals

MOST_KEYS = 20
"""With usage, on the page. All of them are on /usage and in the JSON."""


@dataclass(frozen=True, slots=True)
class Request:
    """One that is over or in flight, with what is told of it."""

    done: Done
    arrived: float  # seconds since the epoch
    age_s: float
    phase: str
    ttft_s: float | None
    why: list[str]
    candidates: list[words.Scored]


@dataclass(frozen=True, slots=True)
class Target:
    shot: TargetShot
    residency: str | None
    memory: int | None  # bytes that it takes, else would take


@dataclass(frozen=True, slots=True)
class Backend:
    shot: BackendShot
    targets: list[Target]
    kind: str | None
    probes: list[plans.Row]
    unread: list[str]
    dropped: list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class KeyUse:
    name: str
    today: Counts
    month: Counts


def backends(shot: Snapshot) -> list[Backend]:
    """But for addresses that were looked at in vain: an engine that nobody configured is not missing."""
    return [
        Backend(
            b,
            [_target(t) for t in b.targets],
            None if b.plan is None else b.plan.recipe.title,
            plans.rows(b),
            plans.unread(b),
            [] if b.plan is None else list(b.plan.dropped.items()),
        )
        for b in shot.backends
        if b.up or not b.searched
    ]


def _target(t: TargetShot) -> Target:
    view = t.view
    memory = view.size_bytes if view.vram_bytes is None else view.vram_bytes
    return Target(t, words.residency(view.warm, view.loading), memory)


def requests(shot: Snapshot) -> list[Request]:
    return [_request(shot, d, "over") for d in shot.recent]


def live(shot: Snapshot) -> list[Request]:
    return [_request(shot, d, words.phase(d)) for d in shot.live if d.model is not None]


def _request(shot: Snapshot, d: Done, phase: str) -> Request:
    scored = words.candidates(d)
    return Request(d, shot.at(d.arrived), shot.now - d.arrived, phase, ttft_s(d), words.why(d), scored)


def usage(shot: Snapshot) -> list[KeyUse]:
    """By key, today and in the 30 days that end today; the busiest first."""
    today, history = shot.today, shot.history
    of_today = dict(totals(history, Span(today, today), By.KEY))
    month = totals(history, Span(today - 29, today), By.KEY)
    return [KeyUse(name, of_today.get(name, NOTHING), counts) for name, counts in month]


def context(shot: Snapshot) -> dict[str, Any]:
    used, shown = usage(shot), backends(shot)
    today = Counts()
    for use in used:
        today = today.plus(use.today)
    return {
        "shot": shot,
        "zone": shot.zone,
        "zone_name": zone_name(shot),
        "backends": shown,
        "backends_up": sum(b.shot.up for b in shown),
        "today": today,
        "live": live(shot),
        "requests": requests(shot),
        "usage": used[:MOST_KEYS],
        "usage_left_out": max(0, len(used) - MOST_KEYS),
        "in_flight": sum(b.in_flight for b in shot.backends),
    }


def zone_name(shot: Snapshot) -> str:
    return getattr(shot.zone, "key", None) or str(shot.zone)


# -- the same as JSON --------------------------------------------------------------------------


def as_json(shot: Snapshot) -> dict[str, Any]:
    """None is unknown. Durations are seconds, times ISO 8601 in UTC."""
    return {
        "status": shot.state,
        "time": iso(shot.wall),
        "usage_timezone": zone_name(shot),
        "config": {
            "file": shot.config_file,
            "error": shot.config_error,
            "needs_restart": list(shot.needs_restart),
        },
        "backends": [_backend_json(b) for b in backends(shot)],
        "targets_left_out": shot.targets_left_out,
        "queue": {"waiting": shot.waiting, "by_key": dict(shot.waiting_by_key)},
        "live": [_request_json(r) for r in live(shot)],
        "requests": [_request_json(r) for r in requests(shot)],
        "usage": [
            {"key": u.name, "today": counts_json(u.today), "last_30_days": counts_json(u.month)}
            for u in usage(shot)
        ],
    }


def iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def counts_json(counts: Counts) -> dict[str, int]:
    return dict(zip(Counts.__struct_fields__, counts.each(), strict=True))


def _backend_json(b: Backend) -> dict[str, Any]:
    plan = b.shot.plan
    return {
        "url": b.shot.url,
        "up": b.shot.up,
        "error": b.shot.error,
        "kind": None if plan is None else str(plan.recipe.kind),
        "version": None if plan is None else plan.version,
        "asleep": None if plan is None else plan.asleep,
        "round_age_s": b.shot.round_age_s,
        "load_age_s": b.shot.load_age_s,
        "in_flight": b.shot.in_flight,
        "probes": [
            {"name": p.name, "signal": p.signal, "feed": p.feed, "own": p.own, "value": p.value}
            for p in b.probes
        ],
        "unread": b.unread,
        "dropped": dict(b.dropped),
        "targets": [_target_json(t) for t in b.shot.targets],
    }


def _target_json(t: TargetShot) -> dict[str, Any]:
    view = t.view
    return {
        "model": t.model,
        "served_as": t.served,
        "up": t.up,
        "residency": words.residency(view.warm, view.loading),
        "running": view.running,
        "waiting_in_engine": view.waiting,
        "capacity": view.capacity,
        "kv_usage": view.kv_usage,
        "size_bytes": view.size_bytes,
        "vram_bytes": view.vram_bytes,
        "in_flight": t.in_flight,
        "waiting": t.waiting,
        "prefill_s_per_token": t.prefill_s_per_token,
        "load_s": t.load_s,
        "service_s": t.service_s,
        "prediction_error_s": t.error_s,
    }


def _request_json(r: Request) -> dict[str, Any]:
    d = r.done
    over = r.phase == "over"
    return {
        "id": d.request_id,
        "arrived": iso(r.arrived),
        "phase": r.phase,
        "path": d.path,
        "key": d.key,
        "model": d.model,
        "backend": d.backend,
        "reason": d.reason,
        "status": d.status,
        "outcome": d.outcome if over else None,
        "streamed": d.streamed,
        "predicted_ttft_s": d.predicted_s,
        "ttft_s": r.ttft_s,
        "waited_s": d.granted_s,
        "total_s": d.total_s if over else None,
        "age_s": None if over else r.age_s,
        "prompt_tokens": d.prompt_tokens,
        "completion_tokens": d.completion_tokens,
        "cached_tokens": d.cached_tokens,
        "decisions": [[stage_of(x), str(x)] for x in d.decisions],
        "why": r.why,
        "candidates": [
            {
                "backend": c.name, "chosen": c.chosen, "feasible": c.feasible, "residency": c.residency,
                "free": c.free, "capacity": c.capacity, "queue_ahead": c.queue_ahead,
                "cached_tokens": c.cached_tokens,
                "ttft_s": c.ttft_s if c.feasible else None,
                "wait_s": c.wait_s if c.feasible else None,
                "load_s": c.load_s if c.feasible else None,
                "prefill_s": c.prefill_s if c.feasible else None,
            }
            for c in r.candidates
        ],
    }  # fmt: skip
