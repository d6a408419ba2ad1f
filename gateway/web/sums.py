"""Usage added up, out of a history. For a thread: with 1,000 keys and 400 days it takes half a second.

Written as plain loops, so that the event loop gets the interpreter whenever it wants it: one sort in C over
all of it would keep it away for as long as that takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from enum import StrEnum

from gateway.accounts.days import Days
from gateway.accounts.usage import NOTHING, Counts, Day, History


class By(StrEnum):
    KEY = "key"
    MODEL = "model"


@dataclass(frozen=True, slots=True)
class Span:
    """Days by their number, both included."""

    first: int
    last: int

    def of(self, history: History) -> list[int]:
        """Those of which anything is known, in order."""
        return sorted(n for n in history.days if self.first <= n <= self.last)

    def __len__(self) -> int:
        return self.last - self.first + 1


def span(days: Days, today: int, first: str | None, last: str | None) -> Span:
    """As asked for: by default the 30 days that end today, or at `last`. Raises ValueError, with words."""
    end = _day(days, "to", last) if last else today
    begin = _day(days, "from", first) if first else end - 29
    if begin > end:
        raise ValueError(f"from={first} is after {'to=' + last if last else 'today'}")
    return Span(begin, end)


def _day(days: Days, name: str, text: str) -> int:
    try:
        return days.number(date.fromisoformat(text))
    except ValueError:
        raise ValueError(f"{name}={text[:40]!r} is no date: write it as 2026-09-28") from None


def table(day: Day, by: By) -> Mapping[str, Counts]:
    return day.by_key if by is By.KEY else day.by_model


def totals(history: History, of: Span, by: By) -> list[tuple[str, Counts]]:
    """Who or what used how much, the most tokens first."""
    sums: dict[str, list[int]] = {}
    for number in of.of(history):
        for name, c in table(history.days[number], by).items():
            known = sums.get(name)
            if known is None:
                sums[name] = list(c.each())
            else:
                known[0] += c.requests
                known[1] += c.prompt_tokens
                known[2] += c.completion_tokens
                known[3] += c.cached_tokens
                known[4] += c.unmetered
                known[5] += c.abandoned
    found = [(name, Counts(*counts)) for name, counts in sums.items()]
    return sorted(found, key=lambda row: (-row[1].tokens, -row[1].requests, row[0]))


def by_day(history: History, of: Span, key: str | None = None, model: str | None = None) -> dict[int, Counts]:
    """Each day's sum: of all, or of one key, or of one model."""
    found: dict[int, Counts] = {}
    for number in of.of(history):
        day = history.days[number]
        if key is not None:
            total = day.by_key.get(key, NOTHING)
        elif model is not None:
            total = day.by_model.get(model, NOTHING)
        else:
            total = NOTHING
            for counts in day.by_model.values():
                total = total.plus(counts)
        found[number] = total
    return found


def rows(history: History, of: Span, by: By) -> Iterator[list[tuple[int, str, Counts]]]:
    """Day, name and counts, a day at a time."""
    for number in of.of(history):
        found = table(history.days[number], by)
        yield [(number, name, found[name]) for name in sorted(found)]
