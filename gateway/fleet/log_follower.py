"""Follows the log file of one engine, for what no endpoint of it shows.

Lines are matched in memory and dropped: an engine's log can hold prompts. The file is read in a thread, in
pieces, so that a log of many gigabytes neither holds the loop nor fills the memory.
"""

from __future__ import annotations

import asyncio
import logging
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path

from engines.plan import Plan, heard
from engines.signals import Snapshot
from gateway.fleet.backend import Backend
from gateway.fleet.rounds import LogFeed

log = logging.getLogger("pharos.fleet")

POLL_S = 1.0
LONGEST_PAUSE_S = 30.0
HEAD_BYTES = 1024 * 1024
TAIL_BYTES = 4 * 1024 * 1024
"""Of a log that is there already: how the engine was started is said in its first lines, how it is in its
last."""
PIECE_BYTES = 256 * 1024
LINE_BYTES = 64 * 1024  # a longer line is none that a probe knows


class LogFile:
    """Whole new lines of a file. One that was replaced or cut short is read from its start."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._which: tuple[int, int] | None = None  # device and inode
        self._at = 0
        self._rest = b""  # of a line whose end is still to come
        self._inside = False  # of a line whose beginning was not read

    def more(self) -> list[bytes]:
        """Some of the lines written since the last call; empty: there are none. Raises OSError."""
        info = self.path.stat()
        if not stat.S_ISREG(info.st_mode):
            raise OSError("not a file")  # opening a pipe or a device can wait for ever
        if self._which != (info.st_dev, info.st_ino) or info.st_size < self._at:
            self._which, self._at = (info.st_dev, info.st_ino), 0
            self._rest, self._inside = b"", False
        if self._at == HEAD_BYTES and info.st_size > HEAD_BYTES + TAIL_BYTES:
            self._at, self._rest, self._inside = info.st_size - TAIL_BYTES, b"", True
        size = min(PIECE_BYTES, HEAD_BYTES - self._at if self._at < HEAD_BYTES else PIECE_BYTES)
        with self.path.open("rb") as file:
            file.seek(self._at)
            piece = file.read(size)
        self._at += len(piece)
        *lines, rest = (self._rest + piece).split(b"\n")
        if self._inside and lines:
            del lines[0]
            self._inside = False
        if len(rest) > LINE_BYTES:
            rest, self._inside = b"", True
        self._rest = rest
        return lines


class LogFollower:
    """`run` for ever. While the file cannot be read, what it told is unknown."""

    def __init__(
        self,
        backend: Backend,
        path: Path,
        now: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.backend, self.now, self.sleep = backend, now, sleep
        self.file = LogFile(path)
        self._pause_s = POLL_S
        backend.log_up = False

    async def run(self) -> None:
        while True:
            if self.backend.view is None or not self.backend.view.plan.log_probes:
                await self.sleep(POLL_S)  # its first lines may matter: they are read once it is known how
            elif not await self.once(self.backend.view.plan):
                await self.sleep(self._pause_s)

    async def once(self, plan: Plan) -> bool:
        """Read some lines. False: there are no more now."""
        try:
            lines, snapshots = await asyncio.to_thread(self._read, plan)
        except OSError as e:
            self.backend.decided(LogFeed.ENDED if self.backend.log_up else LogFeed.OPEN_FAILED)
            self.backend.log_up = False
            if self._pause_s == POLL_S:
                why = e.strerror or e
                log.warning(
                    "backend %s: its log %s cannot be read (%s)", self.backend.url, self.file.path, why
                )
                self.backend.readings.log_ended()
                self.file = LogFile(self.file.path)
            self._pause_s = min(self._pause_s * 2, LONGEST_PAUSE_S)
            return False
        self._pause_s = POLL_S
        if not self.backend.log_up:
            self.backend.log_up = True
            self.backend.decided(LogFeed.CONNECTED)
        for snapshot in snapshots:
            self.backend.heard(snapshot, self.now())
        return lines > 0

    def _read(self, plan: Plan) -> tuple[int, list[Snapshot]]:
        lines = self.file.more()
        return len(lines), [s for line in lines if (s := heard(plan, line)) is not None]
