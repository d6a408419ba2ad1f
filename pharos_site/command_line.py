"""What was asked of the `daphne` command, and what Daphne filled in by itself.

Daphne hands the server its defaults as if they had been typed: 127.0.0.1:8000 to listen on, and an access
log on stdout. Ours differ, so the line is read a second time, with Daphne's own parser.
"""

from __future__ import annotations

import contextlib
import io
from argparse import Namespace
from collections.abc import Sequence

from daphne.cli import DEFAULT_HOST, DEFAULT_PORT, CommandLineInterface
from daphne.endpoints import build_endpoint_description_strings

DAPHNES_OWN = build_endpoint_description_strings(host=DEFAULT_HOST, port=DEFAULT_PORT)


def _read(argv: Sequence[str]) -> Namespace | None:
    """None when this is no `daphne` command line (the server was built by other code)."""
    with contextlib.redirect_stderr(io.StringIO()), contextlib.suppress(SystemExit):
        known, _ = CommandLineInterface().parser.parse_known_args(list(argv))
        return known
    return None


def address_asked(argv: Sequence[str], endpoints: Sequence[str]) -> bool:
    """Whether `endpoints` are somebody's wish (`-b`, `-p`, `-u`, `-e`, `--fd`, or code) and not a default."""
    if list(endpoints) != DAPHNES_OWN:
        return True
    line = _read(argv)
    return line is not None and bool(line.host or line.port is not None or line.socket_strings)


def access_log_asked(argv: Sequence[str]) -> bool:
    line = _read(argv)
    return line is None or line.access_log is not None


def endpoints_for(address: tuple[str, int]) -> list[str]:
    """Twisted's description of a (host, port)."""
    host, port = address
    return list(build_endpoint_description_strings(host=host, port=port))


def with_backlog(endpoint: str, backlog: int) -> str:
    """Twisted queues 50 connections by default: a burst of some hundred clients would wait a second for
    their SYN to be sent again."""
    wants = endpoint.startswith(("tcp:", "tcp6:", "ssl:")) and "backlog=" not in endpoint
    return f"{endpoint}:backlog={backlog}" if wants else endpoint
