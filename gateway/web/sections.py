"""The pages of /admin/: each is a table, or the config as text. Made from a snapshot in a thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import yaml
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from gateway.accounts.usage import NOTHING
from gateway.config import SIZES, Bytes, Config, Seconds, Secret
from gateway.web import filters, snapshot, status, words
from gateway.web.filters import UNKNOWN, known
from gateway.web.snapshot import Ask, KeyShot, Snapshot
from gateway.web.sums import By, Span, totals

HIDDEN = "(hidden)"


@dataclass(frozen=True, slots=True)
class Section:
    name: str
    title: str
    about: str
    show: Callable[[Snapshot, Ask], dict[str, Any]]


def _table(
    columns: Sequence[str], rows: Sequence[Sequence[object]], none: str, note: str = ""
) -> dict[str, Any]:
    return {"columns": columns, "rows": rows, "none": none, "note": note}


# -- keys --------------------------------------------------------------------------------------


def keys(shot: Snapshot, ask: Ask) -> dict[str, Any]:
    today = dict(totals(shot.history, Span(shot.today, shot.today), By.KEY))
    rows = [_key(shot, k, today.get(k.key.name, NOTHING).tokens) for k in snapshot.keys(ask)]
    columns = (
        "Name",
        "Requests in the last minute",
        "Tokens today",
        "Weight",
        "Models",
        "Admin",
        "Last seen",
    )
    none = "There are no keys: everybody who reaches Pharos may use it, and is counted as anonymous."
    return _table(columns, rows, none)


def _key(shot: Snapshot, k: KeyShot, used: int) -> Sequence[object]:
    link = format_html('<a href="/usage?key={}">{}</a>', k.key.name, k.key.name)
    rpm = "no limit" if k.key.rpm is None else _of(round(k.used_rpm or 0), k.key.rpm)
    tokens: object = f"{used:,}"
    if k.key.tokens_per_day is not None:
        tokens = _of(used, k.key.tokens_per_day)
        if k.held_tokens:
            tokens = format_html(
                "{} <small>{} held by requests in flight</small>", tokens, f"{k.held_tokens:,}"
            )
    seen = "not since Pharos started" if k.last_seen is None else filters.date_moment(k.last_seen, shot.zone)
    models = ", ".join(sorted(k.key.models)) or "all"
    return link, rpm, tokens, k.key.weight, models, "yes" if k.key.admin else "no", seen


def _of(used: int, limit: int) -> SafeString:
    return format_html(
        '<span class="quota">{} of {} <meter min="0" max="{}" value="{}" aria-hidden="true"></meter></span>',
        f"{used:,}", f"{limit:,}", limit, min(used, limit),
    )  # fmt: skip


# -- what lives --------------------------------------------------------------------------------


def backends(shot: Snapshot, _ask: Ask) -> dict[str, Any]:
    rows = [
        (
            b.shot.url,
            "up"
            if b.shot.up
            else format_html('<span class="bad">{}</span>', b.shot.error or "not asked yet"),
            known(b.kind),
            known(b.shot.plan.version if b.shot.plan else None),
            b.shot.models if b.shot.plan else UNKNOWN,
            b.shot.in_flight,
            _probes([f"{p.signal}: {p.name}" + (" (own)" if p.own else "") for p in b.probes]),
            _probes([f"{name}: {why}" for name, why in b.dropped]),
        )
        for b in status.backends(shot)
    ]
    columns = (
        "Address",
        "State",
        "Engine",
        "Version",
        "Models",
        "In flight",
        "Active probes",
        "Dropped probes",
    )
    return _table(columns, rows, "There are no backends.")


def _probes(lines: Sequence[str]) -> SafeString | str:
    if not lines:
        return "none"
    items = format_html_join("", "<li>{}</li>", ((line,) for line in lines))
    return format_html("<details><summary>{}</summary><ul>{}</ul></details>", len(lines), items)


def targets(shot: Snapshot, _ask: Ask) -> dict[str, Any]:
    rows = [
        (
            t.model,
            t.backend,
            known(words.residency(t.view.warm, t.view.loading)),
            known(t.view.running),
            known(t.view.waiting),
            known(t.view.capacity),
            filters.share(t.view.kv_usage),
            t.in_flight,
            filters.per_second(t.prefill_s_per_token),
            filters.seconds(t.load_s),
            filters.seconds(t.service_s),
            filters.seconds(t.error_s),
        )
        for b in shot.backends
        for t in b.targets
    ]
    columns = (
        "Model", "Backend", "Residency", "Running", "Waiting in engine", "Capacity", "KV cache",
        "In flight from here", "Prefill", "Load", "Service", "Prediction off by",
    )  # fmt: skip
    more = f"{shot.targets_left_out} more are not shown." if shot.targets_left_out else ""
    return _table(columns, rows, "No backend has listed a model yet.", more)


def live(shot: Snapshot, _ask: Ask) -> dict[str, Any]:
    rows = [
        (
            r.done.request_id,
            known(r.done.key),
            known(r.done.model),
            r.phase,
            filters.length(r.age_s),
            r.done.backend or "none yet",
            r.done.reason or "",
        )
        for r in status.live(shot)
    ]
    columns = ("Request", "Key", "Model", "Now", "Age", "Backend", "Why there")
    more = f"There are {shot.live_count}." if shot.live_count > len(rows) else ""
    return _table(columns, rows, "No request is in flight.", more)


# -- the config --------------------------------------------------------------------------------


def config(shot: Snapshot, _ask: Ask) -> dict[str, Any]:
    return {"text": yaml.safe_dump(plain(shot.config), sort_keys=False, allow_unicode=True, width=100)}


def plain(value: object) -> Any:  # noqa: ANN401  (what YAML writes)
    """The config as YAML takes it, with secrets hidden."""
    if isinstance(value, Secret):
        return HIDDEN
    if isinstance(value, msgspec.Struct):
        names = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
        found = {told: plain(getattr(value, name)) for told, name in names}
        return (
            found
            if isinstance(value, Config)
            else {n: v for n, v in found.items() if v not in (None, [], {})}
        )
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, Seconds):
        return f"{float(value):g}s"
    if isinstance(value, Bytes):
        unit = next((u for u in ("GiB", "MiB", "KiB") if value % SIZES[u] == 0), "B")
        return f"{value // SIZES[unit]}{unit}"
    return str(value) if isinstance(value, str) else value


SECTIONS = (
    Section("keys", "Keys", "who may use Pharos, what is left of quotas, when each was last seen", keys),
    Section("backends", "Backends", "the engines, and how Pharos reads each of them", backends),
    Section("targets", "Targets", "each model on each backend: loaded or not, how busy, how fast", targets),
    Section("requests", "Live requests", "what is being waited for and answered now", live),
    Section("config", "Config", "as it is in use, with secrets hidden", config),
)
