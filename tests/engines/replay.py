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
class Capture:
    """One recorded state. `key` is `<engine>/<version>/<state>`."""

    folder: Path

    @property
    def key(self) -> str:
        return self.folder.relative_to(CAPTURES).as_posix()

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
        return _answers(self.folder)

    def body(self, path: str) -> bytes | None:
        """What the path answered with 200, or None."""
        status, file = self.answers().get(path, ("404", self.folder))
        return file.read_bytes() if status == "200" else None

    def replay(self, *, header: bool = True, over: Mapping[str, Answer | FetchError] | None = None) -> Replay:
        server = SERVER.get(self.engine) if header else None
        return Replay(self.answers(), {"server": server} if server else {}, over or {})


@dataclass
class Replay:
    """The `Fetch` of a capture. `over` replaces what a path answers."""

    answers: Mapping[str, tuple[str, Path]]
    headers: Mapping[str, str]
    over: Mapping[str, Answer | FetchError]
    asked: Counter[str] = field(default_factory=Counter)

    async def __call__(self, path: str) -> Answer:
        self.asked[path] += 1
        replaced = self.over.get(path)
        if isinstance(replaced, FetchError):
            raise replaced
        if replaced is not None:
            return replaced
        if path not in self.answers:
            return Answer(404, b"not recorded", self.headers)
        status, file = self.answers[path]
        if status == "ConnectionRefusedError":
            raise FetchError(Fault.REFUSED, f"nothing answers ({path})")
        return Answer(int(status), file.read_bytes() if file.exists() else b"", self.headers)


@cache
def _meta(folder: Path) -> Mapping[str, Any]:
    loaded: Mapping[str, Any] = yaml.safe_load((folder / "meta.yaml").read_text())
    return loaded


@cache
def _answers(folder: Path) -> Mapping[str, tuple[str, Path]]:
    lines = (folder / "paths.tsv").read_text().splitlines()
    names = lines[0].split("\t")
    rows = [dict(zip(names, line.split("\t"), strict=False)) for line in lines[1:]]
    return {
        r["path"]: (r["status"], folder / (r.get("file") or "no-body")) for r in rows if r["method"] == "GET"
    }


def captures() -> list[Capture]:
    """Every recorded state of every version of every engine."""
    return [Capture(folder) for folder in sorted(CAPTURES.glob("*/*/*")) if folder.is_dir()]
