"""Who is served next, and where. All on one loop: picking a target and taking a place on it is one step.

A request either gets a place at once, is turned away, or waits. Whatever can free a place calls `kick`, which
offers waiters their turn in fair order: a lease given back, a round of scrapes, a backend ejected or back.
Each offer asks the policy anew, so a waiter may land on another target than it first waited for.

How full a target is, is our own count of requests in flight. The engine's gauges only correct it upwards, and
only when they were read after our last reply there ended: they lag (vLLM's by a whole step), and until the
next reading they still hold the place that reply freed.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Generic

from gateway.routing.lease import Ask, Closed, Lease, NoneUp, NoSuchModel, QueueFull
from gateway.routing.memory import Room, patience_s
from gateway.routing.policy import DEFAULTS, Candidate, Defaults, Policy, Route
from gateway.routing.ports import Fleet, T, View
from gateway.routing.prefills import Prefills
from gateway.routing.queue import Answer, FairQueue
from gateway.routing.ticket import Sight, Ticket, Turns

UNKNOWN_CAPACITY = 2
"""In flight at a time where neither engine nor config tells: 1 would idle an engine between two requests,
more would queue inside one that runs them one by one, out of reach of fairness."""
GB = 2**30
"""As makers of graphics cards and Ollama's logs count."""
CLOSED = "Pharos is about to end: ask again in a moment"
KEPT_ROOMS = 256
"""Backend addresses remembered; containers may come back under ever new ones."""


def _seed() -> int:
    return random.getrandbits(32)


_SETTLED = (Answer.GRANTED, Answer.GONE)


