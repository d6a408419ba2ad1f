"""The keys that clients present. Only their SHA-256 is ever kept, and not even that is shown."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from gateway.config import KeyConfig
from gateway.config_keys import ANONYMOUS


@dataclass(frozen=True, slots=True)
class Key:
    """What the holder of one key may do. None: as much as wanted."""

    name: str
    rpm: int | None = None
    tokens_per_day: int | None = None
    weight: int = 1
    models: frozenset[str] = frozenset()  # empty: all
    admin: bool = False

    def may_use(self, *names: str) -> bool:
        """Does the model exist for this key? `names`: all names of that one model."""
        return not self.models or not self.models.isdisjoint(names)


NOBODY = Key(ANONYMOUS)
"""Everybody, while there are no keys."""


class Keys:
    """All keys of one config. Never changed: a reload makes a new one and swaps it in at once."""

    __slots__ = ("_by_mark", "_digests", "_named", "_salt")

    def __init__(self, entries: Iterable[KeyConfig] = ()) -> None:
        self._salt = secrets.token_bytes(32)
        self._by_mark: dict[bytes, tuple[bytes, Key]] = {}
        self._named: dict[str, Key] = {}
        self._digests: dict[str, bytes] = {}
        for entry in entries:
            models = frozenset(entry.models)
            key = Key(entry.name, entry.rpm, entry.tokens_per_day, entry.weight, models, entry.admin)
            digest = bytes.fromhex(entry.sha256)
            self._by_mark[self._mark(digest)] = digest, key
            self._named[key.name], self._digests[key.name] = key, digest

    def __repr__(self) -> str:
        return f"<Keys of {', '.join(self._named) or 'nobody'}>"

    def __len__(self) -> int:
        return len(self._named)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._named.values())

    def named(self, name: str) -> Key | None:
        return self._named.get(name)

    def find(self, credential: bytes) -> Key | None:
        """The key that was presented. Its timing tells nothing of the hashes that are kept.

        They stand in the table under a mark salted for this process, so which of them share a slot, or their
        first bytes, with what somebody sends is nothing that he can know or choose.
        """
        digest = hashlib.sha256(credential).digest()
        kept, key = self._by_mark.get(self._mark(digest), (_NONE, None))
        return key if hmac.compare_digest(kept, digest) else None

    def present(self, credentials: Sequence[bytes]) -> Key | None:
        """The first of the credentials that is a key: some clients send a made-up one beside the real one."""
        return next((key for c in credentials if (key := self.find(c)) is not None), None)

    def proof(self, name: str, secret: bytes) -> str | None:
        """What a session keeps to show, later, that it was begun with the key that has this name now.

        Nobody can make it without `secret`, nor learn the key's hash from it. None: there is no such key.
        """
        digest = self._digests.get(name)
        return None if digest is None else hmac.new(secret, b"proof" + digest, hashlib.sha256).hexdigest()

    def _mark(self, digest: bytes) -> bytes:
        return hashlib.blake2b(digest, key=self._salt, digest_size=16).digest()


_NONE = bytes(32)  # nothing is known that has this SHA-256, and a key is compared with it all the same


def new_key() -> str:
    """A key of 192 random bits. Some clients take only what begins with `sk-`."""
    return "sk-pharos-" + secrets.token_hex(24)


def digest_of(key: str) -> str:
    """What the config keeps of a key."""
    return hashlib.sha256(key.encode()).hexdigest()
