"""Child processes that end with us, whatever ends us, and whose last words are kept for the error message."""

from __future__ import annotations

import http.client
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

_LEASH = Path(__file__).with_name("leash.py")
_POLL_S = 0.05
_LOG_TAIL_LINES = 8


class StartError(Exception):
    """A process did not come up. The message says which, why, and the last lines of its log."""


def free_port(preferred: int | None = None) -> int:
    """A TCP port of the loopback that nobody listens on; `preferred` when it is free."""
    for port in (preferred, 0) if preferred else (0,):
        with socket.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port in TIME_WAIT counts as free
            try:
                s.bind(("127.0.0.1", port or 0))
            except OSError:
                continue
            return int(s.getsockname()[1])
    raise StartError("no TCP port is free on 127.0.0.1")


class Child:
    """A command that runs from construction until `stop()`, or until this process is gone.

    Its output goes to the file `log`, its environment is `env` (None: ours). `grace_s` is how long it
    has between SIGTERM and SIGKILL.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        grace_s: float = 3.0,
    ) -> None:
        self.name = name
        self.log = log
        self._grace_s = grace_s
        self.started = time.monotonic()
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_LEASH), str(grace_s), *command],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=out,
                env=env,
                cwd=cwd,
                start_new_session=True,  # Ctrl-C is ours to answer, not the child's
            )

    @property
    def pid(self) -> int:
        """Of the leash, whose only child is the command."""
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """None while it runs; 128 + the signal's number when a signal ended it."""
        return self._process.poll()

    def last_words(self) -> str:
        with self.log.open(encoding="utf-8", errors="replace") as lines:
            return "".join(f"    {line.rstrip()}\n" for line in deque(lines, _LOG_TAIL_LINES))

    def stop(self) -> None:
        """End it and all it started. Returns once they are gone. A second call does nothing."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(self._grace_s + 5.0)
        except subprocess.TimeoutExpired:  # the leash itself is stuck
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def status_of(port: int, path: str, timeout_s: float = 1.0) -> int | None:
    """The status that GET `path` on this loopback port answers, or None when nothing does."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def wait_ready(
    child: Child, port: int, path: str, *, deadline_s: float, tick: Callable[[], None] = lambda: None
) -> float:
    """Wait until GET `path` answers 200. Returns the seconds since the start. Raises StartError.

    `tick` is called again and again while waiting.
    """
    while (waited := time.monotonic() - child.started) < deadline_s:
        if not child.running:
            raise StartError(
                f"{child.name} ended while starting (exit code {child.exit_code}). Its last lines:\n"
                f"{child.last_words()}    The whole log: {child.log}"
            )
        if status_of(port, path) == 200:
            return time.monotonic() - child.started
        tick()
        time.sleep(_POLL_S)
    raise StartError(
        f"{child.name} was not ready after {waited:.0f} s. Its last lines:\n"
        f"{child.last_words()}    The whole log: {child.log}"
    )
