"""The series of one gateway: counts the requests and background rounds it is told of, and shows its page.

Labels come from sets that the config and the engines set: names that only a client says never make a series.
"""

from __future__ import annotations

import asyncio
import platform
import tomllib
from collections.abc import Awaitable, Callable, Iterator
from importlib.metadata import version
from pathlib import Path

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.asgi import Scope, Send
from gateway.fleet import rounds
from gateway.fleet.fleet import Fleet
from gateway.fleet.target import Target
from gateway.metrics.live import GAUGES, Live
from gateway.metrics.page import CONTENT_TYPE, write
from gateway.metrics.series import Counts, Gauges, Times
from gateway.proxy import decisions
from gateway.proxy.answer import Answer
from gateway.proxy.apis import OPENAI
from gateway.proxy.done import Done
from gateway.proxy.feedback import ttft_s
from gateway.proxy.refusals import Refusal
from gateway.proxy.routes import only
from gateway.proxy.serving import native, twin
from gateway.routing.prefix import Outcome, Source
from gateway.routing.scheduler import Scheduler

OTHER = "other"
"""The model of requests for one that no backend lists."""
MODELS = 1000
"""Models that get series of their own. An engine could list ever new ones."""

CLIENT_LEFT, UNFORESEEN = "499", "500"

PREDICTIONS = (Outcome.HIT, Outcome.WRONG, Outcome.UNKNOWN)

LAG_EVERY_S = 0.1

BUILD = Gauges("pharos_build_info", "Always 1: what runs.", ("version", "python"))

_FIRST_TOKEN = (0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1, 1.5, 2, 3, 5, 7.5, 10, 15, 30, 60, 120, 300)
_OWN = (0.00025, 0.0005, 0.00075, 0.001, 0.0015, 0.002, 0.003, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5)
_WAIT = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600)
_LAG = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)


