"""What a request asks of the scheduler, what it gets, and how it can be turned away."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType, TracebackType
from typing import Generic, Self

from gateway.routing.policy import Decision
from gateway.routing.ports import T

NO_MATCHES: Mapping[int, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Ask:
    key: str  # whose turn it uses
    model: str
    prompt_tokens: int = 0  # estimated
    weight: int = 1
    exclude: frozenset[int] = frozenset()  # ids of targets that it was tried on
    retry: bool = False  # it has had its turn: to the front of its key's line
    matched: Mapping[int, int] = field(default_factory=lambda: NO_MATCHES, hash=False)
    """Target id -> tokens of the prompt that its prefix cache should hold. Not to be changed afterwards."""


class Turned(Exception):
    """A request that the scheduler will not serve. The message is for people."""


class NoSuchModel(Turned):
    """No backend lists the model, up or not."""


class NoneUp(Turned):
    """Backends list it, and none that is left to try is up."""


class Closed(Turned):
    """The gateway ends: who waits for a place will get none."""


class QueueFull(Turned):
    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


@dataclass(slots=True)
class Lease(Generic[T]):
    """A place at a target. `release` is the one point where it is given back; a second call does nothing."""

    target: T
    decision: Decision
    granted_at: float
    waited_s: float
    cold: bool  # the model was known not to be loaded: this request starts or joins a load
    _give_back: Callable[[Lease[T]], None] = field(repr=False)
    _computed: Callable[[Lease[T]], None] = field(repr=False)
    prefilling: bool  # its prompt is being computed, as far as is known
    released: bool = False

    def first_token(self) -> None:
        """Its prompt is computed, and holds up that of nobody else. A second call does nothing."""
        if self.prefilling:
            self.prefilling = False
            self._computed(self)

    def release(self) -> None:
        if not self.released:
            self.released = True
            self._give_back(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
