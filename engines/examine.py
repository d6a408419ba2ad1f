"""A doctor's visit to one engine: what it is, what can be read of it, which routes it has.

How this works. Everything is asked through a `Tape`, so each path is asked once whoever wants it, nothing
is asked once the visit's time is over, and the visit can be kept as a recording. A visit never fails: what
went wrong is its `error`, and what was learnt before stays. The rules:

- a POST is sent only to an engine that answered, that is not asleep, and that did not time out;
- a kind that was given is believed, and told when the engine looks like another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from engines.detect import Undetected, detect
from engines.fetch import Fault, FetchError
from engines.plan import Plan, Unreachable, merge, resolve
from engines.probes import Log, Probe, ProbeError, read
from engines.recipes import RECIPES
from engines.recipes.base import Findings, Kind, Recipe
from engines.record import Tape
from engines.routes import ROUTES, served
from engines.signals import WHOLE_BACKEND, Load, Reading, Signal, Snapshot


@dataclass(frozen=True, slots=True)
class Active:
    """A probe of the plan and what it reads now; None is a log probe without a match yet."""

    probe: Probe
    reading: Reading | None

    @property
    def source(self) -> str:
        """Where it reads: a path, or `log`."""
        return "log" if isinstance(self.probe.feed, Log) else self.probe.feed.url


@dataclass(frozen=True, slots=True)
class Examination:
    """`error` and `fault` say why the engine could not be read; then `plan` is None and all is unknown."""

    kind: Kind | None = None
    evidence: str | None = None  # how the kind was told, when it was detected
    looks_like: Kind | None = None  # another kind than the one that was given
    plan: Plan | None = None
    snapshot: Snapshot = field(default_factory=Snapshot)
    active: tuple[Active, ...] = ()
    routes: Mapping[str, bool | None] = field(default_factory=lambda: dict.fromkeys(ROUTES))
    advice: tuple[str, ...] = ()
    busy: tuple[str, ...] = ()  # paths that did not answer in time
    error: str | None = None
    fault: Fault | None = None

    @property
    def engine_seen(self) -> bool:
        """Something that may be an engine is there: it was told, or it loads, wants a key or is busy."""
        return self.kind is not None or self.fault in (Fault.LOADING, Fault.DENIED, Fault.TIMEOUT)

    @property
    def dropped(self) -> Mapping[str, str]:
        return self.plan.dropped if self.plan else {}


async def examine(
    tape: Tape,
    kind: Kind | None,
    own: Sequence[Probe] = (),
    log: Sequence[bytes] | None = None,
    capacity: int | None = None,
    recipes: Mapping[Kind, Recipe] = RECIPES,
) -> Examination:
    """Never raises. `kind` None: told from what answers.

    `own` are the operator's probes, `log` the lines of its log with the oldest first, `capacity` what the
    operator says it works on at a time: advice does not ask for what was said already.
    """
    evidence = None
    if kind is None:
        try:
            found = await detect(tape.get, recipes)
        except Undetected as e:
            return Examination(busy=_busy(tape), error=str(e), fault=e.fault)
        kind, evidence = found.kind, found.evidence
    recipe = recipes[kind]
    try:
        plan, snapshot = await resolve(tape.get, recipe, own, has_log=log is not None)
    except Unreachable as e:
        other = None if evidence else await _other(tape, kind, recipes, e.fault)
        return Examination(kind, evidence, other, busy=_busy(tape), error=str(e), fault=e.fault)
    active, snapshot = _read_all(plan, snapshot, tape.bodies, log or ())
    routes = await _routes(tape, recipe)
    return Examination(
        kind=kind,
        evidence=evidence,
        looks_like=None if evidence else await _other(tape, kind, recipes, None),
        plan=plan,
        snapshot=snapshot,
        active=active,
        routes=routes,
        advice=tuple(recipe.advice(Findings(_told(snapshot, capacity), plan.dropped, routes, tape.bodies))),
        busy=_busy(tape),
    )


def _told(snapshot: Snapshot, capacity: int | None) -> Snapshot:
    """What is known with the operator's word for the capacity, where the engine does not say."""
    if capacity is None or Signal.CAPACITY in snapshot.source:
        return snapshot
    load = {
        **snapshot.load,
        WHOLE_BACKEND: replace(snapshot.load.get(WHOLE_BACKEND, Load()), capacity=capacity),
    }
    return replace(snapshot, load=load, source={**snapshot.source, Signal.CAPACITY: "config"})


def _busy(tape: Tape) -> tuple[str, ...]:
    return tuple(path for path, fault in tape.faults.items() if fault is Fault.TIMEOUT)


async def _other(tape: Tape, given: Kind, recipes: Mapping[Kind, Recipe], fault: Fault | None) -> Kind | None:
    """The kind that it looks like when that is another; the generic one says nothing against a given kind."""
    if fault not in (None, Fault.BROKEN) or _busy(tape):
        return None
    try:
        found = (await detect(tape.get, recipes)).kind
    except Undetected:
        return None
    return None if found in (given, "openai") else found


async def _routes(tape: Tape, recipe: Recipe) -> dict[str, bool | None]:
    routes: dict[str, bool | None] = dict.fromkeys(ROUTES)
    if recipe.sleep is not None:
        said = tape.bodies.get(recipe.sleep.path.url)
        if said is None or recipe.sleep.asleep(said):
            return routes
    for route in ROUTES:
        if _busy(tape):
            return routes
        try:
            routes[route] = served(await tape.post(route))
        except FetchError as e:
            if e.fault is Fault.REFUSED:
                return routes
    return routes


# -- values ------------------------------------------------------------------------------------


def _read_all(
    plan: Plan, snapshot: Snapshot, bodies: Mapping[str, bytes], log: Iterable[bytes]
) -> tuple[tuple[Active, ...], Snapshot]:
    """Each probe of the plan with its value, and the snapshot with what the log says."""
    said = read_log(plan.log_probes, log)
    active = tuple(
        Active(p, said.get(p.name) if isinstance(p.feed, Log) else _reading(p, bodies.get(p.feed.url)))
        for p in plan.active
    )
    known = [(a.probe, a.reading) for a in active if a.reading is not None]
    return active, merge(known) if said else snapshot


def _reading(probe: Probe, body: bytes | None) -> Reading | None:
    try:
        return None if body is None else read(probe, body)
    except ProbeError:
        return None


def read_log(probes: Sequence[Probe], lines: Iterable[bytes]) -> dict[str, Reading]:
    """What each log probe knows after these lines: of each model, what the last matching line said. Pure."""
    known: dict[str, Reading] = {}
    for line in lines if probes else ():
        for probe in probes:
            reading = _reading(probe, line)
            if reading:
                known[probe.name] = {**known.get(probe.name, {}), **reading}
    return known
