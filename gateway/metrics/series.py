"""Counts and times by labels, handed out a few at a time.

The collectors of prometheus-client that keep their values hand out all series of a family in one go. With
20 keys and 50 models that holds the loop for some 13 ms a family. So the values stand here, in plain dicts.
They are handed out in pieces of the client's own kind, and its page writer makes the text.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, islice
from typing import TypeVar

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

PIECE = 32
"""Samples in a piece, about: half a millisecond of writing."""

Labels = tuple[str, ...]
V = TypeVar("V")


class Counts:
    """Things counted, by labels. They only grow."""

    kind = "counter"

    def __init__(self, name: str, what: str, labels: Labels = ()) -> None:
        self.name, self.what, self.labels = name, what, labels
        self.values: dict[Labels, float] = {}

    def add(self, *labels: str, by: float = 1) -> None:
        """Adding 0 makes the series be there."""
        self.values[labels] = self.values.get(labels, 0) + by

    def pieces(self) -> Iterator[Metric]:
        for some in _cut(list(self.values.items()), PIECE):
            family = CounterMetricFamily(self.name, self.what, labels=self.labels)
            for labels, value in some:
                family.add_metric(labels, value)
            yield family


class Times:
    """A histogram of seconds, by labels. `bounds`: the upper ends of its buckets, growing."""

    kind = "histogram"

    def __init__(self, name: str, what: str, labels: Labels, bounds: Sequence[float]) -> None:
        self.name, self.what, self.labels, self.bounds = name, what, labels, tuple(bounds)
        self._names = [str(float(b)) for b in bounds] + ["+Inf"]
        self._buckets: dict[Labels, list[int]] = {}
        self._sums: dict[Labels, float] = {}

    def observe(self, seconds: float, *labels: str) -> None:
        buckets = self._buckets.get(labels)
        if buckets is None:
            buckets = self._buckets[labels] = [0] * (len(self.bounds) + 1)
        buckets[bisect_left(self.bounds, seconds)] += 1
        self._sums[labels] = self._sums.get(labels, 0.0) + seconds

    def pieces(self) -> Iterator[Metric]:
        for some in _cut(list(self._buckets.items()), max(1, PIECE // len(self._names))):
            family = HistogramMetricFamily(self.name, self.what, labels=self.labels)
            for labels, buckets in some:
                up_to = list(zip(self._names, map(float, accumulate(buckets)), strict=True))
                family.add_metric(labels, up_to, self._sums[labels])
            yield family


class Gauges:
    """Values of this moment: `read` gives them, with their labels, when the page is written."""

    kind = "gauge"

    def __init__(self, name: str, what: str, labels: Labels = ()) -> None:
        self.name, self.what, self.labels = name, what, labels

    def pieces(self, now: Iterable[tuple[Labels, float]]) -> Iterator[Metric]:
        for some in _cut(now, PIECE):
            family = GaugeMetricFamily(self.name, self.what, labels=self.labels)
            for labels, value in some:
                family.add_metric(labels, value)
            yield family


def _cut(things: Iterable[V], size: int) -> Iterator[Iterable[V]]:
    rest = iter(things)
    for first in rest:
        yield chain([first], islice(rest, size - 1))
