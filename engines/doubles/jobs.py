"""What a machine works on and with: jobs, the slots they hold, the models in memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from engines.doubles.assumptions import BYTES_PER_TOKEN
from engines.signals import Residency


class Phase(StrEnum):
    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    DONE = "done"
    DROPPED = "dropped"  # its client left, and it took no more time
    FAILED = "failed"  # the machine lost its model


@dataclass(eq=False, slots=True)
class Job:
    model: str
    prompt: bytes
    answer: bytes
    out_tokens: int
    streamed: bool
    arrived_at: float
    phase: Phase = Phase.WAITING
    slot: Slot | None = None
    tokens: int = 0  # generated so far
    cached_tokens: int = 0
    left: bool = False  # its client is gone
    cold: bool = False  # it waited for its model to be loaded
    admitted_at: float | None = None
    first_at: float | None = None
    ended_at: float | None = None
    prefill_end: float = 0.0

    @property
    def prompt_tokens(self) -> int:
        return tokens_of(self.prompt)

    @property
    def ended(self) -> bool:
        return self.phase in (Phase.DONE, Phase.DROPPED, Phase.FAILED)


@dataclass(eq=False, slots=True)
class Slot:
    resident: Resident
    number: int
    job: Job | None = None
    held: bytes = b""  # what its part of the KV cache was computed from
    used_at: float = -1.0


@dataclass(eq=False, slots=True)
class Resident:
    """A model in memory, or on its way there."""

    model: str
    state: Residency
    ready_at: float
    slots: list[Slot] = field(default_factory=list)
    shared: dict[bytes, None] = field(default_factory=dict)  # prompts in the shared cache, oldest first
    computing_until: float = 0.0  # prefills are computed one after the other
    used_at: float = 0.0
    expires_at: float | None = None
    loader: Job | None = None

    @property
    def running(self) -> list[Job]:
        return [s.job for s in self.slots if s.job is not None]


def tokens_of(text: bytes) -> int:
    return max(1, -(-len(text) // BYTES_PER_TOKEN))


def common_tokens(a: bytes, b: bytes) -> int:
    """Tokens of the longest common prefix."""
    low, high = 0, min(len(a), len(b))
    step = 256
    while step < high and a[low:step] == b[low:step]:  # most differ early
        low, step = step, 4 * step
    high = min(high, step)
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low // BYTES_PER_TOKEN
