"""`manage.py pharos_simulate`: routers compared on virtual time, over models of engines."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from django.core.management.base import BaseCommand, CommandError
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from gateway.simulate.compare import summaries
from gateway.simulate.many import Run, run_all
from gateway.simulate.measure import Result
from gateway.simulate.page import page
from gateway.simulate.report import screen
from gateway.simulate.routers import ROUTERS
from gateway.simulate.scenario import Scenario, ScenarioError, load, names

INTERRUPTED = 130
PLAIN_WIDTH = 150  # of tables that go to a file or a pipe


class Command(BaseCommand):
    help = (
        "Compare routers: the gateway's scheduler, policies and prefix index on virtual time, over models of "
        "engines. Half an hour takes seconds. The same seed gives the same result."
    )
    requires_system_checks = ()  # it needs no config

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "scenario",
            nargs="*",
            default=["mixed"],
            help="a name, name:variant, or a file.yaml (default: mixed); --list shows them",
        )
        parser.add_argument("--list", action="store_true", help="what scenarios there are")
        parser.add_argument("--seeds", type=int, default=3, metavar="N", help="1 to N (default: 3)")
        parser.add_argument(
            "--router", nargs="+", choices=list(ROUTERS), default=list(ROUTERS), metavar="NAME",
            help=f"of {', '.join(ROUTERS)} (default: all)",
        )  # fmt: skip
        parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="cores to use")
        parser.add_argument("--json", type=Path, metavar="FILE", help="all numbers, for programs")
        parser.add_argument("--html", type=Path, metavar="FILE", help="tables and plots as one page")

    def handle(self, *_args: Any, **options: Any) -> None:  # noqa: ANN401 (Django's signature)
        if options["list"]:
            self._list()
            return
        if options["seeds"] < 1 or options["jobs"] < 1:
            raise CommandError("--seeds and --jobs are 1 or more")
        try:
            scenarios = [load(name) for name in options["scenario"]]
        except ScenarioError as e:
            raise CommandError(str(e)) from None
        try:
            results = self._run(scenarios, options)
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)
        self._show(scenarios, results, options)

    def _list(self) -> None:
        for name in names():
            scenario = load(name)
            self.stdout.write(f"{name:16} {scenario.about}")
            for variant in scenario.variants:
                self.stdout.write(f"  {name}:{variant}")

    def _run(self, scenarios: Sequence[Scenario], options: dict[str, Any]) -> list[Result]:
        seeds = range(1, options["seeds"] + 1)
        runs = [Run(sc, router, seed) for sc in scenarios for seed in seeds for router in options["router"]]
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:.0f} %"))
        with Progress(
            *columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True
        ) as progress:
            task = progress.add_task(f"{len(runs)} runs", total=1.0)

            def told(title: str, share: float) -> None:
                progress.update(task, description=title, completed=share)

            return run_all(runs, options["jobs"], told)

    def _show(
        self, scenarios: Sequence[Scenario], results: Sequence[Result], options: dict[str, Any]
    ) -> None:
        by_name = [(sc, [r for r in results if r.scenario == sc.name]) for sc in scenarios]
        console = Console(no_color=options["no_color"] or None, width=None if self._tty else PLAIN_WIDTH)
        for scenario, mine in by_name:
            with console.capture() as drawn:
                console.print(screen(scenario, summaries(mine)))
            self.stdout.write(drawn.get(), ending="")
        if options["json"] is not None:
            write(options["json"], msgspec.json.format(msgspec.json.encode(as_data(by_name)), indent=1))
        if options["html"] is not None:
            write(options["html"], page(by_name).encode())

    @property
    def _tty(self) -> bool:
        return bool(self.stdout.isatty())


def as_data(compared: Sequence[tuple[Scenario, Sequence[Result]]]) -> list[dict[str, Any]]:
    return [
        {"scenario": sc.name, "about": sc.about, "summary": summaries(results), "runs": results}
        for sc, results in compared
    ]


def write(path: Path, data: bytes) -> None:
    """Raises CommandError."""
    try:
        path.write_bytes(data)
    except OSError as e:
        raise CommandError(f"cannot write {path}: {e.strerror}") from None
