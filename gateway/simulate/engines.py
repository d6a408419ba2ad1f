"""The simulated fleet: a machine behind each host, and what a scraper would know of it.

The gateway never sees a machine. It sees what the last poll showed, as the engine shows it: what it does not
show is unknown, and what happened since is not known yet. `true_view` is for the oracle alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from engines.doubles import PHYSICS, CacheKind, Machine, Phase, Physics
from engines.signals import Residency
from gateway.fleet.stats import Stats
from gateway.simulate.scenario import Host, Scenario

GB = 2**30
FULL_ROUND_S = 5.0
STRIDE = 8  # tokens of one decode step: an eighth of the events, and 0.3 s of blur at most


@dataclass(frozen=True, slots=True)
class Shown:
    """What an engine lets be seen, and how often it is looked at. As docs/SUPPORT.md says of each."""

    load: bool = False  # running and waiting
    capacity: bool = False
    kv_usage: bool = False
    residency: bool = False  # else its one model is always loaded
    sizes: bool = False
    after_a_step: bool = False  # a request counts as running from the end of its prefill
    cached: bool = True  # replies tell how much of the prompt was cached
    times: bool = False  # replies tell the time of prefill
    load_time: bool = False  # and of a load
    poll_s: float = 1.0


SHOWN = {
    "llamacpp": Shown(load=True, capacity=True, sizes=True, times=True, poll_s=2.5),
    "llamacpp-router": Shown(residency=True, capacity=True, times=True, poll_s=2.5),
    "ollama": Shown(residency=True, sizes=True, times=True, load_time=True),
    "vllm": Shown(load=True, kv_usage=True, after_a_step=True),
    "sglang": Shown(load=True, capacity=True, kv_usage=True),
    "llama-swap": Shown(residency=True, times=True),
    "mlx-lm": Shown(),
}


@dataclass(frozen=True, slots=True)
class Seen:
    """A target's signals. None is unknown."""

    warm: bool | None = None
    loading: bool = False
    running: int | None = None
    waiting: int | None = None
    load_at: float | None = None
    capacity: int | None = None
    kv_usage: float | None = None
    size_bytes: int | None = None
    vram_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Told:
    """What the gateway's config says of a backend."""

    memory_gb: float | None


class SimBackend:
    def __init__(self, host: Host, sizes_gb: dict[str, float], first_id: int, *, truth: bool = False) -> None:
        self.host, self.truth = host, truth
        self.url = f"http://{host.name}"
        self.shown = SHOWN[host.engine]
        self.physics = physics_of(host)
        self.config = Told(host.memory_gb if host.told_memory or truth else None)
        sizes = {m: int(sizes_gb[m] * GB) for m in host.models if m in sizes_gb}
        self.machine = Machine(self.physics, host.models, host.loaded, sizes, stride=STRIDE)
        self.loads_at_start = self.machine.loads
        self.targets = [SimTarget(self, m, first_id + n) for n, m in enumerate(host.models)]
        self.full_at = -1.0

    @property
    def shared_cache(self) -> bool:
        return self.physics.cache is CacheKind.SHARED

    @property
    def loads(self) -> int:
        return self.machine.loads - self.loads_at_start

    def poll(self, now: float) -> None:
        """One round of a scraper: load is read in each, residency and sizes in a full one."""
        self.machine.advance(now)
        full = now - self.full_at >= FULL_ROUND_S or self.full_at < 0
        before = [target.view(now).warm for target in self.targets]
        for target in self.targets:
            target.seen = self._read(target, now, full)
        if full:
            self.full_at = now
        for target, was in zip(self.targets, before, strict=True):
            target.generation += was is True and target.seen.warm is False

    def _read(self, target: SimTarget, now: float, full: bool) -> Seen:
        machine, shown, model = self.machine, self.shown, target.model
        seen = target.seen
        if full:
            state = machine.residency(model)
            seen = replace(
                seen,
                warm=state is Residency.LOADED if shown.residency else None,
                loading=shown.residency and not self._hides_loading and state is Residency.LOADING,
                capacity=self.physics.slots if shown.capacity else self.host.told_capacity,
                size_bytes=machine.size_of(model) if shown.sizes else None,
            )
        if shown.load:
            seen = replace(seen, running=self._running(model), waiting=machine.waiting(model), load_at=now)
        return replace(seen, kv_usage=machine.kv_usage) if shown.kv_usage else seen

    @property
    def _hides_loading(self) -> bool:
        return self.host.engine == "ollama"  # /api/ps lists a model when it is ready

    def _running(self, model: str) -> int:
        if not self.shown.after_a_step:
            return self.machine.running(model)
        resident = self.machine.residents.get(model)
        return sum(j.phase is Phase.DECODE for j in resident.running) if resident else 0

    def true_view(self, target: SimTarget, now: float) -> Seen:
        machine, model = self.machine, target.model
        machine.advance(now)
        state = machine.residency(model)
        return Seen(
            warm=state is Residency.LOADED,
            loading=state is Residency.LOADING,
            running=machine.running(model),
            waiting=machine.waiting(model),
            load_at=now,
            capacity=self.physics.slots,
            size_bytes=machine.size_of(model),
        )


@dataclass(eq=False, slots=True)
class SimTarget:
    backend: SimBackend
    model: str
    id: int
    stats: Stats = field(default_factory=Stats)
    seen: Seen = Seen()
    generation: int = 0  # what the engine had cached is gone with each step
    replied_at: float = -1.0

    @property
    def key(self) -> str:
        return f"{self.backend.url} {self.model}"

    def view(self, now: float) -> Seen:
        if self.backend.truth:
            return self.backend.true_view(self, now)
        if self.replied_at > self.backend.full_at:
            return replace(self.seen, warm=True)
        return self.seen


class SimFleet:
    def __init__(self, scenario: Scenario, *, truth: bool = False) -> None:
        self.backends: list[SimBackend] = []
        for host in scenario.hosts:
            first_id = 1 + sum(len(b.targets) for b in self.backends)
            self.backends.append(SimBackend(host, scenario.sizes_gb, first_id, truth=truth))
        self._of: dict[str, list[SimTarget]] = {}
        for backend in self.backends:
            for target in backend.targets:
                self._of.setdefault(target.model, []).append(target)

    def targets_of(self, model: str) -> Sequence[SimTarget]:
        return self._of.get(model, ())

    def lists(self, model: str) -> bool:
        return model in self._of

    @property
    def targets(self) -> list[SimTarget]:
        return [t for b in self.backends for t in b.targets]


def physics_of(host: Host) -> Physics:
    """The engine's model with this machine's numbers."""
    base = PHYSICS[host.engine]
    return replace(
        base,
        prefill_s_per_token=1 / host.prefill_tokens_s,
        decode_s_per_token=1 / host.decode_tokens_s,
        load_s=host.load_s,
        slots=host.slots or base.slots,
        max_loaded=host.max_loaded or base.max_loaded,
        cache_tokens=host.cache_tokens or base.cache_tokens,
        decode_share=base.decode_share if host.decode_share is None else host.decode_share,
        memory_bytes=base.memory_bytes if host.memory_gb is None else int(host.memory_gb * GB),
    )
