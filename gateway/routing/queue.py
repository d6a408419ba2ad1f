"""Whose turn it is: a queue that is fair between keys. Pure; knows nothing of targets or clocks.

Each key has its own first-in-first-out line. Keys take turns; a key keeps its turn until it was granted as
many requests as its weight, also when places free one at a time (deficit round-robin, a request costs 1). A
key whose requests cannot be served now is passed by, and keeps its place before those served meanwhile.

Waiters that want the same thing form a *group*: one refusal in a round answers for all of them, so that a
round costs as many questions as there are groups, not as there are waiters.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class Answer(Enum):
    """What became of a waiter that was offered its turn."""

    GRANTED = "granted"
    REFUSED = "refused"  # it stays
    GONE = "gone"  # it leaves the queue, and its key's turn is not used up


@dataclass(frozen=True, slots=True)
class _Entry:
    key: str
    group: Hashable
    order: int


@dataclass(slots=True)
class _Line(Generic[T]):
    """The waiters of one key, by group; each group in order of arrival."""

    weight: int
    left: int  # grants left in its turn
    groups: dict[Hashable, OrderedDict[T, int]] = field(default_factory=dict)

    def heads(self) -> list[tuple[int, Hashable, T]]:
        """The first of each group, oldest first."""
        found = []
        for group, waiters in self.groups.items():
            item, order = next(iter(waiters.items()))
            found.append((order, group, item))
        return sorted(found, key=lambda head: head[0])


class FairQueue(Generic[T]):
    def __init__(self) -> None:
        self._lines: OrderedDict[str, _Line[T]] = OrderedDict()  # in order of turn
        self._entries: dict[T, _Entry] = {}
        self._sizes: Counter[Hashable] = Counter()
        self._last = self._first = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, item: T) -> bool:
        return item in self._entries

    def __iter__(self) -> Iterator[T]:
        """In order of arrival. For pages and tests: the order of service depends on what frees up."""
        return iter(sorted(self._entries, key=lambda item: self._entries[item].order))

    def has(self, group: Hashable) -> bool:
        return group in self._sizes

    def by_key(self) -> dict[str, int]:
        """Key -> how many of its requests wait, next turn first."""
        return {key: sum(map(len, line.groups.values())) for key, line in self._lines.items()}

    def push(self, item: T, key: str, weight: int, group: Hashable, *, front: bool = False) -> None:
        """`front`: before the others of its key, for one that has had its turn before."""
        if item in self._entries:
            raise ValueError("it is in the queue already")
        if front:
            self._first -= 1
            order = self._first
        else:
            self._last += 1
            order = self._last
        weight = max(weight, 1)
        line = self._lines.setdefault(key, _Line(weight, weight))
        line.weight = weight
        waiters = line.groups.setdefault(group, OrderedDict())
        waiters[item] = order
        if front:
            waiters.move_to_end(item, last=False)
        self._entries[item] = _Entry(key, group, order)
        self._sizes[group] += 1

    def remove(self, item: T) -> bool:
        """False: it was not in the queue (any more)."""
        entry = self._entries.pop(item, None)
        if entry is None:
            return False
        line = self._lines[entry.key]
        del line.groups[entry.group][item]
        if not line.groups[entry.group]:
            del line.groups[entry.group]
        if not line.groups:
            del self._lines[entry.key]
        self._sizes[entry.group] -= 1
        if not self._sizes[entry.group]:
            del self._sizes[entry.group]
        return True

    def serve(self, offer: Callable[[T], Answer]) -> None:
        """Offer waiters their turn, in fair order, until every group that is left was refused."""
        refused: set[Hashable] = set()
        while self._serve_one(offer, refused):
            pass

    def _serve_one(self, offer: Callable[[T], Answer], refused: set[Hashable]) -> bool:
        for key, line in self._lines.items():
            if len(refused) >= len(self._sizes) and refused >= self._sizes.keys():
                return False
            for _, group, item in line.heads():
                if group in refused:
                    continue
                answer = offer(item)
                if answer is Answer.REFUSED:
                    refused.add(group)
                    continue
                self.remove(item)
                if answer is Answer.GRANTED:
                    self._used(key, line)
                return True
        return False

    def _used(self, key: str, line: _Line[T]) -> None:
        line.left -= 1
        if line.left <= 0:
            line.left = line.weight
            if key in self._lines:
                self._lines.move_to_end(key)
