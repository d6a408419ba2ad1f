"""The page as Prometheus reads it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

Key = tuple[str, frozenset[tuple[str, str]]]


@dataclass(slots=True)
class Page:
    values: dict[Key, float]
    kinds: dict[str, str]  # family -> its type

    def __call__(self, name: str, **labels: str) -> float | None:
        """None: there is no such series."""
        return self.values.get((name, frozenset(labels.items())))

    def of(self, name: str) -> dict[tuple[tuple[str, str], ...], float]:
        """All series of a name, by their labels."""
        return {tuple(sorted(labels)): v for (n, labels), v in self.values.items() if n == name}

    def table(self, name: str, *labels: str) -> dict[tuple[str, ...], float]:
        """All series of a name, by these labels in this order."""
        return {tuple(dict(k)[label] for label in labels): v for k, v in self.of(name).items()}

    def where(self, true: Callable[[str], bool]) -> set[str]:
        """All values of labels for which that is so."""
        return {v for _, labels in self.values for _, v in labels if true(v)}


def read(page: bytes) -> Page:
    values: dict[Key, float] = {}
    kinds: dict[str, str] = {}
    for family in text_string_to_metric_families(page.decode()):
        assert family.name not in kinds, f"{family.name} comes twice"
        kinds[family.name] = family.type
        for sample in family.samples:
            key = sample.name, frozenset(sample.labels.items())
            assert key not in values, f"{key} comes twice"
            values[key] = sample.value
    return Page(values, kinds)
