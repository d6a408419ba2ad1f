"""The routers that are compared.

`cost` and `least_load` are the gateway's own policies, in its own scheduler. `round-robin`, `random` and
`sticky` are what people put in front of engines otherwise: no queue of their own, no memory guard; each
request goes straight to an engine that has the model and queues there.
"""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gateway.routing.policy import POLICIES, Policy
from gateway.simulate.engines import SimFleet, SimTarget
from gateway.simulate.oracle import Oracle
from gateway.simulate.trace import Turn

Choose = Callable[[Turn, Sequence[SimTarget]], SimTarget]


@dataclass(frozen=True, slots=True)
class Router:
    """Either a policy of the scheduler or a choice without one. `truth`: it sees the machines themselves."""

    name: str
    policy: Callable[[SimFleet], Policy] | None = None
    direct: Callable[[random.Random], Choose] | None = None
    truth: bool = False


def _round_robin(_rng: random.Random) -> Choose:
    turns: dict[str, itertools.count[int]] = {}

    def choose(turn: Turn, targets: Sequence[SimTarget]) -> SimTarget:
        return targets[next(turns.setdefault(turn.model, itertools.count())) % len(targets)]

    return choose


def _random(rng: random.Random) -> Choose:
    return lambda _turn, targets: rng.choice(targets)


def _sticky(_rng: random.Random) -> Choose:
    """A conversation stays where it began: rendezvous hashing of its name."""

    def choose(turn: Turn, targets: Sequence[SimTarget]) -> SimTarget:
        return max(targets, key=lambda t: hashlib.blake2b(f"{turn.session} {t.key}".encode()).digest())

    return choose


def _own(name: str) -> Router:
    return Router(name, policy=lambda _fleet: POLICIES[name])


ROUTERS = {
    router.name: router
    for router in (
        _own("cost"),
        _own("least_load"),
        Router("round-robin", direct=_round_robin),
        Router("random", direct=_random),
        Router("sticky", direct=_sticky),
        Router("oracle", policy=Oracle, truth=True),
    )
}
