"""Letting a request in: whose it is, what exists for it, what it takes, and what it used in the end."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, tzinfo
from enum import StrEnum

from gateway.accounts.days import Days
from gateway.accounts.keys import NOBODY, Key, Keys
from gateway.accounts.quota import Exceeded, Quota, Reservation, Spent, Standing
from gateway.accounts.usage import Counts, Usage
from gateway.config import KeyConfig


class Why(StrEnum):
    """Why a request is not let in."""

    NO_KEY = "no_key"  # it presents none
    WRONG_KEY = "wrong_key"
    NO_SUCH_MODEL = "no_such_model"  # for this key
    REQUESTS = "requests"  # of this minute are used up
    TOKENS = "tokens"  # of this day are used up
    HELD = "held"  # tokens: the rest of the day's is held by requests in flight


@dataclass(frozen=True, slots=True)
class Refused:
    why: Why
    key: Key | None = None
    retry_after_s: float | None = None
    standing: Standing | None = None  # where a quota is the reason


@dataclass(frozen=True, slots=True)
class Spending:
    """What a request used, when it is over. None: no engine told."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    abandoned: bool = False  # its client left

    def counts(self) -> Counts:
        unmetered = self.prompt_tokens is None or self.completion_tokens is None
        return Counts(
            1, self.prompt_tokens or 0, self.completion_tokens or 0, self.cached_tokens or 0,
            int(unmetered), int(self.abandoned),
        )  # fmt: skip


UNUSED = Spending(0, 0, 0)
"""For a request of which it is known that it used nothing."""


class Admission:
    """One request that was let in. It ends once, by `settle` or `refund`; what comes after does nothing."""

    __slots__ = ("_quota", "_reservation", "key", "model", "standing")

    def __init__(
        self, quota: Quota, reservation: Reservation, key: Key, model: str, standing: Standing
    ) -> None:
        self._quota, self._reservation = quota, reservation
        self.key, self.model, self.standing = key, model, standing

    @property
    def open(self) -> bool:
        return self._reservation.open

    def settle(self, spending: Spending) -> None:
        """It reached an engine, or its client did not wait for that."""
        self._quota.settle(self._reservation, self.model, spending.counts())

    def refund(self) -> None:
        """The gateway turned it away after all: it counts nowhere."""
        self._quota.refund(self._reservation)


class Accounts:
    """The keys of the config with what they have used. Every method is one step of the loop."""

    def __init__(
        self,
        keys: Iterable[KeyConfig] = (),
        *,
        now: Callable[[], float],
        wall: Callable[[], float],
        zone: tzinfo = UTC,
        retention_days: int = 400,
        origin: int | None = None,
    ) -> None:
        """`now`: the loop's clock; `wall`: seconds since the epoch; `origin`: a number of this process."""
        self.keys = Keys(keys)
        self.days, self.wall = Days(zone), wall
        self.usage = Usage(secrets.randbits(63) if origin is None else origin, retention_days)
        self.quota = Quota(self.usage, self.days, now, wall)
        self.last_seen: dict[str, float] = {}  # key -> by the wall's clock, when it was last let in

    def replace(self, keys: Iterable[KeyConfig]) -> None:
        """Other keys from now on. What was used stays; a request in flight stays its key's."""
        self.keys = Keys(keys)
        self.last_seen = {k.name: at for k in self.keys if (at := self.last_seen.get(k.name)) is not None}

    @property
    def today(self) -> int:
        return self.days.day(self.wall())

    def who(self, credentials: Sequence[bytes]) -> Key | Refused:
        """Whose request it is by what it presents. Without keys it is everybody's."""
        if not self.keys:
            return NOBODY
        key = self.keys.present(credentials)
        if key is None:
            return Refused(Why.WRONG_KEY if credentials else Why.NO_KEY)
        return key

    def admit(
        self,
        credentials: Sequence[bytes],
        names: Sequence[str],
        prompt_tokens: int,
        may_generate: int | None,
    ) -> Admission | Refused:
        """Let a request in or say why not: then nothing was taken.

        `names`: those of its model, the first is the one its usage is counted under. `prompt_tokens` is an
        estimate; `may_generate` the most tokens of its answer, None when it sets no limit.
        """
        key = self.who(credentials)
        if isinstance(key, Refused):
            return key
        if not key.may_use(*names):
            return Refused(Why.NO_SUCH_MODEL, key)
        taken = self.quota.reserve(key, prompt_tokens, may_generate)
        if isinstance(taken, Exceeded):
            return Refused(_WHY[taken.spent], key, taken.retry_after_s, self.quota.standing(key))
        if self.keys:
            self.last_seen[key.name] = self.wall()
        return Admission(self.quota, taken, key, names[0], self.quota.standing(key))


_WHY = {Spent.REQUESTS: Why.REQUESTS, Spent.TOKENS: Why.TOKENS, Spent.HELD: Why.HELD}
