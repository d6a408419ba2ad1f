"""A scenario file: machines, engines, models, keys, and who asks what. Strict: a typo is an error.

The files in `scenarios/` are read by name, any other by its path.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import yaml

from engines.doubles import PHYSICS

T = TypeVar("T")

FOLDER = Path(__file__).parent / "scenarios"

More = Annotated[float, msgspec.Meta(gt=0)]
Count = Annotated[int, msgspec.Meta(ge=1)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


class ScenarioError(Exception):
    """A scenario that cannot be run. The message is for people."""


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    pass


class Host(_Strict, frozen=True):
    """One engine on one machine."""

    name: str
    engine: str
    models: list[str]
    prefill_tokens_s: More
    decode_tokens_s: More  # of one stream alone
    load_s: More
    loaded: list[str] = []  # in memory at the start
    slots: Count | None = None  # None: as the engine's model says, and so below
    memory_gb: More | None = None
    max_loaded: Count | None = None
    cache_tokens: Count | None = None
    decode_share: Annotated[float, msgspec.Meta(ge=0)] | None = None
    told_capacity: Count | None = None  # `capacity` in the gateway's config
    told_memory: bool = False  # `memory_gb` in the gateway's config


class Habit(_Strict, frozen=True):
    """What one kind of user does. Medians, each drawn anew; tokens and seconds."""

    shared_tokens: int  # system prompt and tools, the same for everybody of one app
    first_tokens: int  # the first message of a conversation
    next_tokens: int  # a later message, or the result of a tool
    answer_tokens: int
    turns: Count  # of a conversation
    think_s: More  # between an answer and the next turn
    rest_s: More  # between two conversations
    spread: Annotated[float, msgspec.Meta(ge=0)] = 0.5  # sigma of the logarithm; 0: always the median


HABITS = {
    "chat": Habit(
        shared_tokens=400, first_tokens=80, next_tokens=60, answer_tokens=250, turns=6, think_s=25, rest_s=60
    ),
    "agent": Habit(
        shared_tokens=5000,
        first_tokens=800,
        next_tokens=500,
        answer_tokens=120,
        turns=15,
        think_s=2,
        rest_s=60,
    ),
    "classifier": Habit(
        shared_tokens=700, first_tokens=300, next_tokens=300, answer_tokens=1, turns=1, think_s=2, rest_s=2
    ),
}  # assumed: no recording of a whole team's day is at hand


class Users(_Strict, frozen=True):
    """`count` alike. They share an app's system prompt; each has its own conversations."""

    kind: str
    count: Count
    model: str
    key: str = "team"
    app: str | None = None  # None: the kind
    escaped: Share = 0.0  # of these users: they write in Cyrillic and escape what is not ASCII
    starts_s: Annotated[float, msgspec.Meta(ge=0)] = 30.0  # each comes at some moment before this
    habit: dict[str, Any] = {}  # changes to the kind's

    @property
    def habits(self) -> Habit:
        """Raises ScenarioError."""
        if self.kind not in HABITS:
            raise ScenarioError(f"no kind of user is called {self.kind!r}: there are {', '.join(HABITS)}")
        return _convert({**msgspec.to_builtins(HABITS[self.kind]), **self.habit}, Habit)


class Variant(_Strict, frozen=True):
    """One thing changed, to see what it does."""

    hosts: dict[str, Any] = {}  # fields of every host
    times: More = 1.0  # as many users
    key: str | None = None  # of everybody
    weights: dict[str, int] | None = None


class Scenario(_Strict, frozen=True):
    about: str
    minutes: More
    hosts: list[Host]
    users: list[Users]
    sizes_gb: dict[str, float] = {}  # by model; else as the engine's model says
    weights: dict[str, int] = {}  # by key; else 1
    patience_s: More = 300.0  # a user who has no token by then gives up
    variants: dict[str, Variant] = {}
    name: str = ""

    def varied(self, variant: str) -> Scenario:
        """Raises ScenarioError."""
        if variant not in self.variants:
            known = ", ".join(self.variants) or "none"
            raise ScenarioError(f"{self.name} has no variant {variant!r}: there are {known}")
        change = self.variants[variant]
        hosts = [_convert({**msgspec.to_builtins(h), **change.hosts}, Host) for h in self.hosts]
        users = [
            msgspec.structs.replace(u, count=max(1, round(u.count * change.times)), key=change.key or u.key)
            for u in self.users
        ]
        weights = self.weights if change.weights is None else change.weights
        name = f"{self.name}:{variant}"
        return msgspec.structs.replace(self, hosts=hosts, users=users, weights=weights, name=name)


def load(name: str) -> Scenario:
    """By name, or by path where it ends in `.yaml`; `name:variant` for one of its variants.

    Raises ScenarioError.
    """
    name, _, variant = name.partition(":")
    found = _load(name)
    return found.varied(variant) if variant else found


def _load(name: str) -> Scenario:
    path = Path(name) if name.endswith((".yaml", ".yml")) else FOLDER / f"{name}.yaml"
    try:
        text = path.read_text("utf-8")
    except OSError as e:
        known = ", ".join(names())
        raise ScenarioError(
            f"no scenario {name}: {e.strerror}. There are {known}; or give a file.yaml"
        ) from None
    return parse(text, path.stem)


def names() -> Iterator[str]:
    return iter(sorted(p.stem for p in FOLDER.glob("*.yaml")))


def parse(text: str, name: str) -> Scenario:
    """Raises ScenarioError."""
    try:
        raw = yaml.safe_load(text)
    except yaml.YAMLError as e:
        raise ScenarioError(f"{name} is not YAML: {e}") from None
    try:
        found = _convert(raw, Scenario)
        _check(found)
    except ScenarioError as e:
        raise ScenarioError(f"scenario {name}: {e}") from None
    return msgspec.structs.replace(found, name=found.name or name)


def _convert(raw: object, to: type[T]) -> T:
    try:
        return msgspec.convert(raw, to)
    except msgspec.ValidationError as e:
        raise ScenarioError(str(e)) from None


def _check(scenario: Scenario) -> None:
    for host in scenario.hosts:
        if host.engine not in PHYSICS:
            raise ScenarioError(
                f"host {host.name}: no engine {host.engine!r}: there are {', '.join(PHYSICS)}"
            )
        if missing := set(host.loaded) - set(host.models):
            raise ScenarioError(f"host {host.name}: {', '.join(sorted(missing))} is loaded and not listed")
    if len({h.name for h in scenario.hosts}) < len(scenario.hosts):
        raise ScenarioError("two hosts have one name")
    served = {m for h in scenario.hosts for m in h.models}
    for users in scenario.users:
        _ = users.habits
        if users.model not in served:
            raise ScenarioError(f"users of kind {users.kind} ask for {users.model!r}, which no host has")
