"""One module per engine kind; `RECIPES` gathers the recipes they define.

A module put into this package is found by itself: nothing has to be listed here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from graphlib import TopologicalSorter
from importlib import import_module
from pkgutil import iter_modules

from engines.recipes.base import Kind, Recipe


def _found() -> Iterator[Recipe]:
    for module in iter_modules(__path__):
        members = vars(import_module(f"{__name__}.{module.name}"))
        yield from (value for value in members.values() if isinstance(value, Recipe))


def _in_order(recipes: Iterable[Recipe]) -> list[Recipe]:
    """Imitators before what they imitate, the generic kind last."""
    graph = {r.kind: r for r in sorted(recipes, key=lambda r: (r.generic, r.kind))}
    before: dict[Kind, set[Kind]] = {kind: set() for kind in graph}
    for recipe in graph.values():
        for imitated in recipe.asked_before:
            before[imitated].add(recipe.kind)
        if recipe.generic:
            before[recipe.kind] |= graph.keys() - {recipe.kind}
    return [graph[kind] for kind in TopologicalSorter(before).static_order()]


RECIPES: dict[Kind, Recipe] = {recipe.kind: recipe for recipe in _in_order(_found())}
"""In the order in which kinds are told apart."""
