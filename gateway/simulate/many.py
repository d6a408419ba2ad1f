"""Many runs, on several cores where there are some."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context

import msgspec

from gateway.simulate.measure import Result
from gateway.simulate.routers import ROUTERS
from gateway.simulate.run import Simulation
from gateway.simulate.scenario import Scenario

Told = Callable[[str, float], None]
"""Which run, and how much of all runs is over, 0 to 1."""


class Run(msgspec.Struct, frozen=True):
    scenario: Scenario
    router: str
    seed: int

    @property
    def title(self) -> str:
        return f"{self.scenario.name}, {self.router}, seed {self.seed}"


def run_all(runs: Sequence[Run], jobs: int, told: Told) -> list[Result]:
    """In the order of `runs`, whichever ended first."""
    results = dict(_apart(runs, jobs, told) if jobs > 1 and len(runs) > 1 else _here(runs, told))
    return [results[at] for at in range(len(runs))]


def _here(runs: Sequence[Run], told: Told) -> Iterator[tuple[int, Result]]:
    for at, run in enumerate(runs):

        def progress(share: float, at: int = at, run: Run = run) -> None:
            told(run.title, (at + share) / len(runs))

        yield at, simulate(run, progress)


def _apart(runs: Sequence[Run], jobs: int, told: Told) -> Iterator[tuple[int, Result]]:
    with ProcessPoolExecutor(min(jobs, len(runs)), mp_context=get_context("spawn")) as pool:
        order = {pool.submit(simulate, run): at for at, run in enumerate(runs)}
        for n, future in enumerate(as_completed(order), start=1):
            told(runs[order[future]].title, n / len(runs))
            yield order[future], future.result()


def simulate(run: Run, progress: Callable[[float], None] | None = None) -> Result:
    return Simulation(run.scenario, ROUTERS[run.router], run.seed).run(progress)
