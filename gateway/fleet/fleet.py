"""All backends together, and the choice among them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from gateway.fleet.backend import Backend


@dataclass(slots=True)
class Lease:
    """A request's hold on a backend. `with` it: leaving gives the place back, once."""

    backend: Backend
    served: str  # the engine's name of the model
    reason: str  # why this backend, for people

    def __enter__(self) -> Self:
        self.backend.in_flight += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.backend.in_flight -= 1


class Fleet:
    def __init__(self, backends: Sequence[Backend]) -> None:
        self.backends = tuple(backends)
        self._turn = 0

    def models(self) -> dict[str, tuple[Backend, ...]]:
        """What can be asked for now: each model with the backends that are up and list it."""
        found: dict[str, list[Backend]] = {}
        for backend in self.backends:
            if backend.up:
                for name in backend.models:
                    found.setdefault(name, []).append(backend)
        return {name: tuple(where) for name, where in found.items()}

    def lists(self, model: str) -> bool:
        """Does any backend list the model, up or not, as far as is known?"""
        return any(model in b.models for b in self.backends)

    def pick(self, model: str, tried: Iterable[Backend] = ()) -> Lease | None:
        """The backend with the fewest requests of ours; equals take turns. None: nobody up lists it."""
        left = [b for b in self.backends if b.up and model in b.models and b not in tried]
        if not left:
            return None
        fewest = min(b.in_flight for b in left)
        equal = [b for b in left if b.in_flight == fewest]
        self._turn += 1
        backend = equal[self._turn % len(equal)]
        return Lease(backend, backend.models[model], _reason(fewest, len(left), len(equal)))


def _reason(fewest: int, of: int, equal: int) -> str:
    if of == 1:
        return "the only backend that serves the model now"
    busy = "idle" if fewest == 0 else f"{fewest} in flight"
    return f"{busy}, {'equal to others, in turn' if equal > 1 else f'the fewest of {of} backends'}"
