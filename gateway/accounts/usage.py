"""What was used: by whom, of which model, on which day, and which process counted it.

How this works. A process adds only to cells of its own origin, so a cell has one writer and only grows. Two
copies of a cell are merged by taking the larger of each field: copies may come late, twice and in any order,
and the result is the same. A total is the sum over origins, so what a crashed process had counted stays as
long as anybody has a copy of it.

Counts are immutable and stand by day. A reader takes `history()`, which costs one step a day, and may read it
in a thread for as long as it likes: a day that somebody holds is copied before it is next written to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import add, itemgetter, sub
from types import MappingProxyType

import msgspec

DROPPED_A_DAY = 2
"""Days dropped at most when a new one begins: more than one, to catch up, and few, because a clock that leaps
a year ahead must not cost the history."""


class Counts(msgspec.Struct, frozen=True, gc=False):
    """Counted things; each only grows. Tokens are those that engines reported."""

    requests: int = 0  # that reached an engine or were left by their clients before
    prompt_tokens: int = 0  # whole prompts, cached tokens included
    completion_tokens: int = 0
    cached_tokens: int = 0  # of the prompts, as far as engines tell
    unmetered: int = 0  # requests whose reply did not tell both its prompt's and its answer's tokens
    abandoned: int = 0  # requests whose client left; the tokens they used are among the others

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    def each(self) -> tuple[int, ...]:
        return (
            self.requests, self.prompt_tokens, self.completion_tokens,
            self.cached_tokens, self.unmetered, self.abandoned,
        )  # fmt: skip

    def plus(self, other: Counts) -> Counts:
        return Counts(*map(add, self.each(), other.each()))

    def minus(self, other: Counts) -> Counts:
        return Counts(*map(sub, self.each(), other.each()))

    def larger(self, other: Counts) -> Counts:
        return Counts(*map(max, self.each(), other.each()))


NOTHING = Counts()
Id = tuple[int, str, str]  # origin, key, model


class Cell(msgspec.Struct, frozen=True, gc=False):
    """One cell as it travels. `day` is numbered as in `Days`; `origin` is a process."""

    origin: int
    day: int
    key: str
    model: str
    counts: Counts


@dataclass(slots=True)
class Day:
    """The cells of one day, and their sums, so that nobody has to add up what is asked for most."""

    cells: dict[Id, Counts] = field(default_factory=dict)
    by_key: dict[str, Counts] = field(default_factory=dict)  # over all origins and models
    by_model: dict[str, Counts] = field(default_factory=dict)  # over all origins and keys

    def put(self, id_: Id, counts: Counts) -> None:
        grown = counts.minus(self.cells.get(id_, NOTHING))
        _, key, model = id_
        self.cells[id_] = counts
        self.by_key[key] = self.by_key.get(key, NOTHING).plus(grown)
        self.by_model[model] = self.by_model.get(model, NOTHING).plus(grown)

    def copy(self) -> Day:
        return Day(dict(self.cells), dict(self.by_key), dict(self.by_model))


class Usage:
    """The cells of one process and its copies of others'. `origin` is a random number of this process."""

    def __init__(self, origin: int, retention_days: int = 400) -> None:
        self.origin, self.retention_days = origin, retention_days
        self._days: dict[int, Day] = {}
        self._shared: set[int] = set()  # days that a reader has
        self._ids: dict[Id, Id] = {}  # one object for the id that stands in every day
        self._today: int | None = None

    def add(self, day: int, key: str, model: str, counts: Counts) -> None:
        """Count something of one's own."""
        id_ = self._id(self.origin, key, model)
        of = self._writable(day)
        of.put(id_, of.cells.get(id_, NOTHING).plus(counts))

    def tokens(self, day: int, key: str) -> int:
        """Known to be used by the key on that day, by all origins and of all models."""
        found = self._days.get(day)
        return 0 if found is None else found.by_key.get(key, NOTHING).tokens

    def begin(self, today: int) -> None:
        """To be told of the day now and then: what is older than the retention goes, some of it each day."""
        if today == self._today:
            return
        self._today = today
        old = sorted(d for d in self._days if d <= today - self.retention_days)
        for day in old[:DROPPED_A_DAY]:
            del self._days[day]
            self._shared.discard(day)
        if old:
            kept = {id_ for day in self._days.values() for id_ in day.cells}
            self._ids = {id_: id_ for id_ in kept}

    # -- sharing -------------------------------------------------------------------------------

    def export(self) -> list[Cell]:
        return [
            Cell(origin, day, key, model, counts)
            for day, of in sorted(self._days.items())
            for (origin, key, model), counts in of.cells.items()
        ]

    def merge(self, cells: Iterable[Cell]) -> None:
        """Take over what others have counted. Any order, any number of times."""
        for cell in cells:
            if self._today is not None and cell.day <= self._today - self.retention_days:
                continue
            id_ = self._id(cell.origin, cell.key, cell.model)
            day = self._days.get(cell.day)
            known = None if day is None else day.cells.get(id_)
            larger = cell.counts if known is None else known.larger(cell.counts)
            if larger != known:
                self._writable(cell.day).put(id_, larger)

    def _writable(self, number: int) -> Day:
        day = self._days.setdefault(number, Day())
        if number in self._shared:
            self._shared.discard(number)
            day = self._days[number] = day.copy()
        return day

    def _id(self, origin: int, key: str, model: str) -> Id:
        id_ = (origin, key, model)
        return self._ids.setdefault(id_, id_)

    # -- reading -------------------------------------------------------------------------------

    def history(self) -> History:
        """All of it as it is now. Later counting does not change it."""
        self._shared = set(self._days)
        return History(MappingProxyType(dict(self._days)))


@dataclass(frozen=True, slots=True)
class Row:
    """A sum over origins. A field that was not asked for is None."""

    counts: Counts
    day: int | None = None
    key: str | None = None
    model: str | None = None


@dataclass(frozen=True, slots=True)
class History:
    """Usage by day, to be asked in any thread."""

    days: Mapping[int, Day]

    def rows(
        self, first: int, last: int, *, day: bool = True, key: bool = False, model: bool = False
    ) -> list[Row]:
        """Sums of the days `first` to `last`, both included, apart by what is True; in order of these."""
        sums: dict[tuple[int, str, str], Counts] = {}
        for number in (n for n in self.days if first <= n <= last):
            for of_key, of_model, counts in _parts(self.days[number], key, model):
                at = (number if day else 0, of_key, of_model)
                known = sums.get(at)
                sums[at] = counts if known is None else known.plus(counts)
        return [
            Row(total, d if day else None, k if key else None, m if model else None)
            for (d, k, m), total in sorted(sums.items(), key=itemgetter(0))
        ]

    def total(self, first: int, last: int) -> Counts:
        found = self.rows(first, last, day=False)
        return found[0].counts if found else NOTHING


def _parts(day: Day, key: bool, model: bool) -> Iterator[tuple[str, str, Counts]]:
    """Key, model and counts; an empty name where it is not told apart."""
    if key and model:
        for (_, of_key, of_model), counts in day.cells.items():
            yield of_key, of_model, counts
    elif key:
        for of_key, counts in day.by_key.items():
            yield of_key, "", counts
    else:
        for of_model, counts in day.by_model.items():
            yield "", of_model if model else "", counts
