"""What the scheduler needs to know of a fleet, and no more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar


class View(Protocol):
    """A target's signals as of now. None is unknown or stale."""

    @property
    def warm(self) -> bool | None: ...
    @property
    def loading(self) -> bool: ...
    @property
    def running(self) -> int | None: ...
    @property
    def waiting(self) -> int | None: ...
    @property
    def load_at(self) -> float | None: ...
    @property
    def capacity(self) -> int | None: ...
    @property
    def kv_usage(self) -> float | None: ...
    @property
    def size_bytes(self) -> int | None: ...
    @property
    def vram_bytes(self) -> int | None: ...


class Stats(Protocol):
    @property
    def prefill_s_per_token(self) -> float | None: ...
    @property
    def load_s(self) -> float | None: ...
    @property
    def service_s(self) -> float | None: ...


class Config(Protocol):
    @property
    def memory_gb(self) -> float | None: ...


class Backend(Protocol):
    @property
    def url(self) -> str: ...
    @property
    def config(self) -> Config: ...


class Target(Protocol):
    @property
    def id(self) -> int: ...
    @property
    def model(self) -> str: ...
    @property
    def key(self) -> str: ...
    @property
    def backend(self) -> Backend: ...
    @property
    def stats(self) -> Stats: ...
    def view(self, now: float) -> View: ...


T = TypeVar("T", bound=Target)
T_co = TypeVar("T_co", bound=Target, covariant=True)


class Fleet(Protocol[T_co]):
    def targets_of(self, model: str) -> Sequence[T_co]:
        """Those up now that list the model."""

    def lists(self, model: str) -> bool:
        """Does any backend list it, up or not?"""
