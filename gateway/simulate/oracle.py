"""A router that knows what no router can: what each machine has cached, computes, and has yet to do.

It gives every request the place where, as the machines stand, its first token comes soonest. It does not
know who will ask next, so it is a measure for what better knowledge could bring, and no proof of a limit: a
router that happens to keep the right place free can beat it. Of those that wait it counts half as being ahead
of the one it looks at, as if that stood in the middle of them: of none, half and all, half was best.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from engines.doubles import Job, Machine, Phase
from engines.doubles.jobs import Resident
from engines.signals import Residency
from gateway.routing.policy import Candidate, Decision, Defaults, Route
from gateway.simulate.engines import SimFleet, SimTarget


class TrueCache(Mapping[int, int]):
    """Target id -> tokens of one prompt in its cache, as of the moment it is asked."""

    def __init__(self, targets: Sequence[SimTarget], prompt: bytes) -> None:
        self._targets, self._prompt = {t.id: t for t in targets}, prompt

    def __getitem__(self, target: int) -> int:
        found = self._targets[target]
        return found.backend.machine.matched_tokens(found.model, self._prompt)

    def __iter__(self) -> Iterator[int]:
        return iter(self._targets)

    def __len__(self) -> int:
        return len(self._targets)


class Oracle:
    """A policy for a fleet whose machines it sees."""

    def __init__(self, fleet: SimFleet) -> None:
        self._targets = {t.id: t for t in fleet.targets}

    def __call__(self, route: Route, candidates: Sequence[Candidate], _defaults: Defaults) -> Decision | None:
        open_ = [at for at, c in enumerate(candidates) if c.feasible]
        if not open_:
            return None
        times = {at: self._first_token_s(route, candidates[at]) for at in open_}
        best = min(open_, key=lambda at: (times[at], candidates[at].utilization, at))
        places = range(len(candidates))
        return Decision(
            best, candidates, lambda: [(0.0, 0.0, times[at], 0.0) if at in times else None for at in places]
        )

    def _first_token_s(self, route: Route, c: Candidate) -> float:
        target = self._targets[c.target]
        machine = target.backend.machine
        start_s = start_of(machine, target.model, c.queue_ahead // 2 if c.free <= 0 else 0)
        uncached = max(1, route.prompt_tokens - c.matched_tokens)
        resident = machine.residents.get(target.model)
        computing_s = max(0.0, resident.computing_until - machine.now) if resident else 0.0
        return max(start_s, computing_s) + uncached * machine.physics.prefill_s_per_token


def start_of(machine: Machine, model: str, ahead: int) -> float:
    """Seconds until the machine would begin with a request that came now, behind `ahead` others."""
    physics, now = machine.physics, machine.now
    resident = machine.residents.get(model)
    if resident is None:
        others = [r.ready_at - now for r in machine.residents.values() if r.state is Residency.LOADING]
        return max(others, default=0.0) + physics.unload_s + physics.load_s
    if resident.state is Residency.LOADING:
        return max(0.0, resident.ready_at - now)
    ahead += machine.waiting(model)
    free = sum(s.job is None for s in resident.slots)
    if free > ahead:
        return 0.0
    if not resident.running:  # its queue waits for another model's end
        return 0.0
    ends = sorted(left_s(machine, resident, job) for job in resident.running)
    rounds, at = divmod(ahead - free, len(ends))
    return ends[at] + rounds * sum(ends) / len(ends)


def left_s(machine: Machine, resident: Resident, job: Job) -> float:
    """Until a running job ends, if nobody else comes."""
    physics = machine.physics
    step = physics.decode_s_per_token * (1 + physics.decode_share * (len(resident.running) - 1))
    left = (job.out_tokens - job.tokens) * step
    if physics.prefill_stalls_decode:
        return left + max(0.0, resident.computing_until - machine.now)
    return left + (job.prefill_end - machine.now if job.phase is Phase.PREFILL else 0.0)
