"""All backends together, and the targets they make: each model on each backend that serves it."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

from gateway.config import BackendConfig
from gateway.fleet.backend import Backend
from gateway.fleet.rounds import Decision, stage_of
from gateway.fleet.target import Target

log = logging.getLogger("pharos.fleet")

REMEMBERED = 32
"""Backends taken out whose state is kept: a container that restarts leaves the list for a moment."""


class Changes(NamedTuple):
    """What a new set of backends means for the running one."""

    added: tuple[Backend, ...]
    removed: tuple[Backend, ...]  # no new requests; those in flight end as they would
    changed: tuple[Backend, ...]  # same address, other settings


class Fleet:
    def __init__(self, backends: Sequence[Backend] = ()) -> None:
        self.backends: tuple[Backend, ...] = ()
        self.on_change: list[Callable[[], None]] = []  # called after each round, loss, return and new set
        self.on_decision: list[Callable[[Decision], None]] = []  # told which way background rounds went
        self._removed: OrderedDict[str, Backend] = OrderedDict()
        self._targets: dict[str, tuple[Target, ...]] = {}  # a model -> its targets, since the last change
        self._use(backends)

    def set_backends(self, configs: Iterable[BackendConfig]) -> Changes:
        """Those whose settings are the same keep all that is known of them."""
        now_here = {b.url: b for b in self.backends}
        wanted = [(c.url.rstrip("/"), c) for c in configs]
        added, changed, used = [], [], []
        for url, config in wanted:
            backend = now_here.pop(url, None)
            if backend is None:
                backend = self._removed.pop(url, None) or Backend(config)
                backend.error = None if backend.view is None else "it has not been asked since it was added"
                added.append(backend)
            elif backend.config != config:
                changed.append(backend)
            if backend.config != config:
                backend.reconfigured(config)
            used.append(backend)
        for url, backend in now_here.items():
            backend.changed, backend.decided = lambda: None, lambda _: None
            self._removed[url] = backend
            if len(self._removed) > REMEMBERED:
                self._removed.popitem(last=False)
        self._use(used)
        self._changed()
        return Changes(tuple(added), tuple(now_here.values()), tuple(changed))

    def _use(self, backends: Sequence[Backend]) -> None:
        self.backends = tuple(backends)
        for backend in backends:
            backend.changed, backend.decided = self._changed, partial(self._decided, backend)

    def _decided(self, backend: Backend, decision: Decision) -> None:
        log.debug("backend %s: %s=%s", backend.url, stage_of(decision), decision)
        for tell in self.on_decision:
            tell(decision)

    def _changed(self) -> None:
        self._targets.clear()
        for tell in self.on_change:
            tell()

    def targets_of(self, model: str) -> tuple[Target, ...]:
        """Where the model can be asked for now."""
        found = self._targets.get(model)
        if found is None:
            found = tuple(t for b in self.backends if (t := b.targets.get(model)) is not None and t.up)
            if found:  # a name that nobody lists is not kept: clients may ask for any
                self._targets[model] = found
        return found

    def models(self) -> dict[str, tuple[Target, ...]]:
        """What can be asked for now: each model with its targets."""
        names = dict.fromkeys(name for b in self.backends if b.up for name in b.models)
        return {name: self.targets_of(name) for name in names}

    def lists(self, model: str) -> bool:
        """Does any backend list the model, up or not, as far as is known?"""
        return any(model in b.models for b in self.backends)
