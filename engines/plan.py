"""What one backend answers: resolve a recipe against it, scrape what resolved, follow its log.

How this works. `resolve` asks every path of the recipe once and keeps, for each signal, the first
probe that reads a value: that is the plan. `scrape` asks only the plan's paths. Both are two steps:
fetch bodies (I/O, one GET at a time), then read and merge them (pure). The rules:

- a failing planned probe leaves its signal unknown for that round and is reported in `failed`;
- a timeout means that the engine is busy, not that it is down or that the plan is wrong;
- a path that would wake a sleeping engine is asked only after the sleep check said it is awake;
- a signal that no probe knows stays unknown.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from engines.fetch import Fault, Fetch, FetchError
from engines.probes import Log, Path, Probe, ProbeError, read
from engines.recipes.base import Recipe
from engines.signals import (
    LOAD_FIELDS,
    LOAD_SIGNALS,
    MODEL_FIELDS,
    WHOLE_BACKEND,
    Load,
    ModelInfo,
    Reading,
    Signal,
    Snapshot,
)

RESOLVE_EVERY_S = 600.0


class Unreachable(Exception):
    """No path of the backend gave an answer. `fault` says how."""

    def __init__(self, fault: Fault, message: str) -> None:
        super().__init__(message)
        self.fault = fault


@dataclass(frozen=True, slots=True)
class Plan:
    recipe: Recipe
    version: str | None
    # own probes first, then in the recipe's order; one per signal, log probes besides
    active: tuple[Probe, ...]
    dropped: Mapping[str, str]  # probe name -> why
    asleep: bool = False  # resolved while the engine slept: what would have woken it was left out

    @property
    def shows_load(self) -> bool:
        """Whether a light round has anything to ask."""
        return any(p.signal in LOAD_SIGNALS and isinstance(p.feed, Path) for p in self.active)

    @property
    def log_probes(self) -> tuple[Probe, ...]:
        return tuple(p for p in self.active if isinstance(p.feed, Log))


@dataclass(frozen=True, slots=True)
class Round:
    """What one scrape brought. `failed` names planned probes that gave nothing, with the reason."""

    snapshot: Snapshot
    failed: Mapping[str, str] = field(default_factory=dict)
    busy: bool = False  # a path timed out: the engine is working, its last values are growing old
    asleep: bool | None = None  # None: not looked at in this round


@dataclass(frozen=True, slots=True)
class Bodies:
    """One round's answers: each path once. A path that got none has its reason in `missing`."""

    found: Mapping[str, bytes]
    missing: Mapping[str, str]
    faults: Mapping[str, Fault]  # no answer at all
    statuses: Mapping[str, Fault] = field(default_factory=dict)  # answered, and not what was asked
    asleep: bool | None = None  # what the recipe's sleep check says, when its path was asked


async def fetch(get: Fetch, recipe: Recipe, paths: Iterable[Path]) -> Bodies:
    found: dict[str, bytes] = {}
    missing: dict[str, str] = {}
    faults: dict[str, Fault] = {}
    statuses: dict[str, Fault] = {}

    async def ask(path: Path) -> None:
        if path.url in found or path.url in missing:
            return
        try:
            answer = await get(path.url)
        except FetchError as e:
            missing[path.url], faults[path.url] = str(e), e.fault
        else:
            if answer.status == 200:
                found[path.url] = answer.body
            else:
                missing[path.url] = status_text(path.url, answer.status)
                if answer.status in STATUS_FAULTS:
                    statuses[path.url] = STATUS_FAULTS[answer.status]

    wanted = list(paths)
    if recipe.sleep and any(p.wakes for p in wanted):
        await ask(recipe.sleep.path)
    for path in wanted:
        if Fault.REFUSED in faults.values():
            missing.setdefault(path.url, f"{path.url} not asked: the backend refuses connections")
        elif path.wakes and recipe.sleep and _asleep(recipe, found) is not False:
            missing[path.url] = f"{path.url} not asked: it could wake the engine"
        else:
            await ask(path)
    return Bodies(found, missing, faults, statuses, _asleep(recipe, found))


def _asleep(recipe: Recipe, found: Mapping[str, bytes]) -> bool | None:
    check = found.get(recipe.sleep.path.url) if recipe.sleep else None
    return None if recipe.sleep is None or check is None else recipe.sleep.asleep(check)


