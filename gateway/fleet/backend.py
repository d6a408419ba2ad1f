"""One engine and what is known of it now. Plain functions of the loop: nothing here awaits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engines.plan import Plan, Round
from engines.signals import Snapshot
from gateway.config import BackendConfig, FoundBackend

FULL_INTERVAL_S = 5.0
STALE_AFTER_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class View:
    """The last full round: what it read, by which plan, and when (the loop's clock, seconds)."""

    plan: Plan
    snapshot: Snapshot
    at: float


class Backend:
    """A backend is up from the round it answers to the moment it refuses or dies.

    A timed-out poll changes nothing: an engine in a prefill does not answer, and is not down.
    """

    def __init__(self, config: BackendConfig) -> None:
        self.config = config
        self.api_key = config.key()
        self.view: View | None = None
        self.models: Mapping[str, str] = {}  # clients' name -> the engine's; empty while the list is unknown
        self.error: str | None = None  # why it is not up, for people
        self.in_flight = 0  # ours; the engine's own gauges are only a correction to it

    def __repr__(self) -> str:
        return f"<Backend {self.url} {'up' if self.up else self.error or 'not asked yet'}>"

    @property
    def url(self) -> str:
        return self.config.url.rstrip("/")

    @property
    def searched(self) -> bool:
        """Looked for on this host, not configured: its absence is no fault."""
        return isinstance(self.config, FoundBackend)

    @property
    def up(self) -> bool:
        return self.view is not None and self.error is None

    def resolved(self, plan: Plan, snapshot: Snapshot, now: float) -> None:
        self.view, self.error = View(plan, snapshot, now), None
        aliases = self.config.aliases
        self.models = {aliases.get(name, name): name for name in snapshot.models or ()}

    def scraped(self, round_: Round, plan: Plan, now: float) -> None:
        """A full round. A busy engine that did not list its models stays as it was, until that is stale.

        Its models stay known even then: a client that asks for one is told to come back, not that there
        is no such model.
        """
        if round_.busy and round_.snapshot.models is None:
            if self._stale(now):
                self.error = "it has not listed its models for a while: hanging, or too busy to be asked"
            return
        self.resolved(plan, round_.snapshot, now)

    def lost(self, why: str) -> None:
        """It refused, died, or cannot be told what it is. The next round that it answers brings it back."""
        self.error = why

    def _stale(self, now: float) -> bool:
        return self.view is None or now - self.view.at > STALE_AFTER_ROUNDS * FULL_INTERVAL_S
