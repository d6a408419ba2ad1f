"""Two ways to the engines: through the gateway's core, and straight."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

from engines.doubles import Full, Job
from engines.doubles.jobs import tokens_of
from gateway.fleet.stats import Sample
from gateway.proxy.ask import understand
from gateway.routing.lease import Ask, Lease, Turned
from gateway.routing.links import Chain
from gateway.routing.policy import Policy
from gateway.routing.prefix import BYTES_PER_TOKEN, Match, PrefixIndex
from gateway.routing.prompt import chain_of
from gateway.routing.scheduler import Scheduler
from gateway.routing.ticket import Ticket
from gateway.simulate.clock import Clock
from gateway.simulate.engines import SimFleet, SimTarget
from gateway.simulate.oracle import TrueCache
from gateway.simulate.routers import Choose

if TYPE_CHECKING:
    from gateway.simulate.run import Exchange

CHAT = "/v1/chat/completions"

Start = Callable[["Exchange", SimTarget], None]
Refused = Callable[["Exchange"], None]


class Door(Protocol):
    def send(self, exchange: Exchange) -> None: ...
    def gone(self, exchange: Exchange) -> None:
        """Its client left before the first token."""

    def began(self, exchange: Exchange) -> None:
        """Its first token is there."""

    def ended(self, exchange: Exchange) -> None: ...
    def polled(self) -> None: ...


class Direct:
    """No gateway: a choice, and the engine's own queue."""

    def __init__(self, fleet: SimFleet, choose: Choose, start: Start, refused: Refused) -> None:
        self._fleet, self._choose, self._start, self._refused = fleet, choose, start, refused

    def send(self, exchange: Exchange) -> None:
        turn = exchange.turn
        try:
            self._start(exchange, self._choose(turn, self._fleet.targets_of(turn.model)))
        except Full:
            self._refused(exchange)

    def gone(self, exchange: Exchange) -> None:
        pass

    def began(self, exchange: Exchange) -> None:
        pass

    def ended(self, exchange: Exchange) -> None:
        pass

    def polled(self) -> None:
        pass


@dataclass(slots=True)
class _Way:
    """What the gateway holds of one request."""

    chain: Chain
    matches: dict[str, Match]
    ticket: Ticket[SimTarget] | None = None  # while it waits
    lease: Lease[SimTarget] | None = None
    generation: int = 0  # of its target's cache, when it was sent


