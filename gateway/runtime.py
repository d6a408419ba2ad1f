"""The gateway as a whole: builds the parts, starts, drains and stops them. The only wiring."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
import time
from collections.abc import Callable, Mapping

import httpx

from engines.fetch import HttpFetch
from gateway.asgi import Receive, Scope, Send
from gateway.config import Config, Limits, load
from gateway.fleet.backend import Backend
from gateway.fleet.fleet import Fleet
from gateway.fleet.scraper import Scraper
from gateway.proxy.answer import Answer
from gateway.proxy.apis import OPENAI
from gateway.proxy.consumer import Consumer, Done
from gateway.proxy.headers import value
from gateway.proxy.refusals import Refusal
from gateway.proxy.upstream import Upstream

log = logging.getLogger("pharos")
requests_log = logging.getLogger("pharos.requests")

INSTANCE = "x-pharos-instance"
"""Goes with every scrape, so that a backend whose address is our own is seen and not used."""

ITSELF = Refusal(508, "loop", "This address is the Pharos that asks: a backend must be an engine.")

FIRST_ROUND_S = 10.0
"""Readiness waits for each backend's first round, but not for ever: one that hangs is busy."""


class Gateway:
    """An ASGI application for HTTP, with the hooks that the server calls around it."""

    def __init__(self, config: Config, now: Callable[[], float] = time.monotonic) -> None:
        self.config, self.now = config, now
        self.backends = [Backend(b) for b in config.backends]
        self.fleet = Fleet(self.backends)
        self.instance = secrets.token_hex(8)
        self.draining = self.ready = False
        self.in_flight = 0
        self._grace_until = 0.0
        self._idle = asyncio.Event()
        self._pools: dict[Backend, Upstream] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._scrapers: list[Scraper] = []
        self._scraping: httpx.AsyncClient | None = None
        self.consumer = Consumer(
            self.fleet, self._pools, config.limits, _log_done, now, show_backend=config.show_backend
        )

    @property
    def limits(self) -> Limits:
        return self.config.limits

    @property
    def listen(self) -> tuple[str, int]:
        return self.config.address

    # -- life ----------------------------------------------------------------------------------

    async def start(self) -> None:
        limits = self.config.limits
        if self.config.policy != "least_load":
            log.warning("policy %s is not built yet: least_load is used", self.config.policy)
        self._scraping = httpx.AsyncClient(trust_env=False, limits=httpx.Limits(keepalive_expiry=4))
        for backend in self.backends:
            self._pools[backend] = Upstream(backend.url, limits.first_byte, limits.idle)
            headers = {INSTANCE: self.instance}
            if backend.api_key:
                headers["authorization"] = f"Bearer {backend.api_key}"
            scraper = Scraper(backend, HttpFetch(self._scraping, backend.url, headers), self.now)
            self._scrapers.append(scraper)
            self._tasks.append(asyncio.create_task(scraper.run()))
        self._tasks.append(asyncio.create_task(self._first_rounds()))

    async def _first_rounds(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_ROUND_S):
                for scraper in self._scrapers:
                    await scraper.visited.wait()
        self.ready = True
        up = [b.url for b in self.backends if b.up]
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
        try:
            async with asyncio.timeout(self.config.drain.timeout):
                while self.in_flight:
                    self._idle.clear()
                    await self._idle.wait()
        except TimeoutError:
            log.warning("the drain timeout is over with %d requests in flight", self.in_flight)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for pool in self._pools.values():
            await pool.close()
        if self._scraping is not None:
            await self._scraping.aclose()

    # -- requests ------------------------------------------------------------------------------

    def routes(self, _path: str) -> bool:
        """Everything is answered here: an unknown path gets a hint, not a page."""
        return True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/healthz":
            await self._health(scope, send)
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

    async def _health(self, scope: Scope, send: Send) -> None:
        state = "draining" if self.draining else "ok" if self.ready else "starting"
        body: Mapping[str, object] = {
            "status": state,
            "backends": {b.url: b.error or "up" for b in self._shown()},
        }
        await Answer(scope, send, "health", OPENAI).whole(
            200 if state == "ok" else 503, json.dumps(body).encode()
        )

    def _shown(self) -> list[Backend]:
        return [b for b in self.backends if b.up or not b.searched]


def _log_done(done: Done) -> None:
    requests_log.debug(
        "id=%s %s %r model=%r backend=%s reason=%r status=%s outcome=%s first_byte_s=%s total_s=%.3f",
        done.request_id, done.method, done.path, done.model, done.backend, done.reason, done.status,
        done.outcome, None if done.first_byte_s is None else round(done.first_byte_s, 6), done.total_s,
    )  # fmt: skip


def build() -> Gateway:
    """The gateway of the config file. Raises ConfigError."""
    return Gateway(load())
