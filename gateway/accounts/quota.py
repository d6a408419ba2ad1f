"""How much a key may do: requests a minute and tokens a day, taken before the work and corrected after it.

How this works. A request that is let in takes its place at once, in one step of the loop, so however many
come together, no more get in than there is room for:

- One of `rpm`, in a window that slides (`window.py`).
- Tokens of the day: its prompt, and what it may generate, as far as that many are left. When it ends, what it
  really used is counted and what it held is given back. It is charged to the day on which it was let in, so
  neither midnight nor a clock that is set back hands out a day's tokens twice.

An answer can turn out longer than what was held for it: where its request set no limit, or where less was
left. It is counted in full, and the next requests find that much less.

The window is told by the loop's clock, which never steps; days are told by the wall's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from gateway.accounts.days import Days
from gateway.accounts.keys import Key
from gateway.accounts.usage import Counts, Usage
from gateway.accounts.window import SLACK, Place, Windows

UNSAID_TOKENS = 1024
"""Held for an answer whose request sets no limit: most are shorter, and none may be held for too little."""
IN_FLIGHT_RETRY_S = 2.0
"""When to come back if only requests in flight stand in the way: about one short answer later."""


class Spent(StrEnum):
    """Which quota is used up, with OpenAI's code for it where it has one."""

    REQUESTS = "requests"  # of this minute
    TOKENS = "tokens"  # of this day
    HELD = "held"  # of this day; but requests in flight may give some back


@dataclass(frozen=True, slots=True)
class Exceeded:
    spent: Spent
    retry_after_s: float


@dataclass(frozen=True, slots=True)
class Standing:
    """What a key has left. None: no such limit. Resets are seconds until the whole of it is there again."""

    rpm: int | None = None
    requests_left: int | None = None
    requests_reset_s: float | None = None
    tokens_per_day: int | None = None
    tokens_left: int | None = None
    tokens_reset_s: float | None = None

    def headers(self) -> list[tuple[bytes, bytes]]:
        """As OpenAI's clients read them: `x-ratelimit-…`, a duration as `6m0s`."""
        found: list[tuple[bytes, bytes]] = []
        for what, limit, left, reset_s in (
            (b"requests", self.rpm, self.requests_left, self.requests_reset_s),
            (b"tokens", self.tokens_per_day, self.tokens_left, self.tokens_reset_s),
        ):
            if limit is not None and left is not None and reset_s is not None:
                found += [
                    (b"x-ratelimit-limit-" + what, b"%d" % limit),
                    (b"x-ratelimit-remaining-" + what, b"%d" % left),
                    (b"x-ratelimit-reset-" + what, duration(reset_s).encode()),
                ]
        return found


def duration(seconds: float) -> str:
    """As Go writes it, in whole seconds: 0s, 59s, 6m0s, 13h5m10s."""
    minutes, s = divmod(max(0, round(seconds)), 60)
    hours, m = divmod(minutes, 60)
    return (f"{hours}h" if hours else "") + (f"{m}m" if minutes else "") + f"{s}s"


# -- both --------------------------------------------------------------------------------------


@dataclass(slots=True)
class Reservation:
    """What one request holds of its key's quota. Given back once: a second time does nothing."""

    key: str
    day: int
    place: Place
    tokens: int
    open: bool = True


class Quota:
    """All keys' quotas. Every method is one step of the loop."""

    def __init__(self, usage: Usage, days: Days, now: Callable[[], float], wall: Callable[[], float]) -> None:
        self.usage, self.days, self.wall = usage, days, wall
        anchor = wall() - now()
        self.windows = Windows(usage.origin, lambda: now() + anchor)
        self._held: dict[tuple[int, str], int] = {}

    def reserve(self, key: Key, prompt_tokens: int, may_generate: int | None) -> Reservation | Exceeded:
        """Let one request in, or say what stands in its way: then nothing is taken.

        `prompt_tokens` is an estimate. `may_generate`: the most tokens of its answer; None: it sets no limit.
        A request of which both are 0 uses no tokens, and is let in without any being left.
        """
        day = self.days.day(self.wall())
        self.usage.begin(day)
        if key.rpm is not None and (wait_s := self.windows.wait_s(key.name, key.rpm)) > 0:
            return Exceeded(Spent.REQUESTS, wait_s)
        held = self._room(key, day, prompt_tokens, may_generate)
        if isinstance(held, Exceeded):
            return held
        if held:
            self._held[day, key.name] = self._held.get((day, key.name), 0) + held
        return Reservation(key.name, day, self.windows.admit(key.name), held)

    def _room(self, key: Key, day: int, prompt_tokens: int, may_generate: int | None) -> int | Exceeded:
        """The tokens to hold. A prompt has to fit; of what may never be generated, as much as there is."""
        if key.tokens_per_day is None or (prompt_tokens, may_generate) == (0, 0):
            return 0
        left = key.tokens_per_day - self.usage.tokens(day, key.name)
        free = left - self.held(day, key.name)
        least = max(1, prompt_tokens)
        if least > left:
            return Exceeded(Spent.TOKENS, self.days.left(self.wall()))
        if least > free:
            return Exceeded(Spent.HELD, IN_FLIGHT_RETRY_S)
        return min(free, least + (UNSAID_TOKENS if may_generate is None else may_generate))

    def settle(self, reservation: Reservation, model: str, counts: Counts) -> None:
        """It is over: count what it used, give back what it held."""
        if self._close(reservation):
            self.usage.add(reservation.day, reservation.key, model, counts)

    def refund(self, reservation: Reservation) -> None:
        """It was turned away after all: as if it had never come."""
        if self._close(reservation):
            self.windows.refund(reservation.place)

    def _close(self, reservation: Reservation) -> bool:
        if not reservation.open:
            return False
        reservation.open = False
        at = reservation.day, reservation.key
        if (left := self._held.get(at, 0) - reservation.tokens) > 0:
            self._held[at] = left
        else:
            self._held.pop(at, None)
        return True

    def held(self, day: int, key: str) -> int:
        """Tokens held by the key's requests in flight that were let in on that day."""
        return self._held.get((day, key), 0)

    def standing(self, key: Key) -> Standing:
        requests: tuple[int | None, float | None] = (None, None)
        tokens: tuple[int | None, float | None] = (None, None)
        if key.rpm is not None:
            left = max(0, int(key.rpm - self.windows.used(key.name) + SLACK))
            requests = left, self.windows.reset_s(key.name)
        if key.tokens_per_day is not None:
            wall = self.wall()
            day = self.days.day(wall)
            free = key.tokens_per_day - self.usage.tokens(day, key.name) - self.held(day, key.name)
            tokens = max(0, free), self.days.left(wall)
        return Standing(key.rpm, *requests, key.tokens_per_day, *tokens)