STATUS_FAULTS = {401: Fault.DENIED, 403: Fault.DENIED, 503: Fault.LOADING}


def status_text(url: str, status: int) -> str:
    """What an answer that is no 200 means, in words."""
    hints = {401: "it wants an API key", 403: "forbidden", 404: "no such path", 503: "still loading"}
    hint = hints.get(status)
    return f"{url} answered {status}" + (f" ({hint})" if hint else "")


async def resolve(
    get: Fetch, recipe: Recipe, own: Sequence[Probe] = (), *, has_log: bool = False
) -> tuple[Plan, Snapshot]:
    """Run the whole recipe and the backend's own probes. Raises Unreachable when nothing answered."""
    probes = (*own, *recipe.probes)
    bodies = await fetch(get, recipe, _resolve_paths(probes))
    if not bodies.found:
        url, fault = next(iter((bodies.faults or bodies.statuses).items()), ("", Fault.BROKEN))
        first = next(iter(bodies.missing.values()), f"{recipe.title}: nothing to ask")
        raise Unreachable(fault, bodies.missing.get(url, first))
    return select(recipe, probes, bodies, has_log=has_log)


def select(
    recipe: Recipe, probes: Sequence[Probe], bodies: Bodies, *, has_log: bool
) -> tuple[Plan, Snapshot]:
    """The plan that these answers make, and the signals they carry. Pure."""
    version = _version(probes, bodies)
    active: list[Probe] = []
    readings: list[tuple[Probe, Reading]] = []
    dropped: dict[str, str] = {}
    filled: dict[Signal, str] = {}
    for probe in probes:
        if not _passes_guard(probe, version, bodies):
            dropped[probe.name] = f"version guard ({'version unknown' if version is None else version})"
        elif probe.signal in filled:
            dropped[probe.name] = f"redundant: {filled[probe.signal]} reads {probe.signal}"
        elif isinstance(probe.feed, Log):
            if has_log:
                active.append(probe)
            else:
                dropped[probe.name] = "no log feed"
        else:
            reading, why = _read(probe, bodies)
            if reading is None:
                dropped[probe.name] = why
            else:
                active.append(probe)
                readings.append((probe, reading))
                filled[probe.signal] = probe.name
    return Plan(recipe, version, tuple(active), dropped, bodies.asleep is True), merge(readings)


def _passes_guard(probe: Probe, version: str | None, bodies: Bodies) -> bool:
    if probe.when is None or (version is not None and probe.when(version)):
        return True
    seen = bodies.found.get(probe.witness.path.url) if probe.witness else None
    return probe.witness is not None and seen is not None and probe.witness.shows(seen)


def _version(probes: Iterable[Probe], bodies: Bodies) -> str | None:
    for probe in probes:
        if probe.signal is Signal.VERSION and probe.when is None:
            reading, _ = _read(probe, bodies)
            if reading is not None:
                return str(reading[WHOLE_BACKEND])
    return None


def _read(probe: Probe, bodies: Bodies) -> tuple[Reading | None, str]:
    if isinstance(probe.feed, Log):
        return None, "read from the log"
    body = bodies.found.get(probe.feed.url)
    if body is None:
        return None, bodies.missing.get(probe.feed.url, f"{probe.feed.url} was not asked")
    try:
        reading = read(probe, body)
    except ProbeError as e:
        return None, f"cannot be read: {e}"
    return reading, "" if reading is not None else f"{probe.feed.url} does not show it"


async def scrape(get: Fetch, plan: Plan, *, load_only: bool = False) -> Round:
    """One round of the plan. Raises Unreachable when the backend answered nothing at all."""
    probes = [
        p for p in plan.active if isinstance(p.feed, Path) and (not load_only or p.signal in LOAD_SIGNALS)
    ]
    bodies = await fetch(get, plan.recipe, _paths(probes))
    busy = Fault.TIMEOUT in bodies.faults.values()
    if probes and not bodies.found and not busy and bodies.faults:
        fault, message = next(iter(bodies.faults.values())), next(iter(bodies.missing.values()))
        raise Unreachable(fault, message)
    readings: list[tuple[Probe, Reading]] = []
    failed: dict[str, str] = {}
    for probe in probes:
        reading, why = _read(probe, bodies)
        if reading is not None:
            readings.append((probe, reading))
        elif not (bodies.asleep and isinstance(probe.feed, Path) and probe.feed.wakes):
            failed[probe.name] = why
    return Round(merge(readings), failed, busy, bodies.asleep)


