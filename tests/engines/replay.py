"""A recorded engine that answers again: every folder of `fixtures/captures/` as a `Fetch`.

It answers what was recorded, with the status that was recorded, and 404 for a path that was not. It
counts what it is asked, so that a test can say what was left alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from engines.fetch import Answer, Fault, FetchError

CAPTURES = Path(__file__).parents[2] / "fixtures" / "captures"

SERVER = {
    "llamacpp": "llama.cpp",
    "mlx-lm": "BaseHTTP/0.6 Python/3.11.7",
    "sglang": "uvicorn",
    "vllm": "uvicorn",
}
"""The `Server:` header by engine, as its `streams/*.headers` have it; paths.tsv did not keep headers.

llama-swap sends none of its own: the one in its streams is that of the engine behind it.
"""


@dataclass(frozen=True)
class Row:
    """One line of paths.tsv."""

    status: str
    content_type: str
    file: str

    def body_of(self, folder: Path) -> bytes:
        path = folder / self.file
        return path.read_bytes() if self.file and path.is_file() else b""

    def answer_of(self, folder: Path, headers: Mapping[str, str]) -> Answer:
        """Raises FetchError where the recording has no answer."""
        if not self.status.isdigit():
            raise FetchError(
                FAULTS.get(self.status, Fault.BROKEN), f"nothing answers (recorded: {self.status})"
            )
        return Answer(int(self.status), self.body_of(folder), {**headers, "content-type": self.content_type})


FAULTS = {"ConnectionRefusedError": Fault.REFUSED, "TimeoutError": Fault.TIMEOUT}


@dataclass(frozen=True)
class Capture:
    """One recorded state. `key` is `<engine>/<version>/<state>`."""

    folder: Path

    @property
    def key(self) -> str:
        return "/".join(self.folder.parts[-3:])

    @property
    def engine(self) -> str:
        return self.key.split("/")[0]

    @property
    def meta(self) -> Mapping[str, Any]:
        return _meta(self.folder)

    @property
    def truth(self) -> Mapping[str, Any]:
        truth: Mapping[str, Any] = self.meta.get("truth") or {}
        return truth

    @property
    def replayable(self) -> bool:
        return (self.folder / "paths.tsv").exists()

    def answers(self) -> Mapping[str, tuple[str, Path]]:
        """Each path that was asked with GET: its status (or the error) and the file of its body."""
        return {
            path: (row.status, self.folder / (row.file or "no-body"))
            for (method, path), row in self.rows().items()
            if method == "GET"
        }

    def rows(self) -> Mapping[tuple[str, str], Row]:
        """Every recorded question, by method and path."""
        return _rows(self.folder)

    @property
    def server(self) -> str | None:
        """The `Server:` header: recorded by the doctor, or known of the engine."""
        known: str | None = self.meta.get("server") or SERVER.get(self.engine)
        return known

    def body(self, path: str) -> bytes | None:
        """What the path answered with 200, or None."""
        status, file = self.answers().get(path, ("404", self.folder))
        return file.read_bytes() if status == "200" else None

    def replay(self, *, header: bool = True, over: Mapping[str, Answer | FetchError] | None = None) -> Replay:
        server = self.server if header else None
        return Replay(self.folder, self.rows(), {"server": server} if server else {}, over or {})


@dataclass
class Replay:
    """The `Fetch` of a capture, and its answers to POST. `over` replaces what a GET of a path answers."""

    folder: Path
    rows: Mapping[tuple[str, str], Row]
    headers: Mapping[str, str]
    over: Mapping[str, Answer | FetchError]
    asked: Counter[str] = field(default_factory=Counter)
    posted: Counter[str] = field(default_factory=Counter)

    async def __call__(self, path: str) -> Answer:
        self.asked[path] += 1
        replaced = self.over.get(path)
        if isinstance(replaced, FetchError):
            raise replaced
        if replaced is not None:
            return replaced
        return self._recorded("GET", path)

    async def post(self, path: str) -> Answer:
        self.posted[path] += 1
        return self._recorded("POST", path)

    def _recorded(self, method: str, path: str) -> Answer:
        row = self.rows.get((method, path))
        return (
            Answer(404, b"not recorded", self.headers)
            if row is None
            else row.answer_of(self.folder, self.headers)
        )


@cache
def _meta(folder: Path) -> Mapping[str, Any]:
    loaded: Mapping[str, Any] = yaml.safe_load((folder / "meta.yaml").read_text())
    return loaded


@cache
def _rows(folder: Path) -> Mapping[tuple[str, str], Row]:
    lines = (folder / "paths.tsv").read_text().splitlines()
    names = lines[0].split("\t")
    rows = [dict(zip(names, line.split("\t"), strict=False)) for line in lines[1:]]
    return {
        (r["method"], r["path"]): Row(r["status"], r.get("content-type", ""), r.get("file", "")) for r in rows
    }


def captures() -> list[Capture]:
    """Every recorded state of every version of every engine."""
    return [Capture(folder) for folder in sorted(CAPTURES.glob("*/*/*")) if folder.is_dir()]
