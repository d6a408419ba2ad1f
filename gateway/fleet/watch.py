"""All that watches one backend while it is in use: its scraper, and the follower of its log if it has one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import httpx

from engines.fetch import HttpFetch
from gateway.fleet.backend import Backend
from gateway.fleet.log_follower import LogFollower
from gateway.fleet.scraper import Scraper


class Watch:
    """Begins when it is made. `headers` go with every question to the backend."""

    def __init__(
        self,
        backend: Backend,
        client: httpx.AsyncClient,
        headers: Mapping[str, str],
        now: Callable[[], float],
    ) -> None:
        sent = dict(headers)
        if backend.api_key:
            sent["authorization"] = f"Bearer {backend.api_key}"
        scraper = Scraper(backend, HttpFetch(client, backend.url, sent), now)
        self.visited = scraper.visited  # set when its first round is over, well or not
        self._tasks = [asyncio.create_task(scraper.run())]
        if backend.config.log_path is not None:
            follower = LogFollower(backend, Path(backend.config.log_path), now)
            self._tasks.append(asyncio.create_task(follower.run()))

    def stop(self) -> Awaitable[object]:
        """Ends it at once; what is returned can be awaited to see it gone."""
        for task in self._tasks:
            task.cancel()
        return asyncio.gather(*self._tasks, return_exceptions=True)
