"""What the config's types cannot say of keys and of time zones."""

from __future__ import annotations

import difflib
import re
import zoneinfo
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gateway.config_source import Source, Step

if TYPE_CHECKING:
    from gateway.config import KeyConfig

ANONYMOUS = "anonymous"
"""The name under which usage is counted while there are no keys."""


def check_keys(keys: Sequence[KeyConfig], source: Source) -> None:
    """Raises ConfigError for a name that cannot be one, and for what two keys share."""
    names: dict[str, int] = {}
    digests: dict[str, int] = {}
    for i, key in enumerate(keys):
        at: list[Step] = ["keys", i]
        if wrong := wrong_key_name(key.name):
            raise source.error(f"keys[{i}].name: {wrong}", [*at, "name"])
        if (first := names.setdefault(key.name, i)) != i:
            raise source.error(f"keys[{i}].name: {key.name} is keys[{first}] already", [*at, "name"])
        if (first := digests.setdefault(key.sha256, i)) != i:
            same = f"{key.name} has the key of {keys[first].name} (keys[{first}]): each needs its own"
            raise source.error(f"keys[{i}].sha256: {same}", [*at, "sha256"])


def wrong_key_name(name: str) -> str | None:
    """Why it cannot be the name of a key. It stands in tables, labels of metrics and spreadsheets."""
    if name == ANONYMOUS:
        return f"{name} is what requests without a key are counted under: choose another name"
    if not re.fullmatch(r"\w(?:[\w .@+-]{0,62}[\w.@+-])?", name):
        return (
            f"{name[:80]!r} must be 1 to 64 letters, digits, blanks or . _ @ + -, the first a letter or digit"
        )
    return None


def wrong_zone(name: str) -> str | None:
    """Why it is no time zone."""
    try:
        zoneinfo.ZoneInfo(name)
    except (ValueError, OSError, zoneinfo.ZoneInfoNotFoundError):
        known = zoneinfo.available_timezones()
        near = difflib.get_close_matches(name, known, n=1)
        if not known:
            return "this machine has no time zones: install its package tzdata"
        return f"{name!r} is no time zone" + (f", did you mean {near[0]}?" if near else ": write Area/City")
    return None
