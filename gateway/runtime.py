"""The gateway as a whole: builds the parts, starts, drains and stops them. The only wiring."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
import sys
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from typing import Any

import httpx
import msgspec
from django.conf import settings

from gateway.accounts.admission import Accounts
from gateway.accounts.days import zone_of
from gateway.asgi import Receive, Scope, Send
from gateway.config import BackendConfig, Config, Limits, config_path, load
from gateway.fleet.backend import Backend
from gateway.fleet.fleet import Fleet
from gateway.fleet.target import Target
from gateway.fleet.watch import Watch
from gateway.live_config import LiveConfig
from gateway.metrics.metrics import Metrics
from gateway.proxy.answer import Answer
from gateway.proxy.apis import OPENAI
from gateway.proxy.consumer import Consumer, Done
from gateway.proxy.decisions import stage_of
from gateway.proxy.feedback import sample_of, ttft_s
from gateway.proxy.headers import value
from gateway.proxy.refusals import Refusal
from gateway.proxy.routes import ROUTES
from gateway.proxy.upstream import Upstream, tls
from gateway.routing.policy import POLICIES
from gateway.routing.prefix import PrefixIndex
from gateway.routing.scheduler import Scheduler

log = logging.getLogger("pharos")
requests_log = logging.getLogger("pharos.requests")

INSTANCE = "x-pharos-instance"
"""Goes with every scrape, so that a backend whose address is our own is seen and not used."""

ITSELF = Refusal(508, "loop", "This address is the Pharos that asks: a backend must be an engine.")

FIRST_ROUND_S = 10.0
"""Readiness waits for each backend's first round, but not for ever: one that hangs is busy."""
TURN_S = 0.5
UNASKED = "it has not answered yet"

SWITCH_S = 0.0005
"""A thread that makes a page lets go of the interpreter this soon when the loop has work; Python's own 5 ms
would be felt in every token that passes meanwhile."""
REMEMBERED = 50
"""Finished requests that the pages can tell of."""
PAGES = ("/status", "/status/", "/usage", "/usage/", "/admin")
PAGES_BELOW = ("/admin/", "/static/admin/", "/static/pharos/")

LIVE = frozenset({"backends", "keys", "drain"})
"""Settings whose edits are used at once. The others are built into parts that run for the process's life."""


