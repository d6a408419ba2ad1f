"""One module per engine kind; `RECIPES` gathers the recipes they define.

A module put into this package is found by itself: nothing has to be listed here.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules

from engines.recipes.base import Kind, Recipe


def _found() -> Iterator[Recipe]:
    for module in iter_modules(__path__):
        members = vars(import_module(f"{__name__}.{module.name}"))
        yield from (value for value in members.values() if isinstance(value, Recipe))


RECIPES: dict[Kind, Recipe] = {
    recipe.kind: recipe for recipe in sorted(_found(), key=lambda recipe: list(Kind).index(recipe.kind))
}
"""In the order of `Kind`, which is the order in which kinds are told apart: the generic one last."""