class Gateway:
    """What a request meets in the gateway, without sockets: reading it, the index, the scheduler."""

    def __init__(
        self,
        fleet: SimFleet,
        policy: Policy,
        clock: Clock,
        rng: random.Random,
        weights: Mapping[str, int],
        start: Start,
        refused: Refused,
    ) -> None:
        self._clock, self._fleet, self._weights = clock, fleet, weights
        self._start, self._refused = start, refused
        self._truth = any(b.truth for b in fleet.backends)
        self._index = PrefixIndex()
        self._ways: dict[Exchange, _Way] = {}
        self.scheduler: Scheduler[SimTarget] = Scheduler(
            fleet, policy, clock, seed=partial(rng.getrandbits, 32)
        )

    # -- a request's way ---------------------------------------------------------------------------

    def send(self, exchange: Exchange) -> None:
        turn = exchange.turn
        read = understand(turn.body)
        chain = chain_of(CHAT, read.fields, read.model)
        targets = self._fleet.targets_of(turn.model)
        matches = self._index.lookup(chain, {t.key: t.generation for t in targets})
        way = self._ways[exchange] = _Way(chain, matches)
        matched: Mapping[int, int] = {
            t.id: way.matches[t.key].bytes // BYTES_PER_TOKEN for t in targets if t.key in way.matches
        }
        tokens = read.prompt_tokens
        if self._truth:
            matched, tokens = TrueCache(targets, exchange.prompt), tokens_of(exchange.prompt)
        weight = self._weights.get(turn.key, 1)
        self._enter(exchange, way, Ask(turn.key, read.model, tokens, weight, matched=matched))

    def _enter(self, exchange: Exchange, way: _Way, ask: Ask) -> None:
        try:
            way.ticket = ticket = self.scheduler.enter(ask)
        except Turned:
            self._refuse(exchange)
            return
        if ticket.lease is None and ticket.error is None:
            ticket.on_settled = lambda: self._clock.after(0.0, lambda: self._settled(exchange, way))
        else:
            self._settled(exchange, way)

    def _settled(self, exchange: Exchange, way: _Way) -> None:
        ticket, way.ticket = way.ticket, None
        if ticket is None:
            return  # its client left meanwhile, and gave the place back
        if ticket.lease is None:
            self._refuse(exchange)
            return
        way.lease = lease = ticket.lease
        ask = ticket.ask
        exchange.expected_cached = min(ask.matched.get(lease.target.id, 0), ask.prompt_tokens)
        exchange.expected_ttft_s = lease.decision.ttft_s
        way.generation = lease.target.generation
        try:
            self._start(exchange, lease.target)
        except Full:
            # Back-pressure: another engine, else the user is told. It has had its turn.
            way.lease = None
            lease.release()
            self._enter(exchange, way, replace(ask, exclude=ask.exclude | {lease.target.id}, retry=True))

    def _refuse(self, exchange: Exchange) -> None:
        del self._ways[exchange]
        self._refused(exchange)

    def gone(self, exchange: Exchange) -> None:
        way = self._ways.pop(exchange)
        if way.ticket is not None:
            self.scheduler.leave(way.ticket)
        if way.lease is not None:
            way.lease.release()

    def polled(self) -> None:
        self.scheduler.kick()

    # -- feedback ----------------------------------------------------------------------------------

    def began(self, exchange: Exchange) -> None:
        """Its prompt is computed. A cache that all requests share holds it as of now; see `_record`."""
        way = self._ways[exchange]
        if way.lease is not None:
            way.lease.first_token()
        if exchange.target is not None and exchange.target.backend.shared_cache:
            self._record(exchange, way, exchange.target)

    def ended(self, exchange: Exchange) -> None:
        job, target, way = exchange.job, exchange.target, self._ways.pop(exchange)
        assert job is not None
        assert target is not None
        assert way.lease is not None
        target.stats.learn(sample_of(job, target, cold=way.lease.cold))
        target.replied_at = self._clock.now
        if not target.backend.shared_cache:
            self._record(exchange, way, target)
        way.lease.release()

    def _record(self, exchange: Exchange, way: _Way, target: SimTarget) -> None:
        """What the reply tells of its prompt's cache, and that the engine holds the prompt."""
        job, now = exchange.job, self._clock.now
        assert job is not None
        cached = job.cached_tokens if target.backend.shown.cached else None
        match = way.matches.get(target.key)
        self._index.correct(target.key, way.generation, way.chain, match, cached, job.prompt_tokens, now)
        prompts = None if target.backend.shared_cache else target.view(now).capacity
        self._index.record(target.key, way.generation, way.chain, now, prompts)


def sample_of(job: Job, target: SimTarget, *, cold: bool) -> Sample:
    """What a reply of this engine tells, and the gateway's own times of it."""
    shown = target.backend.shown
    assert job.admitted_at is not None
    assert job.ended_at is not None
    first_at = job.prefill_end if job.first_at is None else job.first_at
    load_s = job.admitted_at - job.arrived_at if job.cold else 0.001
    return Sample(
        streamed=True,
        cold=cold,
        ttft_s=first_at - job.arrived_at,
        total_s=job.ended_at - job.arrived_at,
        prompt_tokens=job.prompt_tokens,
        cached_tokens=job.cached_tokens if shown.cached else None,
        load_s=load_s if shown.load_time else None,
        prefill_s=first_at - job.admitted_at if shown.times else None,
    )
