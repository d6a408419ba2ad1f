"""Logging, set up in one place for every way to start.

`settings.LOGGING` is this, and Django applies it in `django.setup()`, which `manage.py`, Daphne and any
other ASGI server all pass through. Lines go to stderr; `PHAROS_LOG_LEVEL` sets how much is said.
Nothing here logs requests: prompts stay out of logs.
"""

from __future__ import annotations

import logging
from typing import Any

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")

LINE = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"

# Daphne says where it would listen before our server has chosen; the rest narrate their own plumbing.
QUIET = ("daphne.cli", "daphne.server", "twisted", "asyncio", "httpx", "httpcore")


def config(level: str) -> dict[str, Any]:
    """A `logging.config.dictConfig` schema. Raises ValueError for a level that does not exist."""
    level = level.strip().upper()
    if level not in LEVELS:
        raise ValueError(f"PHAROS_LOG_LEVEL: {level!r} is not one of {', '.join(LEVELS)}")
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": {"format": LINE, "datefmt": "%Y-%m-%d %H:%M:%S%z"}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
        "root": {"level": level, "handlers": ["stderr"]},
        # Django's defaults hang a mail handler and a second console on these.
        "loggers": {
            "django": {"handlers": [], "level": "NOTSET", "propagate": True},
            "django.server": {"handlers": [], "level": "NOTSET", "propagate": True},
            # A 404 is the client's affair, and its access log (`--access-log`) has it.
            "django.request": {"level": "ERROR"},
            **{name: {"level": "WARNING"} for name in QUIET},
        },
    }


def twisted_to_logging() -> None:
    """Send Twisted's log to Python's, once: without this it prints to stderr by itself."""
    from twisted.logger import ILogObserver, STDLibLogObserver, globalLogBeginner

    observer: ILogObserver = STDLibLogObserver("twisted")  # type: ignore[assignment]  # declared by zope alone
    globalLogBeginner.beginLoggingTo([observer], redirectStandardIO=False, discardBuffer=True)


def more(verbosity: int) -> None:
    """What Daphne's `-v 2` asks for."""
    if verbosity >= 2:
        logging.getLogger().setLevel(logging.DEBUG)
