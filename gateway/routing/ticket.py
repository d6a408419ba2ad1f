"""What the scheduler keeps of each request it has in hand, and of one look at its queue."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic

from gateway.routing.lease import Ask, Lease, Turned
from gateway.routing.policy import Candidate
from gateway.routing.ports import T


class Ticket(Generic[T]):
    """A request in the scheduler's hands: it has a lease, an error, or waits for one of them."""

    __slots__ = ("ask", "error", "group", "kind", "lease", "on_settled", "since")

    def __init__(self, ask: Ask, now: float) -> None:
        self.ask, self.since = ask, now
        self.kind = ask.model, ask.exclude  # the same places would do
        self.group = _size(ask)  # and the policy would choose the same among them
        self.lease: Lease[T] | None = None
        self.error: Turned | None = None
        self.on_settled: Callable[[], None] | None = None
        """Called once, when it gets a lease or an error after a wait. It may call the scheduler."""


def _size(ask: Ask) -> Hashable:
    """Asks of one kind and size get one answer.

    Coarse, else each waiter would have to be asked in each round: of one size are those that leave the same
    to prefill at each target, within a factor of two. A match that leaves about everything is none.
    """
    anywhere = ask.prompt_tokens.bit_length()
    left = ((t, max(ask.prompt_tokens - n, 0).bit_length()) for t, n in ask.matched.items())
    return anywhere, frozenset(at for at in left if at[1] != anywhere)


class Sight(Generic[T]):
    """What the policy is shown to one kind of ask. It lasts until the next place is taken or given."""

    __slots__ = ("candidates", "place", "targets")

    def __init__(self, targets: Sequence[T], candidates: list[Candidate]) -> None:
        self.targets, self.candidates = targets, candidates
        self.place = any(c.free > 0 and c.feasible for c in candidates)

    def matched(self, tokens: Mapping[int, int]) -> list[Candidate]:
        """The candidates as an ask with these cached prefixes sees them."""
        if not tokens:
            return self.candidates
        return [
            c._replace(matched_tokens=tokens[c.target]) if c.target in tokens else c for c in self.candidates
        ]


@dataclass(slots=True)
class Turns(Generic[T]):
    """Turns offered at one moment."""

    now: float
    wanted: set[int] = field(default_factory=set)  # targets for whose load a room must be kept or cleared
    sights: dict[Hashable, Sight[T]] = field(default_factory=dict)  # by kind
    settled: list[Ticket[T]] = field(default_factory=list)
