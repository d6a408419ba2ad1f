"""Reading `fixtures/captures/`: what an engine answered, by state and path, and its replies with headers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

CAPTURES = Path(__file__).parents[2] / "fixtures" / "captures"


class NoRecording(Exception):
    """A recording that a double needs is not there. The message says which, and what to do."""


@dataclass(frozen=True, slots=True)
class Page:
    """What one path answered. `status` 0: nothing."""

    status: int
    content_type: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply with its headers, as they were sent."""

    version: str  # HTTP/1.1
    status: int
    reason: str
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def header(self, name: str) -> str | None:
        return next((v for k, v in self.headers if k.lower() == name.lower()), None)


def read_bytes(relative: str, root: Path = CAPTURES) -> bytes:
    """Raises NoRecording."""
    try:
        return (root / relative).read_bytes()
    except OSError as e:
        raise NoRecording(
            f"{root / relative} cannot be read ({e.strerror or e}). Doubles answer with recorded bodies, "
            "which are in the repository and not in an installed package: run from a checkout."
        ) from None


@cache
def pages(state: str, root: Path = CAPTURES) -> Mapping[tuple[str, str], Page]:
    """Every path of `<engine>/<version>/<state>`, by method and path. Raises NoRecording."""
    lines = read_bytes(f"{state}/paths.tsv", root).decode().splitlines()
    names = lines[0].split("\t")
    found: dict[tuple[str, str], Page] = {}
    for line in lines[1:]:
        row = dict(zip(names, line.split("\t"), strict=False))
        file = root / state / (row.get("file") or "-")
        status = int(row["status"]) if row["status"].isdigit() else 0
        body = file.read_bytes() if status and file.is_file() else b""
        found[row["method"], row["path"]] = Page(status, row.get("content-type", ""), body)
    return found


BODY_ENDINGS = ("sse", "ndjson", "json", "body")


@cache
def reply(stem: str, root: Path = CAPTURES) -> Reply | None:
    """`<engine>/<version>/streams/<name>`, or None when it was not recorded."""
    head = root / f"{stem}.headers"
    bodies = [p for e in BODY_ENDINGS if (p := root / f"{stem}.{e}").is_file()]
    if not head.is_file() or not bodies:
        return None
    lines = head.read_bytes().decode("latin-1").splitlines()
    version, status, reason = [*lines[0].split(" ", 2), ""][:3]
    fields = [line.split(":", 1) for line in lines[1:] if ":" in line]
    return Reply(
        version, int(status), reason, tuple((n, v.strip()) for n, v in fields), bodies[0].read_bytes()
    )
