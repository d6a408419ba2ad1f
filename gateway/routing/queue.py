"""Whose turn it is: a queue that is fair between keys. Pure; knows nothing of targets or clocks.

Each key has its own first-in-first-out line. Keys take turns; a key keeps its turn until it was granted as
many requests as its weight, also when places free one at a time (deficit round-robin, a request costs 1). A
key whose requests cannot be served now is passed by, and keeps its place before those served meanwhile.

Waiters that want the same thing form a *group*, and groups that could be served by the same places a *kind*.
One refusal in a round answers for a group; where there is no place at all, it answers for the kind. So a
round costs as many questions as there are groups at worst, and mostly as there are kinds, however many wait.
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
    REFUSED = "refused"  # it stays, and so does its group
    FULL = "full"  # it stays, and so does its kind
    GONE = "gone"  # it leaves the queue, and its key's turn is not used up


@dataclass(frozen=True, slots=True)
class _Entry:
    key: str
    kind: Hashable
    group: Hashable
    order: int


@dataclass(slots=True)
class _Refused:
    """What has been refused in one round."""

    kinds: set[Hashable] = field(default_factory=set)
    groups: dict[Hashable, set[Hashable]] = field(default_factory=dict)  # by kind


@dataclass(slots=True)
class _Line(Generic[T]):
    """The waiters of one key, by kind and group; each group in order of arrival."""

    weight: int
    left: int  # grants left in its turn
    kinds: dict[Hashable, dict[Hashable, OrderedDict[T, int]]] = field(default_factory=dict)

    def heads(self, refused: _Refused) -> list[tuple[int, T]]:
        """The first of each group that is still to be asked, oldest first."""
        found = []
        for kind, groups in self.kinds.items():
            if kind in refused.kinds:
                continue
            asked = refused.groups.get(kind, ())
            for group, waiters in groups.items():
                if group not in asked:
                    item = next(iter(waiters))
                    found.append((waiters[item], item))
        return sorted(found, key=_order)

    def __len__(self) -> int:
        return sum(len(waiters) for groups in self.kinds.values() for waiters in groups.values())


def _order(head: tuple[int, object]) -> int:
    return head[0]


class FairQueue(Generic[T]):
    def __init__(self) -> None:
        self._lines: OrderedDict[str, _Line[T]] = OrderedDict()  # in order of turn
        self._entries: dict[T, _Entry] = {}
        self._sizes: dict[Hashable, Counter[Hashable]] = {}  # kind -> group -> waiters; no entry is empty
        self._last = self._first = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, item: T) -> bool:
        return item in self._entries

    def __iter__(self) -> Iterator[T]:
        """In order of arrival. For pages and tests: the order of service depends on what frees up."""
        return iter(sorted(self._entries, key=lambda item: self._entries[item].order))

    def has(self, group: Hashable, kind: Hashable = None) -> bool:
        return group in self._sizes.get(kind, ())

    def by_key(self) -> dict[str, int]:
        """Key -> how many of its requests wait, next turn first."""
        return {key: len(line) for key, line in self._lines.items()}

    def push(
        self, item: T, key: str, weight: int, group: Hashable, *, kind: Hashable = None, front: bool = False
    ) -> None:
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
        waiters = line.kinds.setdefault(kind, {}).setdefault(group, OrderedDict())
        waiters[item] = order
        if front:
            waiters.move_to_end(item, last=False)
        self._entries[item] = _Entry(key, kind, group, order)
        self._sizes.setdefault(kind, Counter())[group] += 1

    def remove(self, item: T) -> bool:
        """False: it was not in the queue (any more)."""
        entry = self._entries.pop(item, None)
        if entry is None:
            return False
        line = self._lines[entry.key]
        groups, sizes = line.kinds[entry.kind], self._sizes[entry.kind]
        del groups[entry.group][item]
        if not groups[entry.group]:
            del groups[entry.group]
        if not groups:
            del line.kinds[entry.kind]
        if not line.kinds:
            del self._lines[entry.key]
        sizes[entry.group] -= 1
        if not sizes[entry.group]:
            del sizes[entry.group]
        if not sizes:
            del self._sizes[entry.kind]
        return True

    def serve(self, offer: Callable[[T], Answer]) -> None:
        """Offer waiters their turn, in fair order, until all that are left were refused.

        `offer` must not touch the queue.
        """
        refused = _Refused()
        while self._serve_one(offer, refused):
            pass

    def _serve_one(self, offer: Callable[[T], Answer], refused: _Refused) -> bool:
        for key, line in self._lines.items():
            if refused.kinds >= self._sizes.keys():
                return False
            for _, item in line.heads(refused):
                entry = self._entries[item]
                if entry.kind in refused.kinds:
                    continue
                answer = offer(item)
                if answer is Answer.REFUSED or answer is Answer.FULL:
                    self._refuse(entry, refused, whole_kind=answer is Answer.FULL)
                    continue
                self.remove(item)
                if answer is Answer.GRANTED:
                    self._used(key, line)
                return True
        return False

    def _refuse(self, entry: _Entry, refused: _Refused, *, whole_kind: bool) -> None:
        groups = refused.groups.setdefault(entry.kind, set())
        groups.add(entry.group)
        if whole_kind or groups >= self._sizes[entry.kind].keys():
            refused.kinds.add(entry.kind)

    def _used(self, key: str, line: _Line[T]) -> None:
        line.left -= 1
        if line.left <= 0:
            line.left = line.weight
            if key in self._lines:
                self._lines.move_to_end(key)
