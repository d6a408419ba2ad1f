"""`manage.py pharos_double KIND`: an engine for people who have no GPU, played from recordings."""

from __future__ import annotations

import asyncio
import json
import signal
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from engines.doubles import KINDS, Double, NoRecording, running


class Command(BaseCommand):
    help = (
        "Play one engine from its recordings: it answers as that engine does, with made-up text and the "
        "timing of a small machine. Stays until Ctrl-C."
    )
    requires_system_checks = ()  # it needs no config

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("kind", metavar="KIND", choices=sorted(KINDS), help=", ".join(sorted(KINDS)))
        parser.add_argument(
            "--port", type=int, default=0, help="listen here on 127.0.0.1 (default: a free one)"
        )
        parser.add_argument("--model", nargs="+", default=[], metavar="NAME", help="the models it has")
        parser.add_argument("--slots", type=int, metavar="N", help="requests it works on at a time")
        parser.add_argument(
            "--speed", type=float, default=1.0, metavar="X", help="so many times as fast (default: 1)"
        )

    def handle(self, *_args: Any, **options: Any) -> None:  # noqa: ANN401 (Django's signature)
        slots = options["slots"]
        if slots is not None and slots < 1:
            raise CommandError(f"--slots is {slots}; it must be 1 or more")
        if not 0 <= options["port"] <= 65535:
            raise CommandError(f"--port is {options['port']}; it must be 0 to 65535")
        try:
            double = Double(options["kind"], models=options["model"], slots=slots, speed=options["speed"])
            asyncio.run(self._serve(double, options["port"]))
        except (NoRecording, ValueError) as e:
            raise CommandError(str(e)) from None
        except OSError as e:
            raise CommandError(f"cannot listen on port {options['port']}: {e.strerror or e}") from None

    async def _serve(self, double: Double, port: int) -> None:
        over = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, over.set)
        async with running(double, port=port):
            self.stdout.write(introduction(double))
            self.stdout.flush()
            await over.wait()
        self.stdout.write("\nEnded.")


def introduction(double: Double) -> str:
    """What it is, where it is, and how to speak to it."""
    ask = {
        "model": double.names[0],
        "messages": [{"role": "user", "content": "Name three harbours."}],
        "stream": True,
    }
    speed = "" if double.speed == 1 else f", {double.speed:g} times as fast"
    return (
        f"{double.url} plays {double.imitation.title} {double.version} with {', '.join(double.names)}: "
        f"{double.machine.physics.slots} slot(s){speed}.\n\n"
        f"curl -N {double.url}/v1/chat/completions -H 'content-type: application/json' \\\n"
        f"  -d '{_quoted(json.dumps(ask, ensure_ascii=False))}'\n\n"
        "Ctrl-C ends it."
    )


def _quoted(text: str) -> str:
    return text.replace("'", "'\\''")
