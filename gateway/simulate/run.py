"""One run: users, a router and engines on one virtual clock."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from engines.doubles import Job, Phase
from engines.doubles.asks import prompt_of
from gateway.simulate.clock import Clock
from gateway.simulate.doors import Direct, Door, Gateway
from gateway.simulate.engines import SimBackend, SimFleet, SimTarget
from gateway.simulate.measure import Outcome, Result, Row, measure
from gateway.simulate.routers import Router
from gateway.simulate.scenario import Scenario
from gateway.simulate.trace import Turn, User, users_of

RETRY_S = 10.0
"""A refused user tries the same again after so long."""

Progress = Callable[[float], None]
"""Told the share of the virtual time that is over."""


@dataclass(eq=False, slots=True)
class Exchange:
    """One request on its way."""

    user: User
    turn: Turn
    prompt: bytes  # as the engine reads it
    sent_at: float
    target: SimTarget | None = None
    job: Job | None = None
    started_at: float | None = None  # sent to the engine
    began: bool = False
    over: bool = False
    expected_cached: int | None = None
    expected_ttft_s: float | None = None


class Simulation:
    """`run` once. Everything is drawn from the seed: the same one gives the same result, to the last bit."""

    def __init__(self, scenario: Scenario, router: Router, seed: int) -> None:
        self.scenario, self.router, self.seed = scenario, router, seed
        self.clock = Clock()
        self.fleet = SimFleet(scenario, truth=router.truth)
        self.rng = random.Random(f"{scenario.name} {seed} router")
        self.rows: list[Row] = []
        self.open: dict[Exchange, None] = {}
        self._of_job: dict[Job, Exchange] = {}
        self.ends_at = scenario.minutes * 60
        self.door: Door = self._door()

    def _door(self) -> Door:
        if self.router.direct is not None:
            return Direct(self.fleet, self.router.direct(self.rng), self.start, self.refused)
        assert self.router.policy is not None
        policy = self.router.policy(self.fleet)
        weights = self.scenario.weights
        return Gateway(self.fleet, policy, self.clock, self.rng, weights, self.start, self.refused)

    def run(self, progress: Progress | None = None) -> Result:
        for user in users_of(self.scenario, self.seed):
            self._later(user.starts_s, user)
        for backend in self.fleet.backends:
            backend.poll(0.0)
            self._poll_later(backend)
        if progress is not None:
            self._tell(progress)
        while (self.clock.now < self.ends_at or self.open) and self._step():
            pass
        loads = sum(b.loads for b in self.fleet.backends)
        return measure(
            self.scenario.name, self.router.name, self.seed, self.rows, loads, self.scenario.weights
        )

    # -- time --------------------------------------------------------------------------------------

    def _step(self) -> bool:
        """Go to the next thing that is due. False: there is none."""
        due = [b.machine.next_at for b in self.fleet.backends]
        nexts = [at for at in (self.clock.next_at, *due) if at is not None]
        if not nexts:
            return False
        self.clock.now = max(self.clock.now, min(nexts))
        for backend, at in zip(self.fleet.backends, due, strict=True):
            if at is not None and at <= self.clock.now:
                backend.machine.advance(self.clock.now)
        self.clock.run_due()
        while any(self._settle(b) for b in self.fleet.backends):
            pass
        return True

    def _settle(self, backend: SimBackend) -> bool:
        """Tell of what happened to this machine's jobs. True: something may have happened meanwhile."""
        changed = backend.machine.changed
        told = [job for job in changed if job.ended or job.tokens == 1]
        changed.clear()
        for job in told:
            exchange = self._of_job.get(job)
            if exchange is not None and job.tokens and not exchange.began:
                exchange.began = True
                self.door.began(exchange)
            if exchange is not None and job.ended:
                del self._of_job[job]
                self._ended(exchange, job)
        return bool(told)

    def _tell(self, progress: Progress) -> None:
        progress(min(1.0, self.clock.now / self.ends_at))
        if self.clock.now < self.ends_at:
            self.clock.after(10.0, lambda: self._tell(progress))

    def _poll_later(self, backend: SimBackend) -> None:
        def poll() -> None:
            backend.poll(self.clock.now)
            self.door.polled()
            self._poll_later(backend)

        self.clock.after(backend.shown.poll_s * self.rng.uniform(0.9, 1.1), poll)

    # -- users -------------------------------------------------------------------------------------

    def _later(self, seconds: float, user: User, turn: Turn | None = None) -> None:
        self.clock.after(seconds, lambda: self._send(user, turn))

    def _send(self, user: User, turn: Turn | None) -> None:
        if self.clock.now >= self.ends_at:
            return
        turn = next(user.turns) if turn is None else turn
        exchange = Exchange(user, turn, prompt_of(msgspec.json.decode(turn.body)), self.clock.now)
        self.open[exchange] = None
        self.clock.after(self.scenario.patience_s, lambda: self._impatient(exchange))
        self.door.send(exchange)

    def _impatient(self, exchange: Exchange) -> None:
        if exchange.over or (exchange.job is not None and exchange.job.first_at is not None):
            return
        self._close(exchange, Outcome.GAVE_UP)
        self.door.gone(exchange)
        if exchange.job is not None and exchange.target is not None:
            self._of_job.pop(exchange.job, None)
            exchange.target.backend.machine.leave(self.clock.now, exchange.job)
        self._later(exchange.turn.pause_s, exchange.user)

    # -- what doors and engines tell ---------------------------------------------------------------

    def start(self, exchange: Exchange, target: SimTarget) -> None:
        """Send it to an engine. Raises Full."""
        turn, now = exchange.turn, self.clock.now
        job = target.backend.machine.arrive(
            now, turn.model, exchange.prompt, turn.answer_tokens, answer=turn.answer
        )
        exchange.target, exchange.job, exchange.started_at = target, job, now
        self._of_job[job] = exchange

    def refused(self, exchange: Exchange) -> None:
        self._close(exchange, Outcome.REFUSED)
        self._later(RETRY_S, exchange.user, exchange.turn)

    def _ended(self, exchange: Exchange, job: Job) -> None:
        assert job.phase is Phase.DONE, "nothing crashes here, and nobody leaves after the first token"
        self._close(exchange, Outcome.DONE)
        self.door.ended(exchange)
        self._later(exchange.turn.pause_s, exchange.user)

    def _close(self, exchange: Exchange, outcome: Outcome) -> None:
        exchange.over = True
        del self.open[exchange]
        self.rows.append(row_of(exchange, outcome))


def row_of(exchange: Exchange, outcome: Outcome) -> Row:
    job, turn = exchange.job, exchange.turn
    if job is None or outcome is not Outcome.DONE:
        return Row(turn.kind, turn.key, outcome, exchange.sent_at)
    first_at = job.first_at if job.first_at is not None else job.prefill_end
    assert job.admitted_at is not None
    assert exchange.started_at is not None
    return Row(
        turn.kind,
        turn.key,
        outcome,
        exchange.sent_at,
        wait_s=job.admitted_at - exchange.sent_at,
        ttft_s=first_at - exchange.sent_at,
        prompt_tokens=job.prompt_tokens,
        cached_tokens=job.cached_tokens,
        out_tokens=job.tokens,
        expected_cached=exchange.expected_cached,
        expected_ttft_s=exchange.expected_ttft_s,
        granted_ttft_s=first_at - exchange.started_at,
    )