class Scheduler(Generic[T]):
    def __init__(
        self,
        fleet: Fleet[T],
        policy: Policy,
        now: Callable[[], float],
        *,
        queue_limit: int = 1000,
        defaults: Defaults = DEFAULTS,
        seed: Callable[[], int] = _seed,
    ) -> None:
        self.fleet, self.policy, self.now = fleet, policy, now
        self.queue_limit, self.defaults, self.seed = queue_limit, defaults, seed
        self._queue: FairQueue[Ticket[T]] = FairQueue()
        self._waiting: Counter[str] = Counter()  # by model; no entry is 0
        self._rooms: dict[str, Room] = {}
        self._closed = False
        self._prefills = Prefills()
        self._busy: dict[int, T] = {}  # by id: those with requests in flight

    # What requests do

    async def acquire(self, ask: Ask) -> Lease[T]:
        """A place for this request; release it. Cancel at any moment: nothing stays behind.

        Raises NoSuchModel, NoneUp or QueueFull.
        """
        ticket = self.enter(ask)
        try:
            if ticket.lease is None and ticket.error is None:
                settled = asyncio.get_running_loop().create_future()
                ticket.on_settled = lambda: None if settled.done() else settled.set_result(None)
                await settled
        except BaseException:
            self.leave(ticket)
            raise
        if ticket.error is not None:
            raise ticket.error
        assert ticket.lease is not None
        return ticket.lease

    def enter(self, ask: Ask) -> Ticket[T]:
        """`acquire` without the wait: the ticket says, now or later, what became of the request."""
        if not self._targets(ask):
            raise self._unserved(ask)
        ticket: Ticket[T] = Ticket(ask, self.now())
        first = not self._waiting[ask.model]
        if first and self._offer(ticket, Turns(ticket.since)) in _SETTLED:
            return ticket
        full = len(self._queue) >= self.queue_limit and not ask.retry
        asked = first or self._queue.has(
            ticket.group, ticket.kind
        )  # the same was refused: nothing has changed since
        if full and asked:
            raise self._full(ask.model)
        if self._closed:
            raise Closed(CLOSED)
        self._queue.push(ticket, ask.key, ask.weight, ticket.group, kind=ticket.kind, front=ask.retry)
        self._waiting[ask.model] += 1
        if not asked:
            self.kick()  # those of its model that wait may want another target than it does
        if full and ticket in self._queue and len(self._queue) > self.queue_limit:
            self.leave(ticket)
            raise self._full(ask.model)
        return ticket

    def leave(self, ticket: Ticket[T]) -> None:
        """The client is gone: out of the queue, or its place back if it was granted one meanwhile."""
        ticket.on_settled = None
        if self._queue.remove(ticket):
            self._left(ticket)
            self.kick()  # models may have been held back for its sake
        elif ticket.lease is not None:
            ticket.lease.release()

    def kick(self) -> None:
        """Something changed: serve whoever can be served. Costs by kinds and groups, not by waiters."""
        turns: Turns[T] = Turns(self.now())
        while self._serve(turns):
            pass
        for ticket in turns.settled:
            if ticket.on_settled is not None:
                ticket.on_settled()

    def close(self) -> None:
        """Whoever waits is turned away, now and from now on. Free places are still given."""
        self._closed = True
        for ticket in list(self._queue):
            self._queue.remove(ticket)
            self._left(ticket)
            ticket.error = Closed(CLOSED)
            if ticket.on_settled is not None:
                ticket.on_settled()

    # What others may know

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def waiting_for(self, model: str) -> int:
        return self._waiting[model]

    def waiting_by_key(self) -> dict[str, int]:
        """Key -> its waiting requests, next turn first."""
        return self._queue.by_key()

    def in_flight(self, target: T) -> int:
        room = self._rooms.get(target.backend.url)
        return 0 if room is None else room.in_flight.get(target.id, 0)

    def in_flight_at(self, url: str) -> int:
        """Ours at one backend, all its models together."""
        room = self._rooms.get(url)
        return 0 if room is None else sum(room.in_flight.values())

    def estimate_wait_s(self, model: str) -> float | None:
        """Seconds until a request that came now is sent and its model loaded. None: no backend is up."""
        targets, now = self.fleet.targets_of(model), self.now()
        if not targets:
            return None
        candidates = self._candidates(targets, now, self._waiting[model])
        decision = self.policy(Route(0, 0), candidates, self.defaults)
        if decision is not None:
            return decision.ttft_s
        return min(self._claim_s(t, now) + self._load_s(t) for t in targets)

    # The atomic step

    def _serve(self, turns: Turns[T]) -> bool:
        """Offer turns. True: those who were refused may find a place now.

        Why this ends: waiters and claims that are due only become fewer at one moment.
        """
        settled = len(turns.settled)
        turns.wanted.clear()
        self._queue.serve(partial(self._turn, turns=turns))
        if self._drop_claims(turns.wanted):
            turns.sights.clear()
            return True
        return len(turns.settled) > settled  # a load that one of them starts has places for others too

    def _turn(self, ticket: Ticket[T], turns: Turns[T]) -> Answer:
        answer = self._offer(ticket, turns)
        if answer in _SETTLED:
            self._left(ticket)
            turns.settled.append(ticket)
            turns.sights.clear()
        return answer

    def _offer(self, ticket: Ticket[T], turns: Turns[T]) -> Answer:
        """Pick and take, if there is a place. Unless refused, the ticket has its lease or error."""
        ask, now = ticket.ask, turns.now
        sight = turns.sights.get(ticket.kind)
        if sight is None:
            targets = self._targets(ask)
            if not targets:
                ticket.error = self._unserved(ask)
                return Answer.GONE
            ahead = self._waiting[ask.model] - (ticket in self._queue)
            sight = turns.sights[ticket.kind] = Sight(targets, self._candidates(targets, now, ahead))
        if not sight.place:
            if not any(c.feasible for c in sight.candidates):
                turns.wanted.add(self._claim(sight.targets, now))
            return Answer.FULL
        candidates = sight.matched(ask.matched)
        decision = self.policy(Route(ask.prompt_tokens, self.seed()), candidates, self.defaults)
        if decision is None or decision.wait:
            return Answer.REFUSED
        target, chosen = sight.targets[decision.at], candidates[decision.at]
        self._take(target, chosen, now)
        cold = chosen.warm is False
        ticket.lease = Lease(
            target, decision, now, now - ticket.since, cold, self._give_back, self._computed, not cold
        )
        if not cold:  # when a load will be over is known less well, and is no matter of prompts
            self._prefills.begin(target.id, now + decision.ttft_s)
        return Answer.GRANTED

    def _take(self, target: T, chosen: Candidate, now: float) -> None:
        room = self._room(target)
        room.take(target.id, target.model, load_s=self._load_s(target) if chosen.cold else None, now=now)
        self._busy[target.id] = target
        if len(room.in_flight) > 1:
            beside = [self._busy[i] for i in room.in_flight]
            if all(t.view(now).warm is True for t in beside):
                room.saw_loaded(room.in_flight)

    def _give_back(self, lease: Lease[T]) -> None:
        if lease.prefilling:  # it failed, or its reply was no stream
            lease.prefilling = False
            self._prefills.end(lease.target.id)
        room = self._room(lease.target)
        room.give(lease.target.id, self.now())
        if lease.target.id not in room.in_flight:
            del self._busy[lease.target.id]
        self.kick()

    def _computed(self, lease: Lease[T]) -> None:
        self._prefills.end(lease.target.id)
        if self._queue:
            self.kick()

    def _left(self, ticket: Ticket[T]) -> None:
        model = ticket.ask.model
        self._waiting[model] -= 1
        if not self._waiting[model]:
            del self._waiting[model]

    # What the policy is shown

    def _targets(self, ask: Ask) -> Sequence[T]:
        targets = self.fleet.targets_of(ask.model)
        return [t for t in targets if t.id not in ask.exclude] if ask.exclude else targets

    def _candidates(self, targets: Sequence[T], now: float, ahead: int) -> list[Candidate]:
        return [self._candidate(t, now, ahead) for t in targets]

    def _candidate(self, target: T, now: float, ahead: int) -> Candidate:
        room, view, stats = self._room(target), target.view(now), target.stats
        room.know_size(target.id, view.size_bytes if view.vram_bytes is None else view.vram_bytes)
        ours = room.in_flight.get(target.id, 0)
        running, waiting = _gauges(view, room.ended_at.get(target.id))
        capacity = UNKNOWN_CAPACITY if view.capacity is None else max(view.capacity, 1)
        free = capacity - (ours if running is None else max(ours, running))
        if room.held(target.id, now) or (view.capacity is None and waiting):
            free = 0
        warm = room.warm(target.id, view.warm, now)
        loading = view.loading or (warm is False and ours > 0)
        cold = warm is False and not loading
        fits = self._may_load(room, target, now) if cold else True
        return Candidate(
            target.id,
            target.backend.url,
            warm,
            loading,
            capacity,
            free,
            ahead + (waiting or 0),  # an unknown queue adds nothing to the one we know
            view.kv_usage,
            0,
            stats.prefill_s_per_token,
            stats.load_s,
            stats.service_s,
            fits,
            cold and room.displaces(target.id),
            self._prefills.left_s(target.id, now),
        )

    def _may_load(self, room: Room, target: T, now: float) -> bool:
        wanted = room.resident is not None and self._waiting[room.resident[1]] > 0
        return room.may_load(target.id, now, resident_wanted=wanted)

    # Waiting for memory

    def _claim(self, targets: Sequence[T], now: float) -> int:
        """None of these may be loaded: claim the room of one. The id of the target claimed for."""
        for target in targets:
            if target.id in self._room(target).claims:
                return target.id
        target = min(targets, key=lambda t: (sum(self._room(t).in_flight.values()), self._load_s(t)))
        room = self._room(target)
        here = [target, *(self._busy[i] for i in room.in_flight)]
        load_s = _longest((t.stats.load_s for t in here), self.defaults.load_s)
        service_s = _longest((t.stats.service_s for t in here), self.defaults.service_s)
        room.claim(target.id, target.model, patience_s(load_s, service_s), now)
        return target.id

    def _drop_claims(self, wanted: set[int]) -> bool:
        """Those that no waiter needs any more. True: there were some that held others back."""
        dropped = False
        for room in self._rooms.values():
            if room.claims:
                for target in room.claims.keys() - wanted:
                    del room.claims[target]
                    dropped = True
        return dropped

    def _claim_s(self, target: T, now: float) -> float:
        claim = self._room(target).claims.get(target.id)
        if claim is None:
            return patience_s(self._load_s(target), self._service_s(target))
        return max(claim.since + claim.patience_s - now, 0.0)

    def _room(self, target: T) -> Room:
        url = target.backend.url
        room = self._rooms.get(url)
        if room is None:
            if len(self._rooms) >= KEPT_ROOMS:
                self._rooms = {u: r for u, r in self._rooms.items() if not r.idle}
            room = self._rooms[url] = Room()
        memory_gb = target.backend.config.memory_gb
        room.memory_bytes = None if memory_gb is None else int(memory_gb * GB)
        return room

    def _load_s(self, target: T) -> float:
        return self.defaults.load_s if target.stats.load_s is None else target.stats.load_s

    def _service_s(self, target: T) -> float:
        return self.defaults.service_s if target.stats.service_s is None else target.stats.service_s

    # Turned away

    def _unserved(self, ask: Ask) -> NoneUp | NoSuchModel:
        if not self.fleet.lists(ask.model):
            return NoSuchModel(f"no backend lists the model {ask.model!r}")
        if ask.exclude:
            return NoneUp(f"no other backend that serves {ask.model!r} is up")
        return NoneUp(f"no backend that serves {ask.model!r} is up")

    def _full(self, model: str) -> QueueFull:
        estimate = self.estimate_wait_s(model)
        return QueueFull(
            f"{len(self._queue)} requests wait already: try again later",
            1.0 if estimate is None else estimate,
        )


def _longest(known: Iterable[float | None], default: float) -> float:
    """Of what is known: a model that was never loaded here is taken to be like the others."""
    return max((s for s in known if s is not None), default=default)


def _gauges(view: View, ended_at: float | None) -> tuple[int | None, int | None]:
    """The engine's running and waiting, unless a reply has ended since they were read."""
    if view.load_at is None or (ended_at is not None and view.load_at <= ended_at):
        return None, None
    return view.running, view.waiting
