"""What a recipe is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from engines.probes import Guard, Path, Probe
from engines.signals import Snapshot

Kind = str
"""An engine kind by the name it has in the config. Each recipe brings its own."""


@dataclass(frozen=True, slots=True)
class Findings:
    """What a doctor's visit found out about one backend; what a recipe's `advice` speaks about."""

    snapshot: Snapshot
    dropped: Mapping[str, str]  # probe -> why it is not in the plan
    routes: Mapping[str, bool | None]
    bodies: Mapping[str, bytes]  # path -> the 200 body it answered, for hints that are no signal


@dataclass(frozen=True, slots=True)
class SleepCheck:
    """How to tell, without waking it, that an engine has unloaded its model by itself."""

    path: Path
    asleep: Callable[[bytes], bool]


class PromptCache(StrEnum):
    """Whose the cache of computed prompts is. It decides from when on another request can profit of one."""

    SLOT = "slot"  # of the place that computed it: once that request has ended
    SHARED = "shared"  # of all requests: from the first token on, while it still runs


@dataclass(frozen=True, slots=True)
class Recipe:
    """The probes trusted on one engine kind, and its quirks as data.

    `probes` in order of trust: of two that read the same signal the first that answers wins.
    `fingerprint` names the probes that must all read a value for `kind: auto` to settle on this kind.
    """

    kind: Kind
    title: str
    probes: tuple[Probe, ...]
    fingerprint: tuple[Probe, ...] = ()
    asked_before: frozenset[Kind] = frozenset()  # kinds whose fingerprint this engine imitates, or nearly
    generic: bool = False  # what an engine is called that no other recipe knows
    ports: tuple[int, ...] = ()  # where it listens unless told otherwise
    server_header: str | None = None  # a `Server:` value that only this engine sends, also while loading
    sleep: SleepCheck | None = None
    record_paths: tuple[Path, ...] = ()  # further harmless paths worth a line in a recording
    load_interval_s: float = 1.0  # between rounds of load probes
    untrue_usage: frozenset[str] = frozenset()  # paths in replies that hold a guess, see usage.read_usage
    closes_after_stream: bool = False  # closes a connection that carried a stream, whatever its headers say
    prompt_cache: PromptCache = PromptCache.SLOT  # the careful choice where it is not known
    only_slots: Guard = lambda _version: False  # versions that keep one prompt a slot, and no others
    native_api: bool = False  # serves Ollama's own /api routes, and takes `name` for `name:latest`
    advice: Callable[[Findings], list[str]] = (
        lambda _findings: []
    )  # what will surprise a new user, and the mend

    def __post_init__(self) -> None:
        names = [p.name for p in self.probes]
        if len(set(names)) != len(names):
            raise ValueError(f"{self.kind}: two probes have one name")

    def prompts_kept(self, version: str | None, capacity: int | None) -> int | None:
        """How many prompts the engine keeps, or None: not known, or more than are worth counting."""
        return capacity if version is not None and self.only_slots(version) else None
