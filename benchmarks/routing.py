"""What choosing costs: one pick of 64 mixed targets, a request's way in, a place freed while 1,000 wait.

Processor time: all of it is computing, and on a busy machine the clock would tell of the others.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from benchmarks.report import Figure, figure
from engines.plan import Plan
from engines.recipes.base import Recipe
from engines.signals import LOAD_SIGNALS, WHOLE_BACKEND, Load, ModelInfo, Residency, Signal, Snapshot
from gateway.config import BackendConfig
from gateway.fleet.backend import Backend
from gateway.fleet.fleet import Fleet
from gateway.routing.lease import Ask
from gateway.routing.policy import DEFAULTS, POLICIES, Candidate, Route
from gateway.routing.scheduler import Scheduler

TARGETS = 64
WAITERS = 1000
KEYS = 20
ROUNDS = 3000
PICK_BUDGET_US = 100.0
PLAN = Plan(Recipe("openai", "bench", ()), "1", (), {})


def mixed_candidates(chance: random.Random) -> list[Candidate]:
    """Cold, loading, full and unmeasured ones among the rest, as a large fleet has them."""

    def known(value: float) -> float | None:
        return None if chance.random() < 0.2 else value

    return [
        Candidate(
            target=n,
            name=f"http://10.0.0.{n}:8000",
            warm=chance.choice([True, True, False, None]),
            loading=chance.random() < 0.1,
            capacity=(capacity := chance.choice([1, 2, 4, 16])),
            free=chance.randint(-1, capacity),
            queue_ahead=chance.randint(0, 20),
            kv_usage=known(chance.random()),
            matched_tokens=chance.choice([0, 0, 500, 3000]),
            prefill_s_per_token=known(chance.uniform(0.0002, 0.01)),
            load_s=known(chance.uniform(1, 20)),
            service_s=known(chance.uniform(0.5, 20)),
            fits=chance.choice([True, True, False, None]),
        )
        for n in range(TARGETS)
    ]


def backend(n: int, models: dict[str, Residency | None], load: Load, capacity: int | None) -> Backend:
    """As a round at clock 0 leaves it."""
    seen = Snapshot(
        models={model: ModelInfo(state=state) for model, state in models.items()},
        load={WHOLE_BACKEND: load},
        source=dict.fromkeys([Signal.MODELS, Signal.RESIDENCY, *LOAD_SIGNALS], "bench"),
    )
    made = Backend(BackendConfig(url=f"http://10.0.0.{n}:8000", capacity=capacity))
    made.resolved(PLAN, seen, 0.0)
    for target in made.targets.values():
        target.stats.prefill_s_per_token, target.stats.load_s = 0.001, 4.0
        target.stats.service_s = 0.5 + n % 20
    return made


def mixed_fleet(chance: random.Random) -> Fleet:
    """One model everywhere: loaded, cold, loading or of unknown residency, some with requests of others."""
    states = [Residency.LOADED, Residency.LOADED, Residency.COLD, Residency.LOADING, None]
    return Fleet(
        [
            backend(
                n,
                {"m": chance.choice(states)},
                Load(running=chance.choice([None, 0, 1]), kv_usage=chance.choice([None, chance.random()])),
                chance.choice([None, 2, 4]),
            )
            for n in range(TARGETS)
        ]
    )


def measure() -> list[Figure]:
    return [*picks(), *entries(), *queues()]


def picks() -> list[Figure]:
    """The policy alone. A candidate list of its own for each pick, so that no branch is learned by heart."""
    chance = random.Random(1)
    lists = [mixed_candidates(chance) for _ in range(100)]
    note = f"{TARGETS} candidates: cold, loading, full, unmeasured, matched; budget {PICK_BUDGET_US:g} us p99"
    return [
        figure(
            f"pick, {name}",
            "us",
            [
                _timed_us(lambda p=policy, n=n: p(Route(4000, n), lists[n % 100], DEFAULTS))  # type: ignore[misc]
                for n in range(ROUNDS)
            ],
            note=note,
        )
        for name, policy in POLICIES.items()
    ]


def entries() -> list[Figure]:
    """A request that finds a place at once: candidates built, one picked, the place taken."""
    chance = random.Random(2)
    fleet = mixed_fleet(chance)
    ids = [target.id for target in fleet.targets_of("m")]
    figures = []
    for name, policy in POLICIES.items():
        scheduler = Scheduler(fleet, policy, lambda: 1.0, seed=lambda: chance.getrandbits(32))
        took = []
        for n in range(ROUNDS):
            matched = dict.fromkeys(chance.sample(ids, 4), 3000)
            ask = Ask(f"key {n % KEYS}", "m", 4000, matched=matched)
            began = time.thread_time()
            ticket = scheduler.enter(ask)
            took.append((time.thread_time() - began) * 1e6)
            assert ticket.lease is not None
            ticket.lease.first_token()
            ticket.lease.release()
        figures.append(
            figure(f"enter, {name}", "us", took, note=f"{TARGETS} targets, four of them with a match")
        )
    return figures


def queues() -> list[Figure]:
    """1,000 wait, of 20 keys and 8 models with all lengths of prompts and matches anywhere.

    Each of 32 backends has two of the models: one loaded, one cold that would push the first out.
    """
    chance = random.Random(3)
    models = [f"model {n}" for n in range(8)]
    loaded, cold = Residency.LOADED, Residency.COLD
    fleet = Fleet(
        [
            backend(n, {models[2 * n % 8]: loaded, models[(2 * n + 1) % 8]: cold}, Load(), 4)
            for n in range(TARGETS // 2)
        ]
    )
    ids = [target.id for model in models for target in fleet.targets_of(model)]
    scheduler = Scheduler(
        fleet, POLICIES["cost"], lambda: 1.0, queue_limit=2 * WAITERS, seed=lambda: chance.getrandbits(32)
    )

    def ask() -> Ask:
        tokens, key = chance.randint(10, 30_000), chance.randrange(KEYS)
        matched = {chance.choice(ids): chance.randint(0, tokens) for _ in range(3)}
        return Ask(f"key {key}", chance.choice(models), tokens, weight=1 + key % 3, matched=matched)

    tickets = [scheduler.enter(ask()) for _ in range(WAITERS)]
    while scheduler.waiting < WAITERS:
        tickets.append(scheduler.enter(ask()))
    releases, comings = [], []
    for _ in range(ROUNDS // 3):
        running = [t for t in tickets if t.lease is not None]
        for ticket in running:
            assert ticket.lease is not None
            ticket.lease.first_token()  # else, as the clock stands still, all compute prompts for ever
        ended = chance.choice(running)
        assert ended.lease is not None
        releases.append(_timed_us(ended.lease.release) / 1000)
        tickets.remove(ended)
        while scheduler.waiting < WAITERS:
            coming, took = ask(), time.thread_time()
            tickets.append(scheduler.enter(coming))
            comings.append((time.thread_time() - took) * 1000)
    note = f"{WAITERS} waiting of {KEYS} keys and 8 models, two a backend; budget of a grant 1 ms"
    return [
        figure("grant after a release", "ms", releases, note=note),
        figure("enter, behind those", "ms", comings, note=note),
    ]


def _timed_us(work: Callable[[], object]) -> float:
    began = time.thread_time()
    work()
    return (time.thread_time() - began) * 1e6
