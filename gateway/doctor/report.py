"""A visit as data: what `--json` prints. Programs read it, so every key is always there."""

from __future__ import annotations

from typing import Any

from engines.signals import Load, ModelInfo
from gateway.doctor.visit import Visit


def report(visit: Visit) -> dict[str, Any]:
    """Unknown is null; `models` and `load` are empty when nothing is known of them, and `unknown` says so."""
    found = visit.found
    shot = found.snapshot
    return {
        "url": visit.patient.url,
        "kind": None if found.kind is None else str(found.kind),
        "kind_from": visit.kind_from,
        "version": shot.version,
        "models": {name: _model(info) for name, info in (shot.models or {}).items()},
        "load": {model: _load(load) for model, load in shot.load.items()},
        "from": {str(signal): probe for signal, probe in shot.source.items()},
        "dropped": dict(found.dropped),
        "unknown": [str(signal) for signal in shot.unknown],
        "routes": dict(found.routes),
        "notes": list(visit.notes),
        "error": found.error,
    }


def _model(info: ModelInfo) -> dict[str, Any]:
    return {
        "state": None if info.state is None else str(info.state),
        "vram_bytes": info.vram_bytes,
        "size_bytes": info.size_bytes,
    }


def _load(load: Load) -> dict[str, Any]:
    return {
        "running": load.running,
        "waiting": load.waiting,
        "capacity": load.capacity,
        "kv_usage": load.kv_usage,
    }