def stale_plan(plan: Plan, last: Round, age_s: float) -> str | None:
    """Why the plan must be resolved again, or None. A busy engine is left in peace."""
    if last.snapshot.version is not None and last.snapshot.version != plan.version:
        return f"version changed from {plan.version} to {last.snapshot.version}"
    if plan.asleep and last.asleep is False:
        return "the engine woke up: what would have woken it can be asked now"
    if last.failed and not last.busy:
        return "; ".join(f"{name}: {why}" for name, why in last.failed.items())
    if age_s >= RESOLVE_EVERY_S and not last.busy:
        return f"{age_s:.0f} s old"
    return None


async def follow(plan: Plan, lines: AsyncIterator[bytes]) -> AsyncIterator[Snapshot]:
    """A snapshot for each log line that set a value, holding only that line's signals.

    A line that a probe cannot use sets nothing; no line ends the following.
    """
    async for line in lines:
        if (snapshot := heard(plan, line)) is not None:
            yield snapshot


def heard(plan: Plan, line: bytes) -> Snapshot | None:
    """What the plan's log probes read in one line. None: nothing."""
    readings: list[tuple[Probe, Reading]] = []
    for probe in plan.log_probes:
        try:
            reading = read(probe, line)
        except ProbeError:
            continue
        if reading:
            readings.append((probe, reading))
    return merge(readings) if readings else None


def _paths(probes: Iterable[Probe]) -> list[Path]:
    return list(dict.fromkeys(p.feed for p in probes if isinstance(p.feed, Path)))


def _resolve_paths(probes: Sequence[Probe]) -> list[Path]:
    return list(dict.fromkeys([*_paths(probes), *(p.witness.path for p in probes if p.witness)]))


# -- merge -------------------------------------------------------------------------------------


def merge(readings: Iterable[tuple[Probe, Reading]]) -> Snapshot:
    """One snapshot out of readings in order of trust: the first reading of a signal counts. Pure."""
    first: dict[Signal, tuple[Probe, Reading]] = {}
    for probe, reading in readings:
        first.setdefault(probe.signal, (probe, reading))
    models: dict[str, ModelInfo] | None = None
    if Signal.MODELS in first:
        models = {name: ModelInfo() for name in first[Signal.MODELS][1]}
    load: dict[str, Load] = {}
    for signal, (_, reading) in first.items():
        if signal in LOAD_FIELDS:
            for model, value in reading.items():
                load[model] = replace(load.get(model, Load()), **_field(LOAD_FIELDS[signal], value))
        elif signal in MODEL_FIELDS:
            models = _with_models(models, MODEL_FIELDS[signal], reading)
    version = first[Signal.VERSION][1].get(WHOLE_BACKEND) if Signal.VERSION in first else None
    snapshot = Snapshot(
        version=None if version is None else str(version),
        models=models,
        load=load,
        source={signal: probe.name for signal, (probe, _) in first.items()},
    )
    return _with_unlisted(snapshot, first.get(Signal.RESIDENCY))


def _field(name: str, value: Any) -> dict[str, Any]:  # noqa: ANN401 (a probe's constructor has typed the value)
    return {name: value}


def _with_models(
    models: dict[str, ModelInfo] | None, name: str, reading: Reading
) -> dict[str, ModelInfo] | None:
    """A reading for the whole backend is true of each of its models; one for a model, of that one."""
    known = dict(models or {})
    for model, value in reading.items():
        for each in list(known) if model == WHOLE_BACKEND else [model]:
            known[each] = replace(known.get(each, ModelInfo()), **_field(name, value))
    return known if known or models is not None else None


def _with_unlisted(snapshot: Snapshot, residency: tuple[Probe, Reading] | None) -> Snapshot:
    if residency is None or snapshot.models is None or residency[0].unlisted is None:
        return snapshot
    probe, reading = residency
    assert probe.unlisted is not None
    models = dict(snapshot.models)
    for name, info in snapshot.models.items():
        if name not in reading and WHOLE_BACKEND not in reading:
            models[name] = replace(info, state=probe.unlisted(name, snapshot))
    return replace(snapshot, models=models)
