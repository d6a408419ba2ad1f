"""Answers made of what all backends list. Pure: values in, bytes out."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

STARTED = int(time.time())  # clients want a creation date for a model, and this is when we first could say it

Entry = Mapping[str, object]


def openai_models(names: Iterable[str]) -> bytes:
    return encoded({"object": "list", "data": [_openai(n) for n in sorted(names)]})


def openai_model(name: str) -> bytes:
    return encoded(_openai(name))


def _openai(name: str) -> Entry:
    return {"id": name, "object": "model", "created": STARTED, "owned_by": "pharos"}


def anthropic_models(names: Iterable[str]) -> bytes:
    """All on one page, whatever `limit` asks for: its clients follow `has_more`."""
    listed = sorted(names)
    ends = {"first_id": listed[0] if listed else None, "last_id": listed[-1] if listed else None}
    return encoded({"data": [_anthropic(n) for n in listed], "has_more": False, **ends})


def anthropic_model(name: str) -> bytes:
    return encoded(_anthropic(name))


def _anthropic(name: str) -> Entry:
    created = datetime.fromtimestamp(STARTED, UTC).isoformat().replace("+00:00", "Z")
    return {"type": "model", "id": name, "display_name": name, "created_at": created}


def ollama_models(lists: Iterable[Sequence[Entry]]) -> bytes:
    """Ollama's lists as one. A model that several engines have stands there once, under its first name."""
    found: dict[str, Entry] = {}
    for entries in lists:
        for entry in entries:
            found.setdefault(str(entry.get("name")).removesuffix(":latest"), entry)
    return encoded({"models": list(found.values())})


def renamed(entry: Entry, aliases: Mapping[str, str]) -> Entry:
    """With the name that clients use."""
    name = str(entry.get("name"))
    return {**entry, "name": aliases[name], "model": aliases[name]} if name in aliases else entry


def oldest(versions: Iterable[str]) -> str | None:
    """Clients switch features on by it, so all engines must have them."""
    return min(versions, key=_ordered, default=None)


def _ordered(version: str) -> tuple[int, ...]:
    numbers = version.partition("-")[0].split(".")
    return tuple(int(n) if n.isdecimal() else 0 for n in numbers)


def encoded(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
