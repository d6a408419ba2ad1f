"""One engine and what is known of it now. Plain functions of the loop: nothing here awaits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from engines.plan import Plan, Round
from engines.signals import Residency, Snapshot
from gateway.config import BackendConfig, FoundBackend
from gateway.fleet.readings import FULL_INTERVAL_S, STALE_AFTER_ROUNDS, Readings
from gateway.fleet.rounds import Decision, Generation
from gateway.fleet.target import Target


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
        self._was_lost = False  # since its last full round: another process may answer by then
        self.readings = Readings()
        self.targets: dict[str, Target] = {}  # by the clients' name; also those that are not listed now
        self.log_up: bool | None = None  # can its log be read? None: nobody tries
        self.changed: Callable[[], None] = lambda: None  # told of every round, of its loss and its return
        self.decided: Callable[[Decision], None] = lambda _: None  # told which way its rounds went

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
        self.error = None
        self._full(plan, snapshot, now)
        self.changed()

    def scraped(self, round_: Round, plan: Plan, now: float) -> None:
        """A full round. A busy engine that did not list its models stays as it was, until that is stale.

        Its models stay known even then: a client that asks for one is told to come back, not that there
        is no such model.
        """
        self._note_failed(round_, plan)
        if not round_.busy or round_.snapshot.models is not None:
            self.error = None
            self._full(plan, round_.snapshot, now)
        else:
            self.readings.add(round_.snapshot, now)
            if self._stale(now):
                self.error = "it has not listed its models for a while: hanging, or too busy to be asked"
        self.changed()

    def load_read(self, round_: Round, plan: Plan, now: float) -> None:
        """A light round. It says how busy the backend is, not that it is well."""
        self._note_failed(round_, plan)
        self.readings.add(round_.snapshot, now)
        self.changed()

    def heard(self, snapshot: Snapshot, now: float) -> None:
        """What one line of its log said."""
        before = self._warm(now)
        self.readings.hear(snapshot, now)
        self._new_generations(before, now)
        self.changed()

    def lost(self, why: str) -> None:
        """It refused, died, or cannot be told what it is. The next round that it answers brings it back."""
        self.error, self._was_lost = why, True
        self.changed()

    def reconfigured(self, config: BackendConfig) -> None:
        """The same address with other settings. What was learned of its models stays."""
        self.config, self.api_key = config, config.key()
        self._name_models()
        self.changed()

    # -- parts of these ------------------------------------------------------------------------

    def _note_failed(self, round_: Round, plan: Plan) -> None:
        self.readings.fail(round_, {p.name: p.signal for p in plan.active})

    def _full(self, plan: Plan, snapshot: Snapshot, now: float) -> None:
        anew = self._anew(plan)
        self._was_lost = False
        before, listed = self._warm(now), set(self.models)
        self.view = View(plan, snapshot, now)
        self.readings.load_interval_s = plan.recipe.load_interval_s
        self.readings.add(snapshot, now)
        self._name_models()
        self._new_generations(before, now)
        for name, target in self.targets.items():
            if anew is not None:
                self._new_generation(target, anew)
            elif name in listed and name not in self.models:
                self._new_generation(target, Generation.UNLISTED)

    def _anew(self, plan: Plan) -> Generation | None:
        """Why nothing that any of its models had cached is there any more."""
        if self.view is None:
            return None
        if self.view.plan.version != plan.version:
            return Generation.NEW_VERSION
        return Generation.RETURNED if self._was_lost else None

    def _name_models(self) -> None:
        listed = self.view.snapshot.models if self.view is not None else None
        aliases = self.config.aliases
        self.models = {aliases.get(name, name): name for name in listed or ()}
        for name, served in self.models.items():
            if name not in self.targets or self.targets[name].served != served:
                self.targets[name] = Target(self, name, served)

    def _warm(self, now: float) -> set[Target]:
        return {t for t in self.targets.values() if t.view(now).warm is True}

    def _new_generations(self, were_warm: set[Target], now: float) -> None:
        """A model that was unloaded has lost what it had cached."""
        for target in were_warm:
            if self.readings.residency(target.served, now) is Residency.COLD:
                self._new_generation(target, Generation.UNLOADED)

    def _new_generation(self, target: Target, why: Generation) -> None:
        target.generation += 1
        self.decided(why)

    def _stale(self, now: float) -> bool:
        return self.view is None or now - self.view.at > STALE_AFTER_ROUNDS * FULL_INTERVAL_S
