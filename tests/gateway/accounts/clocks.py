"""Both clocks of the accounts in a test's hands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Any

from gateway.accounts.admission import Accounts, Admission, Refused
from gateway.accounts.keys import digest_of
from gateway.config import Digest, KeyConfig

NOON = datetime(2026, 9, 28, 12, tzinfo=UTC).timestamp()


def secret(name: str) -> str:
    return f"sk-{name}"


def entry(name: str, **more: Any) -> KeyConfig:
    return KeyConfig(name=name, sha256=Digest(digest_of(secret(name))), **more)


@dataclass(slots=True)
class Clocks:
    """`passes` moves both; `set_wall` only the one on the wall."""

    now: float = 1000.0
    wall: float = NOON

    def passes(self, seconds: float) -> None:
        self.now += seconds
        self.wall += seconds

    def set_wall(self, at: float) -> None:
        self.wall = at

    def accounts(self, *keys: KeyConfig, zone: tzinfo = UTC, origin: int = 1) -> Accounts:
        return Accounts(keys, now=lambda: self.now, wall=lambda: self.wall, zone=zone, origin=origin)


def admit(
    accounts: Accounts, name: str | None = "alice", prompt: int = 10, most: int | None = 10,
    names: Sequence[str] = ("m",),
) -> Admission | Refused:  # fmt: skip
    presented = [] if name is None else [secret(name).encode()]
    return accounts.admit(presented, names, prompt, most)


def let_in(*args: Any, **kwargs: Any) -> Admission:
    found = admit(*args, **kwargs)
    assert isinstance(found, Admission), found
    return found


def refused(*args: Any, **kwargs: Any) -> Refused:
    found = admit(*args, **kwargs)
    assert isinstance(found, Refused), "it was let in"
    return found
