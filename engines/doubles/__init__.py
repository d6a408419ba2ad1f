"""In-process doubles of engines: recorded bodies, the double's own numbers, faults on demand.

`Double` is one engine on a socket, `running` starts and stops it; `Machine` is what is behind it, without
any socket or clock, for simulations. What they assume of time, memory and caches stands in `assumptions`.
"""

from engines.doubles.assumptions import PHYSICS, CacheKind, Physics
from engines.doubles.double import Double, running
from engines.doubles.faults import Fault, Trouble, busy
from engines.doubles.jobs import Job, Phase
from engines.doubles.kinds import KINDS
from engines.doubles.machine import Full, Machine
from engines.doubles.recordings import NoRecording

__all__ = [
    "KINDS",
    "PHYSICS",
    "CacheKind",
    "Double",
    "Fault",
    "Full",
    "Job",
    "Machine",
    "NoRecording",
    "Phase",
    "Physics",
    "Trouble",
    "busy",
    "running",
]