class Metrics(Collector):
    """`finished`, `decided` and `lagged` count; calling it answers a request for the page."""

    def __init__(self, fleet: Fleet, scheduler: Scheduler[Target], now: Callable[[], float]) -> None:
        """`now`: the loop's clock, seconds."""
        self.fleet = fleet
        self.live = Live(fleet, scheduler, now)
        self.requests = Counts(
            "pharos_requests_total",
            "Requests that are over, by the status their client got.",
            ("key", "model", "status"),
        )
        self.tokens = Counts("pharos_tokens_total", "Tokens that engines reported.", ("key", "model", "type"))
        self.unmetered = Counts(
            "pharos_unmetered_requests_total", "Requests whose tokens no engine told.", ("key", "model")
        )
        self.ttft = Times(
            "pharos_ttft_seconds", "From the end of its wait for a place to a stream's first token.",
            ("model",), _FIRST_TOKEN,
        )  # fmt: skip
        self.own = Times(
            "pharos_overhead_seconds",
            "Pharos's own time before a request is first sent to an engine; waits for a place left out.",
            (), _OWN,
        )  # fmt: skip
        self.queued = Times(
            "pharos_queue_wait_seconds", "Time that requests waited for a place at an engine.",
            ("key",), _WAIT,
        )  # fmt: skip
        self.decisions = Counts(
            "pharos_decisions_total", "Which way requests and background rounds went.", ("stage", "outcome")
        )
        self.predictions = Counts(
            "pharos_prefix_predictions_total",
            "Cached prefixes that were expected, by how they were known and what came of it.",
            ("source", "outcome"),
        )
        self.lag = Times("pharos_event_loop_lag_seconds", "How late a timer of the event loop was.", (), _LAG)
        self.counted = (self.requests, self.tokens, self.unmetered, self.decisions, self.predictions)
        self.timed = (self.ttft, self.own, self.queued, self.lag)
        self.series = (*self.counted, *self.timed, *GAUGES, BUILD)
        self._build = _version(), platform.python_version()
        self._models: set[str] = set()
        self._page: asyncio.Task[bytes] | None = None
        self._begin()
        self.registry = CollectorRegistry()
        self.registry.register(self)
        ProcessCollector(registry=self.registry)

    def _begin(self) -> None:
        """What has not happened yet is 0."""
        for stage, kinds in decisions.STAGES.items():
            for decision in (d for kind in kinds for d in kind):
                self.decisions.add(stage, decision, by=0)
        for stage, kind in rounds.STAGES.items():
            for outcome in kind:
                self.decisions.add(stage, outcome, by=0)
        for outcome in PREDICTIONS:
            self.predictions.add(_source(Source.LOCAL), outcome, by=0)

    # -- what it is told -----------------------------------------------------------------------

    def finished(self, done: Done) -> None:
        """A request is over."""
        key, model = done.key or "", self._model(done)
        self.requests.add(key, model, _status(done))
        if done.spending is not None:
            self._spent(done, key, model)
        if (seconds := ttft_s(done)) is not None:
            self.ttft.observe(seconds, model)
        if done.own_s is not None:
            self.own.observe(done.own_s)
            self.queued.observe(done.queued_s or 0.0, key)
        for decision in done.decisions:
            self.decisions.add(decisions.stage_of(decision), decision)
            if done.prefix_source is not None and decision in PREDICTIONS:
                self.predictions.add(_source(done.prefix_source), decision)

    def decided(self, decision: rounds.Decision) -> None:
        """A background round went one way."""
        self.decisions.add(rounds.stage_of(decision), decision)

    def lagged(self, seconds: float) -> None:
        self.lag.observe(max(seconds, 0.0))

    def _spent(self, done: Done, key: str, model: str) -> None:
        assert done.spending is not None
        spent = done.spending
        counts = (
            ("prompt", spent.prompt_tokens),
            ("cached", spent.cached_tokens),
            ("completion", spent.completion_tokens),
        )
        for kind, tokens in counts:
            if tokens is not None:
                self.tokens.add(key, model, kind, by=tokens)
        self.unmetered.add(key, model, by=spent.counts().unmetered)

    def _model(self, done: Done) -> str:
        """The fleet's name of the model, where it has one."""
        if done.model is None:
            return ""
        name = self._listed(done.model) if done.target is None else done.target.model
        if name is None or (name not in self._models and len(self._models) >= MODELS):
            return OTHER
        self._models.add(name)
        return name

    def _listed(self, name: str) -> str | None:
        if name in self._models or self.fleet.lists(name):
            return name
        other = twin(name)
        if other is None or not any(other in b.models and native(b) for b in self.fleet.backends):
            return None
        return other

    # -- what it shows -------------------------------------------------------------------------

    def collect(self) -> Iterator[Metric]:
        """All series of ours; a family comes in pieces."""
        for series in (*self.counted, *self.timed):
            yield from series.pieces()
        yield from self.live.collect()
        yield from BUILD.pieces([(self._build, 1)])

    def describe(self) -> Iterator[Metric]:
        return (GaugeMetricFamily(s.name, s.what) for s in self.series)

    async def __call__(self, scope: Scope, send: Send) -> None:
        """Answer a request for the page."""
        answer = Answer(scope, send, "metrics", OPENAI)
        try:
            only(scope["method"], "GET", "HEAD")
        except Refusal as e:
            await answer.refuse(e)
            return
        await answer.whole(200, await self.page(), CONTENT_TYPE)

    async def page(self) -> bytes:
        """Those who ask while it is being written get the same page."""
        if self._page is None or self._page.done():
            self._page = asyncio.create_task(write(self.registry.collect()))
        return await asyncio.shield(self._page)

    async def watch_loop(
        self, now: Callable[[], float], sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        """For ever: see how late timers are, by the loop's clock."""
        while True:
            due = now() + LAG_EVERY_S
            await sleep(LAG_EVERY_S)
            self.lagged(now() - due)


def _status(done: Done) -> str:
    if done.outcome == "client_left":
        return CLIENT_LEFT
    if done.status is None:  # it ended in an error that nobody foresaw, or the gateway ended before it
        return UNFORESEEN
    return str(done.status) if 100 <= done.status <= 599 else OTHER


def _source(source: Source) -> str:
    return source.name.lower()


def _version() -> str:
    checkout = Path(__file__).parents[2] / "pyproject.toml"
    if not checkout.exists():
        return version("pharos")
    return str(tomllib.loads(checkout.read_text(encoding="utf-8"))["project"]["version"])
