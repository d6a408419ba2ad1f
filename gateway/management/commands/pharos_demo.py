"""`manage.py pharos_demo`: two real engines, the gateway in front, one streamed answer."""

from __future__ import annotations

import signal
import sys
import time
from argparse import ArgumentParser
from types import FrameType
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from rich.console import Console

from gateway.demo.show import DemoError, Show
from gateway.demo.stage import Gateway, Stage

_LOOK_S = 0.5


class Command(BaseCommand):
    help = (
        "Start two real llama.cpp servers with a small model, the gateway in front of them, and stream "
        "one answer. Stays until Ctrl-C, which ends everything it started."
    )
    requires_system_checks = ()  # it brings its own config

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--once", action="store_true", help="exit after the answer: 0, or 1 with the reason there is none"
        )

    def handle(self, *_args: Any, once: bool, **_options: Any) -> None:  # noqa: ANN401 (Django's signature)
        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(errors="replace")  # a terminal that cannot show a token's letter
        console = Console(highlight=False)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, _end)
        answered = False
        try:
            with Stage() as stage:
                gateway = Show(console, stage).run()
                answered = True
                if not once:
                    console.print("\nCtrl-C ends the demo and everything it started.")
                    stay(gateway)
        except DemoError as e:
            raise CommandError(str(e)) from None
        except KeyboardInterrupt:
            console.print("\nEnded, and everything it started with it.")
            if not answered:
                raise CommandError("ended before there was an answer", returncode=130) from None


def stay(gateway: Gateway) -> None:
    """Until a signal comes. Raises DemoError should the gateway end by itself."""
    while gateway.running:
        time.sleep(_LOOK_S)
    raise DemoError(f"the gateway ended by itself. Its last lines:\n{gateway.last_words()}")


def _end(_number: int, _frame: FrameType | None) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # ending is under way; a second Ctrl-C must not cut it short
    raise KeyboardInterrupt
