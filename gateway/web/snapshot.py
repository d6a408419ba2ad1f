"""What the pages show, as it is at one moment.

`take` runs on the loop, in one step: it picks up values that never change (or copies those that do) and works
nothing out. All that can wait, sums and sentences and scores, is done from the snapshot in a thread.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from functools import partial
from itertools import islice
from typing import Any

from engines.plan import Plan
from gateway.accounts.days import Days
from gateway.accounts.keys import Key
from gateway.accounts.usage import History
from gateway.config import Config
from gateway.fleet.backend import Backend
from gateway.fleet.target import Target, TargetView
from gateway.proxy.done import Done
from gateway.runtime import Gateway

MOST_TARGETS = 400
MOST_LIVE = 200
"""Shown; how many there are is told besides."""
KEYS_A_STEP = 100


@dataclass(frozen=True, slots=True)
class TargetShot:
    backend: str
    model: str
    served: str  # the engine's name of it
    up: bool
    view: TargetView
    in_flight: int  # of ours
    waiting: int  # for the model, here
    prefill_s_per_token: float | None
    load_s: float | None
    service_s: float | None
    error_s: float | None


@dataclass(frozen=True, slots=True)
class BackendShot:
    url: str
    kind: str  # of the config
    searched: bool
    up: bool
    error: str | None
    plan: Plan | None
    models: int
    round_age_s: float | None  # of the last full round
    load_age_s: float | None  # of the newest reading of running or waiting
    in_flight: int
    targets: tuple[TargetShot, ...]


@dataclass(frozen=True, slots=True)
class KeyShot:
    key: Key
    used_rpm: float | None  # None: it has no such limit
    held_tokens: int
    last_seen: float | None  # seconds since the epoch


@dataclass(frozen=True, slots=True)
class Snapshot:
    now: float  # by the loop's clock
    wall: float  # seconds since the epoch
    zone: tzinfo
    state: str
    config: Config
    config_file: str | None
    config_error: str | None
    needs_restart: tuple[str, ...]
    backends: tuple[BackendShot, ...]
    targets_left_out: int
    waiting: int
    waiting_by_key: Mapping[str, int]
    live: tuple[Done, ...]  # oldest first
    live_count: int
    recent: tuple[Done, ...]  # newest first
    history: History

    @property
    def days(self) -> Days:
        return Days(self.zone)

    @property
    def today(self) -> int:
        return self.days.day(self.wall)

    def at(self, loop_s: float) -> float:
        """A time of the loop's clock as seconds since the epoch."""
        return self.wall - (self.now - loop_s)


@dataclass(frozen=True, slots=True)
class UsageShot:
    """What the usage page needs, and no more."""

    wall: float
    zone: tzinfo
    history: History
    names: tuple[str, ...]  # of the keys there are now


def usage(gateway: Gateway) -> UsageShot:
    accounts = gateway.accounts
    names = tuple(key.name for key in accounts.keys)
    return UsageShot(accounts.wall(), accounts.days.zone, accounts.usage.history(), names)


def take(gateway: Gateway) -> Snapshot:
    now, accounts, live_config = gateway.now(), gateway.accounts, gateway.live_config
    backends, left_out = _backends(gateway, now)
    live = gateway.consumer.live
    return Snapshot(
        now=now,
        wall=accounts.wall(),
        zone=accounts.days.zone,
        state=gateway.state,
        config=gateway.config,
        config_file=None if live_config is None else str(live_config.path),
        config_error=None if live_config is None else live_config.error,
        needs_restart=gateway.needs_restart,
        backends=backends,
        targets_left_out=left_out,
        waiting=gateway.scheduler.waiting,
        waiting_by_key=gateway.scheduler.waiting_by_key(),
        live=tuple(copy.copy(done) for done in islice(live.values(), MOST_LIVE)),
        live_count=len(live),
        recent=tuple(reversed(gateway.recent)),
        history=accounts.usage.history(),
    )


Ask = Callable[[Callable[[Gateway], Any]], Any]
"""Has the loop take a look, and returns what it saw: `Desk.ask`."""


def keys(ask: Ask) -> list[KeyShot]:
    """For a thread. Asks for some keys at a time: their windows are worked out when somebody looks."""
    known: tuple[Key, ...] = ask(lambda gateway: tuple(gateway.accounts.keys))
    found: list[KeyShot] = []
    for first in range(0, len(known), KEYS_A_STEP):
        found += ask(partial(_keys, known[first : first + KEYS_A_STEP]))
    return found


def _keys(some: Sequence[Key], gateway: Gateway) -> list[KeyShot]:
    accounts = gateway.accounts
    quota, today, seen = accounts.quota, accounts.today, accounts.last_seen
    return [
        KeyShot(
            key,
            None if key.rpm is None else quota.windows.used(key.name),
            quota.held(today, key.name),
            seen.get(key.name),
        )
        for key in some
    ]


def _backends(gateway: Gateway, now: float) -> tuple[tuple[BackendShot, ...], int]:
    shots, room, left_out = [], MOST_TARGETS, 0
    for backend in gateway.fleet.backends:
        listed = [t for name, t in backend.targets.items() if name in backend.models]
        targets = tuple(_target(gateway, t, now) for t in listed[:room])
        room -= len(targets)
        left_out += len(listed) - len(targets)
        shots.append(_backend(gateway, backend, targets, now))
    return tuple(shots), left_out


def _backend(gateway: Gateway, backend: Backend, targets: tuple[TargetShot, ...], now: float) -> BackendShot:
    view = backend.view
    read = [t.view.load_at for t in targets if t.view.load_at is not None]
    return BackendShot(
        url=backend.url,
        kind=backend.config.kind,
        searched=backend.searched,
        up=backend.up,
        error=backend.error,
        plan=None if view is None else view.plan,
        models=len(backend.models),
        round_age_s=None if view is None else now - view.at,
        load_age_s=now - max(read) if read else None,
        in_flight=gateway.scheduler.in_flight_at(backend.url),
        targets=targets,
    )


def _target(gateway: Gateway, target: Target, now: float) -> TargetShot:
    stats, scheduler = target.stats, gateway.scheduler
    return TargetShot(
        target.backend.url, target.model, target.served, target.up, target.view(now),
        scheduler.in_flight(target), scheduler.waiting_for(target.model),
        stats.prefill_s_per_token, stats.load_s, stats.service_s, stats.error_s,
    )  # fmt: skip
