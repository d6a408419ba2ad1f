"""`make bench-routing`: conversations through Pharos and through round-robin, over real engines, in turns."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time

from rich.console import Console

from benchmarks.replay import client, fronts, report, trace
from gateway.demo.install import InstallError
from gateway.demo.processes import StartError


def main() -> None:
    given = _arguments()
    console = Console()
    if not console.is_terminal:
        console.width = 120
    talks = trace.trace(given.seed, trace.Shape(given.users, given.turns))
    runs: list[report.Run] = []
    file = report.file()
    try:
        for repeat in range(given.repeats):
            order = (fronts.PHAROS, fronts.ROUND_ROBIN)[:: 1 if repeat % 2 == 0 else -1]
            for front in order:
                runs.append(_run(console, front, repeat, talks))
                report.keep(file, runs, given.seed)
    except (InstallError, StartError) as e:
        sys.exit(str(e))
    report.show(console, runs)
    console.print(f"Kept in {file}", soft_wrap=True)


def _arguments() -> argparse.Namespace:
    usual = trace.Shape()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replay", description=__doc__)
    parser.add_argument("--repeats", type=int, default=3, help="runs through each (3)")
    parser.add_argument(
        "--users", type=int, default=usual.users, help=f"conversations at once ({usual.users})"
    )
    parser.add_argument("--turns", type=int, default=usual.turns, help=f"of each of them ({usual.turns})")
    parser.add_argument("--seed", type=int, default=1, help="of what is asked, and when (1)")
    return parser.parse_args()


def _run(console: Console, name: str, repeat: int, talks: list[trace.Talk]) -> report.Run:
    total, done = sum(len(talk.turns) for talk in talks), 0
    what = f"repeat {repeat + 1}, {name}"
    with console.status(f"{what}: engines are starting") as status, fronts.standing(name) as front:
        began = time.perf_counter()

        def asked() -> None:
            nonlocal done
            done += 1
            status.update(f"{what}: {done} of {total} requests, {time.perf_counter() - began:.0f} s")

        rows = asyncio.run(client.replay(front.url, talks, asked))
        took_s = time.perf_counter() - began
        run = report.Run(name, repeat, rows, front.told(), took_s, os.getloadavg()[0])
    if not console.is_terminal:
        console.print(f"{what}: {total} requests in {took_s:.0f} s")
    return run


if __name__ == "__main__":
    main()
