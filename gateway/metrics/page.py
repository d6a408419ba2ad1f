"""The series as text, written a little at a time: the loop is never held for a whole page."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator

from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
SLICE_S = 0.0005  # of writing before others on the loop have their turn


class _Piece(Collector):
    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterable[Metric]:
        return [self._metric]


def texts(metrics: Iterable[Metric]) -> Iterator[bytes]:
    """Each piece as text. Pieces of one family come in a row, and only the first has its lines of head."""
    last = None
    for metric in metrics:
        text = generate_latest(_Piece(metric))
        yield text.split(b"\n", 2)[2] if metric.name == last else text
        last = metric.name


async def write(metrics: Iterable[Metric]) -> bytes:
    page: list[bytes] = []
    began = time.perf_counter()
    for text in texts(metrics):
        page.append(text)
        if time.perf_counter() - began > SLICE_S:
            await asyncio.sleep(0)
            began = time.perf_counter()
    return b"".join(page)
