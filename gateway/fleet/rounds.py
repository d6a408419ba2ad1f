"""Every branch that a background round of one backend can take, by stage: what metrics count, the debug log
tells. A fixed set of values, so that the series made of them stay few."""

from __future__ import annotations

from enum import StrEnum


class Resolve(StrEnum):
    """Of finding out which probes the engine answers."""

    NEW_PLAN = "new_plan"  # other probes than before, or the first
    SAME_PLAN = "same_plan"
    FAILED = "failed"  # nothing answered, or what answers cannot be told


class Scrape(StrEnum):
    """Of asking the probes of the plan."""

    OK = "ok"
    BUSY = "busy"  # a path timed out: the engine works, and its last values grow old
    PROBE_FAILED = "probe_failed"  # the others count, and the plan is made anew
    NEW_VERSION = "new_version"  # the plan is made anew
    UNREACHABLE = "unreachable"


class Generation(StrEnum):
    """Why what a target had cached is taken to be gone."""

    UNLOADED = "unloaded"
    UNLISTED = "unlisted"
    NEW_VERSION = "new_version"
    RETURNED = "returned"  # it was lost, and another process may answer since


class LogFeed(StrEnum):
    CONNECTED = "connected"
    ENDED = "ended"  # it could be read before
    OPEN_FAILED = "open_failed"


Decision = Resolve | Scrape | Generation | LogFeed

STAGES: dict[str, type[StrEnum]] = {
    "resolve": Resolve,
    "scrape": Scrape,
    "generation": Generation,
    "log_feed": LogFeed,
}

_STAGE_OF = {kind: stage for stage, kind in STAGES.items()}


def stage_of(decision: Decision) -> str:
    return _STAGE_OF[type(decision)]
