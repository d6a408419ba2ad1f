"""Who serves a model on a route, and under which name. Plain looks at the fleet: nothing here is taken."""

from __future__ import annotations

import difflib
from collections.abc import Callable

from engines.recipes.base import Recipe
from gateway.fleet.backend import Backend
from gateway.fleet.fleet import Fleet
from gateway.proxy.refusals import Refusal
from gateway.proxy.routes import Route


def recipe_of(backend: Backend) -> Recipe | None:
    """None: nothing has answered there yet."""
    return None if backend.view is None else backend.view.plan.recipe


def native(backend: Backend) -> bool:
    recipe = recipe_of(backend)
    return recipe is not None and recipe.native_api


def speaks(backend: Backend, route: Route) -> bool:
    return native(backend) if route.native else True


def twin(name: str) -> str | None:
    """Ollama's other name of the same model: `latest` is the tag of a name that has none."""
    if name.endswith(":latest"):
        return name.removesuffix(":latest") or None
    return None if ":" in name.rpartition("/")[2] else f"{name}:latest"


def same(backend: Backend, asked: str, served: str) -> bool:
    """Does the engine take the one name for the other?"""
    return asked == served or (native(backend) and twin(asked) == served)


Sees = Callable[[str], bool]
"""Does a listed model exist for whoever asks?"""


def everything(_name: str) -> bool:
    return True


def names(fleet: Fleet, name: str) -> tuple[str, ...]:
    """All names of the model that the fleet lists under this one, this one first."""
    other = twin(name)
    second = other is not None and any(name in b.models and native(b) for b in fleet.backends)
    return (name, other) if second and other is not None else (name,)


def find(fleet: Fleet, route: Route, model: str, sees: Sees = everything) -> str:
    """The name by which the fleet knows the model. Raises Refusal (404) when nobody lists it, up or not."""
    name = known_as(fleet, route, model)
    if name is None or not sees(name):
        raise no_such_model(fleet, route, model, sees)
    return name


def known_as(fleet: Fleet, route: Route, model: str) -> str | None:
    able = [b for b in fleet.backends if speaks(b, route)]
    other = twin(model)
    for backends in ([b for b in able if b.up], able):
        if any(model in b.models for b in backends):
            return model
        if other is not None and any(other in b.models for b in backends if native(b)):
            return other
    return None


def serving(fleet: Fleet, route: Route, name: str) -> list[Backend]:
    """The backends that can be asked for it now."""
    return [b for b in fleet.backends if b.up and name in b.models and speaks(b, route)]


def no_such_model(fleet: Fleet, route: Route | None, model: str, sees: Sees = everything) -> Refusal:
    """What exists for somebody else is told in the words for what nobody has, and is not hinted at."""
    able = [b for b in fleet.backends if b.up and (route is None or speaks(b, route))]
    served = sorted(filter(sees, {name for b in able for name in b.models}))
    shown = repr(model[:200])
    near = difflib.get_close_matches(model[:200], served, n=1)
    if sees(model) and any(model in b.models for b in fleet.backends if b not in able and b.up):
        hint = "its engine does not speak Ollama's API: ask for it at /v1/chat/completions"
    elif near:
        hint = f"did you mean {near[0]!r}?"
    elif served:
        hint = f"served now: {', '.join(served[:10])}" + (" …" if len(served) > 10 else "")
    elif able:
        hint = "no engine that is up serves a model that exists for this key"
    else:
        hint = "no engine is up: see `manage.py pharos_doctor`"
    said = (
        f"model {shown} not found"
        if route is not None and route.native
        else f"No engine serves the model {shown}"
    )
    return Refusal(404, "model_not_found", f"{said}; {hint}" + ("" if hint.endswith("?") else "."))
