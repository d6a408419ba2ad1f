"""The one recorder: what an engine answered, kept as the fixtures are kept.

`Tape` stands between an examination and the engine: it asks each path once, gives the same answer to
whoever asks again, and remembers it. `files` lays what it remembers out as a recorded state (pure);
`write` puts that into a folder. The layout:

    <engine>/<version>/<state>/paths.tsv    a line for each path: how it answered, and the file of its body
    <engine>/<version>/<state>/meta.yaml    which engine, when, and what was really going on (`truth`)
    <engine>/<version>/<state>/<file>       each body, bytes unchanged: /v1/models -> v1_models
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import yaml

from engines.fetch import Answer, Fault, Fetch, FetchError
from engines.probes import Path as ProbePath
from engines.recipes.base import Kind, Recipe

Post = Callable[[str], Awaitable[Answer]]
"""POST `{}` to a path of one backend. Raises FetchError."""

COLUMNS = ("method", "path", "status", "content-type", "bytes", "ms", "file")
ERRORS = {
    Fault.REFUSED: "ConnectionRefusedError",
    Fault.TIMEOUT: "TimeoutError",
    Fault.BROKEN: "ConnectionError",
}
"""What stands in the status column where no answer came."""

MASK = b"*"


class RecordError(Exception):
    """The recording cannot be written. The message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One question and what came of it: `answer`, or the `error`."""

    method: str
    path: str
    ms: float
    answer: Answer | None = None
    error: FetchError | None = None

    def result(self) -> Answer:
        """Raises FetchError."""
        if self.error is not None:
            raise FetchError(self.error.fault, str(self.error))
        assert self.answer is not None
        return self.answer


@dataclass(slots=True)
class Tape:
    """Asks each path of one backend once, and none after `until` (on the clock `now`, seconds)."""

    ask_get: Fetch
    ask_post: Post
    now: Callable[[], float]
    until: float
    entries: dict[tuple[str, str], Entry] = field(default_factory=dict)

    async def get(self, path: str) -> Answer:
        return await self._ask("GET", path, self.ask_get)

    async def post(self, path: str) -> Answer:
        return await self._ask("POST", path, self.ask_post)

    async def _ask(self, method: str, path: str, ask: Callable[[str], Awaitable[Answer]]) -> Answer:
        known = self.entries.get((method, path))
        if known is None:
            start = self.now()
            if start >= self.until:
                raise FetchError(Fault.TIMEOUT, f"{path} not asked: the time for this backend is over")
            try:
                answer, error = await ask(path), None
            except FetchError as e:
                answer, error = None, e
            known = Entry(method, path, (self.now() - start) * 1000, answer, error)
            self.entries[method, path] = known
        return known.result()

    @property
    def bodies(self) -> Mapping[str, bytes]:
        """What was answered with 200 to a GET."""
        return {
            e.path: e.answer.body
            for e in self.entries.values()
            if e.method == "GET" and e.answer is not None and e.answer.status == 200
        }

    @property
    def faults(self) -> Mapping[str, Fault]:
        return {e.path: e.error.fault for e in self.entries.values() if e.error is not None}

    @property
    def server(self) -> str | None:
        """The `Server:` header of the engine, when all its answers agree."""
        names = {e.answer.headers.get("server") for e in self.entries.values() if e.answer is not None}
        return names.pop() if len(names) == 1 else None


# -- what is asked -----------------------------------------------------------------------------


def further_paths(recipe: Recipe, recipes: Mapping[Kind, Recipe], awake: bool) -> list[ProbePath]:
    """What a recording asks besides the examination: all that tells one kind from another.

    Of other kinds' recipes only what is safe on any engine: fingerprints, and the probes' paths without
    /metrics (TensorRT-LLM's empties a queue as it is read) and without what could wake this one. Each
    recipe's own `record_paths` are asked of that kind alone: SGLang generates a token for /health.
    """
    mine = [p for p in recipe.record_paths if awake or not p.wakes]
    others = [
        probe.feed
        for each in recipes.values()
        for probe in (*each.fingerprint, *each.probes)
        if isinstance(probe.feed, ProbePath) and not probe.feed.wakes and probe.feed.url != "/metrics"
    ]
    return list(dict.fromkeys([*mine, *others]))


async def ask_further(tape: Tape, paths: Iterable[ProbePath]) -> None:
    """A path that gets no answer is a line of the recording too. Stops when the engine is gone or busy."""
    for path in paths:
        try:
            await tape.get(path.url)
        except FetchError as e:
            if e.fault in (Fault.REFUSED, Fault.TIMEOUT):
                return


# -- how it is laid out ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Meta:
    """What a person must know of a recorded state. `command` and `truth` only they can fill in."""

    engine: str
    version: str | None
    date: str  # of the day, 2026-11-30
    state: str
    kind: str
    server: str | None = None
    snapshot_seconds: float | None = None


def file_name(method: str, path: str) -> str:
    """`/v1/models` -> `v1_models`, `POST /api/show` -> `POST_api_show`, `/` -> `root`."""
    name = re.sub(r"[^A-Za-z0-9.@-]", "_", path.lstrip("/").replace("?", "@")).lstrip(".") or "root"
    return name if method == "GET" else f"{method}_{name}"


def folder_name(text: str | None, unknown: str) -> str:
    """A name from outside as one folder's name: it leads nowhere else."""
    name = re.sub(r"[^A-Za-z0-9._+-]", "_", (text or "").strip())[:80].lstrip(".")
    return name or unknown


def version_folder(version: str | None) -> str:
    """`0.32.15` -> `v0.32.15`, as engines tag their releases; `b11434-1a2b3c4` stays."""
    name = folder_name(version, "unknown-version")
    return f"v{name}" if name[0].isdigit() else name


RESERVED = ("paths.tsv", "meta.yaml", "engine.log")


def file_names(entries: Iterable[Entry]) -> list[str]:
    """One file for each entry, `-` for one without an answer. Two paths never share one."""
    taken, names = set(RESERVED), []
    for entry in entries:
        name = "-"
        if entry.answer is not None:
            name = base = file_name(entry.method, entry.path)
            for number in count(2):
                if name not in taken:
                    break
                name = f"{base}-{number}"
            taken.add(name)
        names.append(name)
    return names


def paths_tsv(entries: Sequence[Entry]) -> str:
    rows = map(_row, entries, file_names(entries))
    return "\n".join("\t".join(row) for row in (COLUMNS, *rows)) + "\n"


def _row(entry: Entry, file: str) -> tuple[str, ...]:
    ms = f"{entry.ms:.1f}"
    if entry.answer is None:
        assert entry.error is not None
        return entry.method, entry.path, ERRORS.get(entry.error.fault, "ConnectionError"), "", "0", ms, file
    kind = re.sub(r"[\t\r\n]", " ", entry.answer.headers.get("content-type", ""))
    return entry.method, entry.path, str(entry.answer.status), kind, str(len(entry.answer.body)), ms, file


def meta_yaml(meta: Meta) -> str:
    known: dict[str, object] = {
        "engine": meta.engine, "version": meta.version, "kind": meta.kind, "date": meta.date,
        "state": meta.state,
    }  # fmt: skip
    if meta.server is not None:
        known["server"] = meta.server
    if meta.snapshot_seconds is not None:
        known["snapshot_seconds"] = round(meta.snapshot_seconds, 3)
    text = yaml.safe_dump(known, sort_keys=False, allow_unicode=True, default_style=None)
    return (
        f"{text}"
        "# To be filled in by whoever recorded it:\n"
        'command: ""  # how the engine was started\n'
        'description: ""  # what was going on\n'
        "truth: {}  # requests_running: 2, requests_waiting: 0, loaded: [name] …\n"
    )


def files(tape: Tape, meta: Meta, secret: str | None = None) -> dict[str, bytes]:
    """The recorded state: name and bytes of each file. The key we send is masked."""
    entries = list(tape.entries.values())
    laid_out = {"paths.tsv": paths_tsv(entries).encode(), "meta.yaml": meta_yaml(meta).encode()}
    for entry, name in zip(entries, file_names(entries), strict=True):
        if entry.answer is not None:
            laid_out[name] = masked(entry.answer.body, secret)
    return laid_out


def masked(body: bytes, secret: str | None) -> bytes:
    known = (secret or "").encode()
    return body.replace(known, MASK * len(known)) if known else body


def vacant(folder: Path) -> None:
    """Raises RecordError unless the folder is empty or not there yet."""
    try:
        taken = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    except OSError as e:
        raise RecordError(f"{folder} cannot be looked into: {e.strerror or e}") from None
    if taken:
        raise RecordError(f"{folder} holds something already: give another --state, or move it away")


def write(folder: Path, laid_out: Mapping[str, bytes]) -> None:
    """Raises RecordError, also when the folder holds anything: a recording is never mixed with another."""
    vacant(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, body in laid_out.items():
            (folder / name).write_bytes(body)
    except OSError as e:
        raise RecordError(f"{folder} cannot be written: {e.strerror or e}") from None
