"""`kind: auto`: what answers at an address.

How this works. The recipes' fingerprints are asked one path at a time, in the order of `RECIPES`: the first
kind whose fingerprint reads whole is the kind; a probe that reads nothing ends that kind's turn. A
`Server:` header that only one engine sends decides at once, also while that engine is loading and answers
503 to everything. The rules:

- no path is asked that loads, wakes or consumes: fingerprints never use /metrics (TensorRT-LLM's
  empties a queue as it is read) nor any path that a recipe marks with `wakes`;
- status 200 proves nothing (LM Studio answers it to every path): a fingerprint must read a value;
- a guess is worse than none. The generic kind is named only when every other fingerprint was really
  answered: after a timeout, a 503 or a 401 detection fails and says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from engines.fetch import Answer, Fault, Fetch, FetchError
from engines.plan import STATUS_FAULTS, status_text
from engines.probes import Path, Probe, ProbeError, read
from engines.recipes import RECIPES
from engines.recipes.base import Kind, Recipe

MAX_TIMEOUTS = 2
"""Paths that may time out before the rest is left alone: a busy engine wants no queue of GETs."""


class Undetected(Exception):
    """The kind cannot be told now. `fault` says whether to wait, to give a key, or to look at the address."""

    def __init__(self, fault: Fault, message: str) -> None:
        super().__init__(message)
        self.fault = fault


@dataclass(frozen=True, slots=True)
class Detected:
    kind: Kind
    evidence: str  # in words, for the doctor


@dataclass
class _Visit:
    """What has been asked so far: each path once."""

    get: Fetch
    bodies: dict[str, bytes] = field(default_factory=dict)
    faults: dict[str, tuple[Fault, str]] = field(default_factory=dict)
    asked: set[str] = field(default_factory=set)

    async def ask(self, path: Path) -> Answer | None:
        if path.url in self.asked:
            return None
        self.asked.add(path.url)
        try:
            answer = await self.get(path.url)
        except FetchError as e:
            self.faults[path.url] = (e.fault, str(e))
            self._give_up(e)
            return None
        if answer.status == 200:
            self.bodies[path.url] = answer.body
        elif answer.status in STATUS_FAULTS:
            self.faults[path.url] = (STATUS_FAULTS[answer.status], status_text(path.url, answer.status))
        return answer

    def _give_up(self, last: FetchError) -> None:
        timeouts = sum(fault is Fault.TIMEOUT for fault, _ in self.faults.values())
        if last.fault is Fault.REFUSED or timeouts >= MAX_TIMEOUTS:
            raise self.undetected()

    def undetected(self) -> Undetected:
        """The reason that says most about what to do."""
        for fault in (Fault.REFUSED, Fault.TIMEOUT, Fault.BROKEN, Fault.LOADING, Fault.DENIED):
            for found, message in self.faults.values():
                if found is fault:
                    return Undetected(fault, f"{message}: {_REASONS[fault]}")
        return Undetected(
            Fault.BROKEN,
            "it answers, but lists no models at /v1/models and looks like no engine known here: "
            "check the address",
        )

    def reads(self, probe: Probe) -> bool:
        body = self.bodies.get(probe.feed.url) if isinstance(probe.feed, Path) else None
        try:
            return body is not None and read(probe, body) is not None
        except ProbeError:
            return False


_REASONS = {
    Fault.REFUSED: "nothing listens there; is the engine running?",
    Fault.TIMEOUT: "busy, so the kind cannot be told now",
    Fault.BROKEN: "the kind cannot be told from a broken answer",
    Fault.LOADING: "still loading, so the kind cannot be told yet",
    Fault.DENIED: "the kind cannot be told without the key; give `api_key`, or `kind`, in the config",
}


async def detect(get: Fetch, recipes: Mapping[Kind, Recipe] = RECIPES) -> Detected:
    """The kind of the engine that `get` asks. Raises Undetected, with the reason."""
    visit = _Visit(get)
    headers = {r.server_header: r.kind for r in recipes.values() if r.server_header}
    for recipe in recipes.values():
        if recipe.generic and visit.faults:
            break
        for probe in recipe.fingerprint:
            answer = await visit.ask(probe.feed) if isinstance(probe.feed, Path) else None
            server = answer.headers.get("server") if answer else None
            if server in headers:
                return Detected(headers[server], f"its replies carry `Server: {server}`")
            if not visit.reads(probe):
                break
        else:
            return Detected(recipe.kind, _evidence(recipe))
    raise visit.undetected()


def _evidence(recipe: Recipe) -> str:
    paths = dict.fromkeys(p.feed.url for p in recipe.fingerprint if isinstance(p.feed, Path))
    return f"{' and '.join(paths)} answered as {recipe.title} does"
