"""Watches the config file, so that an edit is in use seconds later and a mistake in it changes nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

from gateway.config import Config, load
from gateway.config_source import ConfigError

log = logging.getLogger("pharos.config")

LOOK_S = 2.0

Mark = tuple[int, int, int]
"""Of a file as it is now: modification time (ns), size, inode."""


class LiveConfig:
    """Hands every new config of `path` to `apply`. Reading is done in a thread: YAML can take a second."""

    def __init__(
        self,
        path: Path,
        apply: Callable[[Config], None],
        read: Callable[[Path], Config] = load,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.path, self.apply, self.read, self.sleep = path, apply, read, sleep
        self.error: str | None = None  # why the file as it stands is not in use, for people
        self._seen = mark(path)

    async def run(self) -> None:
        while True:
            await self.sleep(LOOK_S)
            await self.look()

    async def look(self) -> None:
        now = await asyncio.to_thread(mark, self.path)
        if now == self._seen:
            return
        self._seen = now
        try:
            if now is None:
                raise ConfigError(f"{self.path}: the file is gone")
            config = await asyncio.to_thread(self.read, self.path)
        except ConfigError as e:
            self.error = str(e)
            log.error("the config as it was stays in use: %s", e)
        else:
            self.error = None
            self.apply(config)


def mark(path: Path) -> Mark | None:
    """None: there is no such file, or it cannot be looked at."""
    try:
        info = path.stat()
    except OSError:
        return None
    return info.st_mtime_ns, info.st_size, info.st_ino
