"""One visit to each patient: all at once, each of them politely, and each within its time."""

from __future__ import annotations

import asyncio
import io
import stat
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from engines.examine import Examination, examine
from engines.fetch import HttpFetch
from engines.recipes import RECIPES
from engines.record import Tape, ask_further, further_paths
from gateway.doctor.notes import notes
from gateway.doctor.patients import Patient

ANSWER_S = 3.0  # for one answer; a hung one is asked for twice
VISIT_S = 45.0  # nothing more is asked of a backend after this
RECORD_S = 30.0  # for the paths that only a recording wants
TOGETHER = 16  # backends visited at the same time


@dataclass(frozen=True, slots=True)
class Visit:
    patient: Patient
    found: Examination
    tape: Tape
    notes: tuple[str, ...]
    log: tuple[bytes, ...] | None = None  # lines of its log; None: no log, or not to be read

    @property
    def kind_from(self) -> str | None:
        if self.found.kind is None:
            return None
        return "detected" if self.patient.kind is None else "config"

    @property
    def absent(self) -> bool:
        """Nobody configured it, and no engine is there."""
        return self.patient.searched and self.found.error is not None and not self.found.engine_seen


async def visit_all(
    patients: Sequence[Patient],
    *,
    recording: bool = False,
    done: Callable[[Patient], None] = lambda _patient: None,
) -> list[Visit]:
    """In the patients' order. Never raises for what an engine does."""
    turn = asyncio.Semaphore(TOGETHER)

    async def one(client: httpx.AsyncClient, patient: Patient) -> Visit:
        async with turn:
            result = await visit(client, patient, recording=recording)
            done(patient)
            return result

    async with httpx.AsyncClient(trust_env=False) as client:
        return await asyncio.gather(*(one(client, patient) for patient in patients))


async def visit(client: httpx.AsyncClient, patient: Patient, *, recording: bool = False) -> Visit:
    headers = {"authorization": f"Bearer {patient.key}"} if patient.key else {}
    get = HttpFetch(client, patient.url, headers, ANSWER_S)
    tape = Tape(get, get.post_nothing, time.monotonic, time.monotonic() + VISIT_S)
    log, log_notes = await asyncio.to_thread(read_log_file, patient.log_path)
    config = patient.config
    found = await examine(tape, patient.kind, config.probes, log, config.capacity)
    if recording and found.kind is not None and found.fault is None:
        tape.until = time.monotonic() + RECORD_S
        asleep = found.plan is not None and found.plan.asleep
        await ask_further(tape, further_paths(RECIPES[found.kind], RECIPES, awake=not asleep))
    return Visit(patient, found, tape, (*notes(patient, found), *log_notes), log)


# -- its log -----------------------------------------------------------------------------------

HEAD_BYTES = 1024 * 1024  # how it was started is said in its first lines
TAIL_BYTES = 4 * 1024 * 1024


def read_log_file(path: str | None) -> tuple[tuple[bytes, ...] | None, tuple[str, ...]]:
    """The lines at its beginning and its end, and what stood in the way. None: no log can be read."""
    if path is None:
        return None, ()
    try:
        size = _size_of(Path(path))
        with Path(path).open("rb") as file:
            head = file.read(HEAD_BYTES)
            left_out = size - len(head) - TAIL_BYTES
            if left_out <= 0:
                return tuple((head + file.read(TAIL_BYTES)).splitlines()), ()
            file.seek(left_out, io.SEEK_CUR)
            tail = file.read(TAIL_BYTES)
    except OSError as e:
        return None, (f"Its log {path} cannot be read ({e.strerror or e}): look at `logs` in the config.",)
    return (*head.splitlines()[:-1], *tail.splitlines()[1:]), ()  # the cut lines at both ends are no lines


def _size_of(path: Path) -> int:
    """Raises OSError, also for a pipe or a device: opening one can wait for ever."""
    info = path.stat()
    if not stat.S_ISREG(info.st_mode):
        raise OSError("not a file")
    return info.st_size
