"""The machine behind a double: slots, queue, prefix cache, models in memory, and how long things take.

How this works. Pure: no sockets, no tasks, no clock of its own. Whoever drives it says what time it is.
`arrive` and `leave` are what clients do; `advance(now)` lets everything happen that is due; `next_at` is
when the next thing is. So the same machine runs in real time behind a socket, faster, or in a simulation.
The rules:

- the same calls give the same times, to the last bit: nothing here is random;
- a slot is held by exactly one job, from its admission to `_release`, the only place that frees it;
- one load at a time, and no model with a running job is evicted;
- `changed` names the jobs that something happened to since it was last emptied.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from itertools import count

from engines.doubles.assumptions import MIN_SLOT_SIMILARITY, CacheKind, Physics
from engines.doubles.jobs import Job, Phase, Resident, Slot, common_tokens, tokens_of
from engines.signals import Residency


class Full(Exception):
    """The machine takes no more of these requests now."""


class Machine:
    """`loaded` models are in memory from the start. `sizes` in bytes, for models unlike `physics` says.
    `stride` tokens after the first one come in one step: for who wants times, not each token.

    Raises ValueError for a model larger than the memory.
    """

    def __init__(
        self,
        physics: Physics,
        models: Sequence[str],
        loaded: Sequence[str] = (),
        sizes: dict[str, int] | None = None,
        stride: int = 1,
    ) -> None:
        self.physics, self.stride = physics, stride
        self.models = tuple(models)
        self.sizes = dict(sizes or {})
        for model in self.models:
            if self.size_of(model) > physics.memory_bytes:
                raise ValueError(f"{model} can never be loaded: it is larger than the memory")
        self.residents: dict[str, Resident] = {}
        self.queue: list[Job] = []
        self.changed: dict[Job, None] = {}
        self.loads = 0  # since the start
        self.evictions = 0
        self.prompt_tokens = 0  # computed, of requests that ended
        self.cached_tokens = 0
        self.out_tokens = 0
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = count()
        for model in loaded:
            self.put(0.0, model)

    # -- what clients do -----------------------------------------------------------------------

    def arrive(
        self,
        now: float,
        model: str,
        prompt: bytes,
        out_tokens: int,
        *,
        answer: bytes = b"",
        streamed: bool = True,
    ) -> Job:
        """A request for `model`; `out_tokens` 0 for an embedding.

        Raises Full, and KeyError for a model that it does not have.
        """
        self.advance(now)
        if model not in self.models:
            raise KeyError(model)
        self._refuse_if_full(model)
        job = Job(model, prompt, answer, out_tokens, streamed, now)
        self.queue.append(job)
        self._admit(now)
        return job

    def _refuse_if_full(self, model: str) -> None:
        p = self.physics
        if p.max_outstanding is not None and self.running(model) + self.waiting(model) >= p.max_outstanding:
            raise Full(f"{p.max_outstanding} requests for {model} already")
        if p.max_waiting_for_load is not None and self.residency(model) is not Residency.LOADED:
            cold = sum(self.residency(j.model) is not Residency.LOADED for j in self.queue)
            if cold >= p.max_waiting_for_load:
                raise Full(f"{cold} requests wait for a load already")

    def leave(self, now: float, job: Job) -> None:
        """The job's client is gone. Harmless when the job has ended."""
        self.advance(now)
        if job.ended or job.left:
            return
        job.left = True
        if job.phase is Phase.WAITING:
            self._leave_queue(now, job)
        elif job.streamed or not self.physics.plain_outlives_client:
            self._release(now, job, Phase.DROPPED)
            self._admit(now)

    def _leave_queue(self, now: float, job: Job) -> None:
        resident = self.residents.get(job.model)
        if resident and resident.loader is job and self.physics.load_ends_with_client:
            del self.residents[job.model]
        elif self.physics.waiting_outlives_client:
            return
        self.queue.remove(job)
        self._end(now, job, Phase.DROPPED)
        self._admit(now)

    def load(self, now: float, model: str) -> None:
        """Bring a model into memory without a request, where there is room."""
        self.advance(now)
        if model not in self.residents:
            self._start_load(now, model, None)

    def put(self, now: float, model: str) -> None:
        """A model is in memory as of now, without the time of a load."""
        self.advance(now)
        self._loaded(self._new_resident(model, now), now)

    def unload(self, now: float, model: str) -> None:
        """As soon as it is idle."""
        self.advance(now)
        resident = self.residents.get(model)
        if resident is not None:
            resident.expires_at = now
            self._expire(now, resident)

    def crash(self, now: float) -> None:
        """Every job fails and nothing is in memory any more."""
        self.advance(now)
        for job in [j for r in self.residents.values() for j in r.running]:
            self._release(now, job, Phase.FAILED)
        for job in self.queue:
            self._end(now, job, Phase.FAILED)
        self.queue.clear()
        self.residents.clear()

    # -- what can be seen ----------------------------------------------------------------------

    def running(self, model: str | None = None) -> int:
        return sum(len(r.running) for r in self.residents.values() if model in (None, r.model))

    def waiting(self, model: str | None = None) -> int:
        return sum(model in (None, j.model) for j in self.queue)

    def residency(self, model: str) -> Residency:
        resident = self.residents.get(model)
        return Residency.COLD if resident is None else resident.state

    def size_of(self, model: str) -> int:
        return self.sizes.get(model, self.physics.model_bytes)

    def matched_tokens(self, model: str, prompt: bytes) -> int:
        """Of a prompt that came now, in the cache of the place it would get; 0 where it would get none."""
        resident = self.residents.get(model)
        free = [s for s in resident.slots if s.job is None] if resident else []
        return self._choose(prompt, free)[1] if free else 0

    @property
    def used_tokens(self) -> int:
        return sum(j.prompt_tokens + j.tokens for r in self.residents.values() for j in r.running)

    @property
    def kv_usage(self) -> float:
        """0..1, of the running requests."""
        return min(1.0, self.used_tokens / self.physics.cache_tokens)

    # -- time ----------------------------------------------------------------------------------

    @property
    def next_at(self) -> float | None:
        return self._events[0][0] if self._events else None

    def advance(self, now: float) -> None:
        """Let everything happen that is due until `now`, each at its own time."""
        while self._events and self._events[0][0] <= now:
            at, _, happen = heapq.heappop(self._events)
            self.now = max(self.now, at)
            happen(at)
        self.now = max(self.now, now)

    def _at(self, when: float, happen: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (when, next(self._order), happen))

    # -- memory --------------------------------------------------------------------------------

    def _new_resident(self, model: str, ready_at: float) -> Resident:
        resident = Resident(model, Residency.LOADING, ready_at)
        resident.slots = [Slot(resident, n) for n in range(self.physics.slots)]
        self.residents[model] = resident
        return resident

    def _start_load(self, now: float, model: str, job: Job | None) -> bool:
        """Whether the load began; if not, there is no room until something running ends."""
        if any(r.state is Residency.LOADING for r in self.residents.values()):
            return False
        victims = self._victims(model)
        if victims is None:
            return False
        for victim in victims:
            del self.residents[victim.model]
            self.evictions += 1
        ready_at = now + (self.physics.unload_s if victims else 0.0) + self.physics.load_s
        resident = self._new_resident(model, ready_at)
        resident.loader = job
        self._at(ready_at, lambda at: self._load_done(at, resident))
        return True

    def _victims(self, model: str) -> list[Resident] | None:
        """The idle models, longest unused first, that must go for `model`; None when that is not enough."""
        kept = sorted(self.residents.values(), key=lambda r: r.used_at)
        victims: list[Resident] = []
        for candidate in kept:
            if self._fits(model, [r for r in kept if r not in victims]):
                break
            if not candidate.running:
                victims.append(candidate)
        return victims if self._fits(model, [r for r in kept if r not in victims]) else None

    def _fits(self, model: str, kept: list[Resident]) -> bool:
        taken = sum(self.size_of(r.model) for r in kept)
        return len(kept) < self.physics.max_loaded and (
            taken + self.size_of(model) <= self.physics.memory_bytes
        )

    def _load_done(self, at: float, resident: Resident) -> None:
        if self.residents.get(resident.model) is resident:
            self._loaded(resident, at)
            self._admit(at)

    def _loaded(self, resident: Resident, at: float) -> None:
        resident.state, resident.loader, resident.used_at = Residency.LOADED, None, at
        self.loads += 1
        self._idle(at, resident)

    def _idle(self, at: float, resident: Resident) -> None:
        if self.physics.keep_alive_s is not None:
            resident.expires_at = due = at + self.physics.keep_alive_s
            self._at(due, lambda now: self._expire(now, resident))

    def _expire(self, now: float, resident: Resident) -> None:
        due = resident.expires_at
        if self.residents.get(resident.model) is not resident or due is None or due > now:
            return
        if not resident.running and resident.state is Residency.LOADED:
            del self.residents[resident.model]
            self._admit(now)

    # -- slots and the queue -------------------------------------------------------------------

    def _admit(self, now: float) -> None:
        """Everybody who can be served, in order of arrival."""
        blocked: set[str] = set()
        for job in list(self.queue):
            resident = self.residents.get(job.model)
            if resident is None:
                job.cold = True
                if not self._start_load(now, job.model, job) and not self.physics.overtaking:
                    blocked |= {*self.residents}
            elif resident.state is Residency.LOADED and job.model not in blocked:
                free = [s for s in resident.slots if s.job is None]
                if free:
                    self.queue.remove(job)
                    self._give(now, job, free)
            else:
                job.cold = job.cold or resident.state is Residency.LOADING

    def _give(self, now: float, job: Job, free: list[Slot]) -> None:
        if job.left:
            self._end(now, job, Phase.DROPPED)
            return
        slot, matched = self._choose(job.prompt, free)
        slot.job, job.slot = job, slot
        job.phase, job.admitted_at = Phase.PREFILL, now
        job.cached_tokens = min(matched, job.prompt_tokens - 1)  # the last one is always computed
        resident = slot.resident
        resident.expires_at = None
        cost = (job.prompt_tokens - job.cached_tokens) * self.physics.prefill_s_per_token
        job.prefill_end = resident.computing_until = max(now, resident.computing_until) + cost
        slot.held = b""
        self.changed[job] = None
        self._at(job.prefill_end, lambda at: self._prefilled(at, job))

    def _choose(self, prompt: bytes, free: list[Slot]) -> tuple[Slot, int]:
        """The slot, and how many tokens of the prompt need no computing."""
        p = self.physics
        if p.cache is CacheKind.SHARED:
            held = free[0].resident.shared
            matched = max((common_tokens(prompt, text) for text in held), default=0)
            return free[0], matched // p.cache_block_tokens * p.cache_block_tokens
        best = max(free, key=lambda s: (common_tokens(prompt, s.held), -s.number))
        matched = common_tokens(prompt, best.held)
        if matched > MIN_SLOT_SIMILARITY * tokens_of(prompt):
            return best, matched
        chosen = min(free, key=lambda s: (bool(s.held), s.used_at, s.number))
        return chosen, common_tokens(prompt, chosen.held)

    def _prefilled(self, at: float, job: Job) -> None:
        if job.phase is not Phase.PREFILL or job.slot is None:
            return
        job.phase = Phase.DECODE
        self._remember(job.slot.resident, job.slot, job.prompt)
        if job.out_tokens:
            self._token(at, job)
        else:
            self._finish(at, job)

    def _token(self, at: float, job: Job, count: int = 1) -> None:
        if job.phase is not Phase.DECODE or job.slot is None:
            return
        resident = job.slot.resident
        if self.physics.prefill_stalls_decode and resident.computing_until > at:
            self._at(resident.computing_until, lambda now: self._token(now, job, count))
            return
        job.tokens += count
        job.first_at = at if job.first_at is None else job.first_at
        self.changed[job] = None
        if job.tokens >= job.out_tokens:
            self._finish(at, job)
            return
        decoding = sum(j.phase is Phase.DECODE for j in resident.running)
        step = self.physics.decode_s_per_token * (1 + self.physics.decode_share * (decoding - 1))
        ahead = min(self.stride, job.out_tokens - job.tokens)
        self._at(at + ahead * step, lambda now: self._token(now, job, ahead))

    def _finish(self, at: float, job: Job) -> None:
        assert job.slot is not None
        self._remember(job.slot.resident, job.slot, job.prompt + job.answer)
        self.prompt_tokens += job.prompt_tokens - job.cached_tokens
        self.cached_tokens += job.cached_tokens
        self.out_tokens += job.tokens
        self._release(at, job, Phase.DONE)
        self._admit(at)

    def _remember(self, resident: Resident, slot: Slot, text: bytes) -> None:
        slot.held = text
        if self.physics.cache is CacheKind.SHARED:
            shared = resident.shared
            for known in [k for k in shared if text.startswith(k)]:
                del shared[known]
            shared[text] = None
            while len(shared) > 1 and sum(map(tokens_of, shared)) > self.physics.cache_tokens:
                del shared[next(iter(shared))]

    def _release(self, now: float, job: Job, phase: Phase) -> None:
        """The one place where a slot comes free."""
        slot = job.slot
        assert slot is not None
        assert slot.job is job
        resident = slot.resident
        if job.phase is Phase.PREFILL and resident.computing_until == job.prefill_end:
            batch = self.physics.batch_tokens * self.physics.prefill_s_per_token
            resident.computing_until = min(job.prefill_end, now + batch)
        slot.job, job.slot = None, None
        slot.used_at = resident.used_at = now
        self._end(now, job, phase)
        if not resident.running:
            self._idle(now, resident)

    def _end(self, now: float, job: Job, phase: Phase) -> None:
        job.phase, job.ended_at = phase, now
        self.changed[job] = None
