"""Where a visit's recording goes: `DIR/<engine>/<version>/<state>/`."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from pathlib import Path

from engines.record import Meta, files, folder_name, masked, vacant, version_folder, write
from gateway.doctor.visit import Visit

STATE = "recorded"
LOG_FILE = "engine.log"


def keep(visits: Iterable[Visit], root: Path, state: str, date: str, *, logs: bool) -> list[Path]:
    """The folders that were written. Raises RecordError when one is not empty, before any is written."""
    chosen: dict[Path, Visit] = {}
    for visit in visits:
        if any(entry.answer is not None for entry in visit.tape.entries.values()):
            chosen[_folder(visit, root, state, chosen)] = visit
    for folder in chosen:
        vacant(folder)
    for folder, visit in chosen.items():
        write(folder, _files(visit, folder.name, date, logs=logs))
    return list(chosen)


def _folder(visit: Visit, root: Path, state: str, taken: Iterable[Path]) -> Path:
    """Two engines of one kind and version, visited together, get two folders."""
    version = root / _engine(visit) / version_folder(visit.found.snapshot.version)
    first = version / folder_name(state, STATE)
    if first not in taken:
        return first
    return next(f for n in count(2) if (f := version / f"{first.name}-{n}") not in taken)


def _engine(visit: Visit) -> str:
    kind = visit.found.kind
    return "unknown" if kind is None else str(kind)


def _files(visit: Visit, state: str, date: str, *, logs: bool) -> dict[str, bytes]:
    found, key = visit.found, visit.patient.key
    meta = Meta(
        engine="llama.cpp" if found.kind == "llamacpp" else _engine(visit),
        version=found.snapshot.version,
        date=date,
        state=state,
        kind=_engine(visit),
        server=visit.tape.server,
        snapshot_seconds=sum(entry.ms for entry in visit.tape.entries.values()) / 1000,
    )
    laid_out = files(visit.tape, meta, key)
    if logs and visit.log is not None:
        laid_out[LOG_FILE] = masked(b"\n".join(visit.log) + b"\n", key)
    return laid_out
