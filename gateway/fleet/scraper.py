"""Keeps one backend's view fresh: detect, resolve, then scrape on a timer, one GET at a time."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

from engines.detect import Undetected, detect
from engines.fetch import Fault, Fetch
from engines.plan import Plan, Round, Unreachable, resolve, scrape, stale_plan
from engines.recipes import RECIPES
from engines.recipes.base import Kind, Recipe
from engines.signals import Snapshot
from gateway.fleet.backend import Backend
from gateway.fleet.readings import FULL_INTERVAL_S
from gateway.fleet.rounds import Resolve, Scrape

log = logging.getLogger("pharos.fleet")

JITTER = 0.1  # of an interval, so that many instances do not ask at the same instant


class Scraper:
    """`round` is one visit; `run` repeats it for ever and outlives anything a visit can meet."""

    def __init__(
        self,
        backend: Backend,
        get: Fetch,
        now: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.backend, self.get, self.now, self.sleep, self.jitter = backend, get, now, sleep, jitter
        self.kind: Kind | None = backend.config.engine_kind
        self.plan: Plan | None = None
        self.resolved_at = self.full_at = 0.0
        self.visited = asyncio.Event()  # the first round has ended, well or not
        self._seen = False  # it has answered once
        self._logged: str | None = None  # why it is not in use, as long as it is not

    async def run(self) -> None:
        while True:
            try:
                await self.round()
            except Exception:
                log.exception("backend %s: a round failed in a way nobody foresaw", self.backend.url)
                self.backend.lost("its last round failed inside Pharos: see the log")
            self.visited.set()
            await self.sleep(self.interval_s * (1 + JITTER * self.jitter()))

    @property
    def interval_s(self) -> float:
        return (
            self.plan.recipe.load_interval_s
            if self.plan
            else FULL_INTERVAL_S
            if self.backend.searched
            else 1.0
        )

    async def round(self) -> None:
        try:
            if self.plan is None:
                await self._resolve()
            else:
                await self._scrape(self.plan)
        except Undetected as e:
            self._lost(str(e))
        except Unreachable as e:
            if e.fault is Fault.TIMEOUT and self.backend.up:
                return  # busy; its values grow old by themselves
            self._lost(str(e))
        else:
            self._answered()

    async def _resolve(self) -> None:
        try:
            recipe, plan, snapshot = await self._look()
        except (Undetected, Unreachable):
            self.backend.decided(Resolve.FAILED)
            raise
        same = self.plan is not None and [p.name for p in plan.active] == [p.name for p in self.plan.active]
        self.backend.decided(Resolve.SAME_PLAN if same else Resolve.NEW_PLAN)
        if not same:
            names = ", ".join(p.name for p in plan.active)
            log.info(
                "backend %s is %s %s; reads %s", self.backend.url, recipe.title, plan.version or "", names
            )
        self.plan, self.resolved_at, self.full_at = plan, self.now(), self.now()
        self.backend.resolved(plan, snapshot, self.now())

    async def _look(self) -> tuple[Recipe, Plan, Snapshot]:
        recipe, config = await self._recipe(), self.backend.config
        plan, snapshot = await resolve(self.get, recipe, config.probes, has_log=config.logs is not None)
        return recipe, plan, snapshot

    async def _recipe(self) -> Recipe:
        if self.kind is None:
            self.kind = (await detect(self.get)).kind
        return RECIPES[self.kind]

    async def _scrape(self, plan: Plan) -> None:
        due = self.now() - self.full_at >= FULL_INTERVAL_S - 0.5 * plan.recipe.load_interval_s
        full = due or not self.backend.up  # only an answer to a full round brings a backend back
        if not full and not plan.shows_load:
            return
        try:
            result = await scrape(self.get, plan, load_only=not full)
        except Unreachable:
            self.backend.decided(Scrape.UNREACHABLE)
            raise
        self.backend.decided(came_of(result, plan))
        if full:
            self.full_at = self.now()
            self.backend.scraped(result, plan, self.now())
        else:
            self.backend.load_read(result, plan, self.now())
        why = stale_plan(plan, result, self.now() - self.resolved_at)
        if why is not None:
            log.debug("backend %s: reading its probes anew (%s)", self.backend.url, why)
            await self._resolve()

    def _lost(self, why: str) -> None:
        """Everything is found out anew when it answers again: another engine may listen there by then."""
        self.plan, self.kind = None, self.backend.config.engine_kind
        self.backend.lost(why)
        if why != self._logged and (self._seen or not self.backend.searched):
            log.warning("backend %s is not in use: %s", self.backend.url, why)
            self._logged = why

    def _answered(self) -> None:
        if self._logged is not None:
            log.info("backend %s answers again", self.backend.url)
        self._seen, self._logged = True, None


def came_of(result: Round, plan: Plan) -> Scrape:
    if result.snapshot.version is not None and result.snapshot.version != plan.version:
        return Scrape.NEW_VERSION
    if result.busy:
        return Scrape.BUSY
    return Scrape.PROBE_FAILED if result.failed else Scrape.OK
