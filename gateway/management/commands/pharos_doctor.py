"""`manage.py pharos_doctor`: what Pharos can read of each engine, and how to mend what it cannot."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from rich.console import Console

from engines.recipes import RECIPES
from engines.record import RecordError
from gateway.config import Config, config_path, load
from gateway.config_source import ConfigError
from gateway.doctor.keep import STATE, keep
from gateway.doctor.patients import Patient, UsageError, by_hand, configured, key_from
from gateway.doctor.report import report
from gateway.doctor.show import screen
from gateway.doctor.visit import Visit, visit_all
from gateway.doctor.words import plain

NOT_ANSWERED, WRONG_USE, INTERRUPTED = 1, 2, 130


class Command(BaseCommand):
    help = (
        "Visit the engines of the config, or one address: what each is, what can be read of it, which "
        "routes it answers, and what will surprise you. Loads nothing, generates nothing. Exits with 0 when "
        "every engine answered, 1 when one did not, 2 for wrong use."
    )
    requires_system_checks = ()  # a broken config is told by itself, with its own exit code

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--url", help="one engine, http://host:port, instead of those of the config")
        kinds = ["auto", *sorted(RECIPES)]
        parser.add_argument("--kind", choices=kinds, help="with --url: what it is, instead of detecting it")
        parser.add_argument(
            "--key-env", metavar="NAME", help="with --url: the environment variable with its API key"
        )
        parser.add_argument("--json", action="store_true", help="a list of objects for programs")
        parser.add_argument(
            "--record", metavar="DIR", type=Path, help="keep what was answered, as the fixtures are kept"
        )
        parser.add_argument(
            "--state", metavar="NAME", help=f"with --record: what the engine is doing now ({STATE})"
        )
        parser.add_argument(
            "--logs", action="store_true", help="with --record: its log lines too, which may hold prompts"
        )

    def handle(self, *_args: Any, **options: Any) -> None:  # noqa: ANN401 (Django's signature)
        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(errors="replace")  # a terminal that cannot show a model's name
        try:
            code = self.run(options)
        except (UsageError, ConfigError, RecordError) as e:
            raise CommandError(str(e), returncode=WRONG_USE) from None
        except KeyboardInterrupt:
            code = INTERRUPTED
        except BrokenPipeError:  # `| head` has read enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = 0
        if code:
            sys.exit(code)

    def run(self, options: dict[str, Any]) -> int:
        """The exit code. Raises UsageError, ConfigError and RecordError."""
        refuse_misfits(options)
        patients = self.patients(options)
        visits = self.visit(patients, recording=options["record"] is not None)
        there = [v for v in visits if not v.absent]
        self.tell(
            there,
            searched=all(p.searched for p in patients),
            as_json=options["json"],
            no_color=options["no_color"],
        )
        if options["record"] is not None:
            self.keep(there, options)
        return 0 if there and all(v.found.error is None for v in there) else NOT_ANSWERED

    # -- whom --------------------------------------------------------------------------------------

    def patients(self, options: dict[str, Any]) -> Sequence[Patient]:
        if options["url"] is None:
            return configured(load())
        kind = options["kind"]
        key = key_from(options["key_env"], os.environ)
        return [by_hand(options["url"], None if kind in (None, "auto") else kind, key, self.config())]

    def config(self) -> Config | None:
        """What the config says of the address of --url. A broken one does not stand in its way."""
        try:
            return load()
        except ConfigError as e:
            self.stderr.write(f"The config is left aside, as it is broken: {e}")
            return None

    # -- the visit ---------------------------------------------------------------------------------

    def visit(self, patients: Sequence[Patient], *, recording: bool) -> list[Visit]:
        left = [patient.url for patient in patients]
        progress = Console(stderr=True)
        showing: AbstractContextManager[Any] = nullcontext()
        if progress.is_terminal:
            showing = progress.status(_asking(left))

        def done(patient: Patient) -> None:
            left.remove(patient.url)
            if progress.is_terminal and left:
                showing.update(_asking(left))  # type: ignore[attr-defined]

        with showing:
            return asyncio.run(visit_all(patients, recording=recording, done=done))

    # -- what is said ------------------------------------------------------------------------------

    def tell(self, visits: Sequence[Visit], *, searched: bool, as_json: bool, no_color: bool = False) -> None:
        if searched:
            said = f"There is no {config_path()} here, so the usual ports of this machine were tried: " + (
                f"{len(visits)} found." if visits else "no engine found. Start one, or give --url."
            )
            (self.stderr if as_json else self.stdout).write(said)
        if as_json:
            self.stdout.write(json.dumps([report(v) for v in visits], indent=2))
        elif self.stdout.isatty():
            console = Console(no_color=no_color or None)
            with console.capture() as drawn:
                console.print(screen(visits))
            self.stdout.write(drawn.get())
        elif visits:
            self.stdout.write(plain(visits), ending="")

    def keep(self, visits: Sequence[Visit], options: dict[str, Any]) -> None:
        if options["logs"] and not any(v.log is not None for v in visits):
            self.stderr.write(
                "No log lines are recorded: --logs takes them from `logs: file:///…` of the config."
            )
        today = datetime.now(UTC).date().isoformat()
        folders = keep(visits, options["record"], options["state"] or STATE, today, logs=options["logs"])
        for folder in folders:
            self.stderr.write(f"Recorded {folder}")
        if not folders:
            self.stderr.write("Nothing was recorded: nothing answered.")
            return
        self.stderr.write(
            "Read it before you pass it on: answers can hold paths, command lines and host names"
            + (", and log lines can hold prompts." if options["logs"] else ".")
        )


def refuse_misfits(options: dict[str, Any]) -> None:
    """Raises UsageError for an option that would say nothing here."""
    for option, needs in (("kind", "url"), ("key_env", "url"), ("state", "record"), ("logs", "record")):
        if options[option] and not options[needs]:
            raise UsageError(f"--{option.replace('_', '-')} goes with --{needs}")
    root = options["record"]
    if root is not None and root.exists() and not root.is_dir():
        raise UsageError(f"--record {root}: that is a file, and a folder is wanted")


def _asking(urls: Sequence[str]) -> str:
    more = f" and {len(urls) - 1} more" if len(urls) > 1 else ""
    return f"asking {urls[0]}{more} …"