class Gateway:
    """An ASGI application for HTTP, with the hooks that the server calls around it."""

    def __init__(
        self,
        config: Config,
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        file: Path | None = None,
    ) -> None:
        self.config, self.now = config, now
        self.live_config = None if file is None else LiveConfig(file, self.reconfigure)
        self.needs_restart: tuple[str, ...] = ()  # settings whose edits are not in use
        self.fleet = Fleet()
        self.scheduler: Scheduler[Target] = Scheduler(
            self.fleet, POLICIES[config.policy], now, queue_limit=config.limits.queue
        )
        self.fleet.on_change.append(self.scheduler.kick)
        self.metrics = Metrics(self.fleet, self.scheduler, now)
        self.fleet.on_decision.append(self.metrics.decided)
        self.accounts = Accounts(
            config.keys, now=now, wall=wall, zone=zone_of(config.usage.timezone, settings.HOST_TZ),
            retention_days=config.usage.retention_days,
        )  # fmt: skip
        self.index = PrefixIndex()
        self.instance = secrets.token_hex(8)
        self.draining = self.ready = False
        self.in_flight = 0
        self.recent: deque[Done] = deque(maxlen=REMEMBERED)  # requests that are over, the last one last
        self._grace_until = 0.0
        self._idle = asyncio.Event()
        self._pools: dict[Backend, Upstream] = {}
        self._watches: dict[Backend, Watch] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._scraping: httpx.AsyncClient | None = None
        self.consumer = Consumer(
            self.fleet, self.scheduler, self._pools, config.limits, self._done, now,
            show_backend=config.show_backend, accounts=self.accounts, index=self.index, wall=wall,
        )  # fmt: skip

    @property
    def limits(self) -> Limits:
        return self.config.limits

    @property
    def listen(self) -> tuple[str, int]:
        return self.config.address

    # -- life ----------------------------------------------------------------------------------

    async def start(self) -> None:
        sys.setswitchinterval(SWITCH_S)
        self._warn_if_open()
        self._scraping = httpx.AsyncClient(
            trust_env=False, verify=tls(), limits=httpx.Limits(keepalive_expiry=4)
        )
        self.set_backends(self.config.backends)
        self._spawn(self._first_rounds())
        self._spawn(self._turns())
        self._spawn(self.metrics.watch_loop(self.now))
        if self.live_config is not None:
            self._spawn(self.live_config.run())

    def reconfigure(self, config: Config) -> None:
        """Use what can be used of an edited config without a restart, and say what cannot."""
        changed = [n for n in config.__struct_fields__ if getattr(config, n) != getattr(self.config, n)]
        live = {n: getattr(config, n) for n in changed if n in LIVE}
        self.needs_restart = tuple(n for n in changed if n not in LIVE)
        if "keys" in live:
            self.accounts.replace(config.keys)
        if "backends" in live:
            self.set_backends(config.backends)
        self.config = msgspec.structs.replace(self.config, **live)
        if "keys" in live:
            self._warn_if_open()
        log.info("the config was edited; in use now: %s", ", ".join(live) or "nothing new")
        if self.needs_restart:
            log.warning("the config was edited; needs a restart: %s", ", ".join(self.needs_restart))

    def _warn_if_open(self) -> None:
        if not self.accounts.keys:
            log.warning("there are no keys: everybody who reaches %s may use it", self.config.listen)

    def set_backends(self, configs: Iterable[BackendConfig]) -> None:
        """Use these from now on. Requests in flight at one that is not among them end as they would."""
        changes = self.fleet.set_backends(configs)
        for backend in changes.removed:
            log.info("backend %s is taken out: %d in flight there", backend.url, self._busy(backend))
            self._watches.pop(backend).stop()
        for backend in (*changes.added, *changes.changed):
            self._attend(backend)

    def _attend(self, backend: Backend) -> None:
        limits = self.config.limits
        if backend not in self._pools:
            self._pools[backend] = Upstream(backend.url, limits.first_byte, limits.idle)
        if (old := self._watches.pop(backend, None)) is not None:
            old.stop()
        assert self._scraping is not None, "start it first"
        self._watches[backend] = Watch(backend, self._scraping, {INSTANCE: self.instance}, self.now)

    async def _close_unused(self) -> None:
        for backend in [b for b in self._pools if b not in self._watches and not self._busy(b)]:
            await self._pools.pop(backend).close()

    def _busy(self, backend: Backend) -> int:
        return self.scheduler.in_flight_at(backend.url)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _turns(self) -> None:
        """A wait can be over by the clock alone: a model's patience with another, a reading grown stale."""
        while True:
            await asyncio.sleep(TURN_S)
            if self.scheduler.waiting:
                self.scheduler.kick()
            await self._close_unused()

    async def _first_rounds(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_ROUND_S):
                for watch in tuple(self._watches.values()):
                    await watch.visited.wait()
        self.ready = True
        up = [b.url for b in self.fleet.backends if b.up]
        log.info("ready; engines up: %s", ", ".join(up) or "none yet")

    def begin_drain(self) -> None:
        log.info(
            "draining: new requests for %g s more, then %d in flight", self.config.drain.grace, self.in_flight
        )
        self.draining, self._grace_until = True, self.now() + self.config.drain.grace

    async def grace_over(self) -> None:
        """Returns when new requests need no longer be taken."""
        await asyncio.sleep(max(0.0, self._grace_until - self.now()))

    async def drained(self) -> None:
        """Returns when the last request has ended after the grace, or the drain timeout has passed."""
        await self.grace_over()
        self.scheduler.close()
        try:
            async with asyncio.timeout(self.config.drain.timeout):
                while self.in_flight:
                    self._idle.clear()
                    await self._idle.wait()
        except TimeoutError:
            log.warning("the drain timeout is over with %d requests in flight", self.in_flight)

    async def stop(self) -> None:
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *(w.stop() for w in self._watches.values()), return_exceptions=True)
        for pool in self._pools.values():
            await pool.close()
        if self._scraping is not None:
            await self._scraping.aclose()

    # -- requests ------------------------------------------------------------------------------

    def routes(self, path: str) -> bool:
        """All but the pages is answered here: an unknown path gets a hint, not a page."""
        return path not in PAGES and not path.startswith(PAGES_BELOW)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/healthz":
            await self._health(scope, send)
            return
        if scope["path"] == "/metrics":
            await self.metrics(scope, send)
            return
        self.in_flight += 1
        try:
            if value(scope["headers"], INSTANCE.encode()) == self.instance.encode():
                await Answer(scope, send, "loop", OPENAI).refuse(ITSELF)
            else:
                await self.consumer(scope, receive, send)
        finally:
            self.in_flight -= 1
            if not self.in_flight:
                self._idle.set()

    @property
    def state(self) -> str:
        return "draining" if self.draining else "ok" if self.ready else "starting"

    async def _health(self, scope: Scope, send: Send) -> None:
        state = self.state
        body: Mapping[str, object] = {
            "status": state,
            "backends": {b.url: b.error or ("up" if b.up else UNASKED) for b in self._shown()},
        }
        await Answer(scope, send, "health", OPENAI).whole(
            200 if state == "ok" else 503, json.dumps(body).encode()
        )

    def _shown(self) -> list[Backend]:
        return [b for b in self.fleet.backends if b.up or not b.searched]

    # -- what a finished request tells ---------------------------------------------------------

    def _done(self, done: Done) -> None:
        if (sample := sample_of(done)) is not None:
            assert done.target is not None
            done.target.stats.learn(sample)
        if done.model is not None or done.path in ROUTES:
            self.recent.append(done)
        self.metrics.finished(done)
        _log_done(done)


def _log_done(done: Done) -> None:
    if not requests_log.isEnabledFor(logging.DEBUG):
        return
    decided = " ".join(f"{stage_of(d)}={d}" for d in done.decisions)
    requests_log.debug(
        "id=%s %s %r key=%r model=%r backend=%s reason=%r %s status=%s outcome=%s waited_s=%s "
        "first_byte_s=%s ttft_s=%s predicted_s=%s total_s=%.3f",
        done.request_id, done.method, done.path, done.key, done.model, done.backend, done.reason, decided,
        done.status, done.outcome, _ms(done.granted_s), _ms(done.first_byte_s), _ms(ttft_s(done)),
        _ms(done.predicted_s), done.total_s,
    )  # fmt: skip


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def build() -> Gateway:
    """The gateway of the config file. Raises ConfigError."""
    return Gateway(load(), file=config_path())
