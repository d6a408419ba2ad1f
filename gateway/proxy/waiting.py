"""Signs of life on a stream whose first byte is long in coming.

Node's HTTP client gives up after 300 s without a byte, and its users see a dead connection where there is a
queue or a load. A comment is no event: every SSE client passes over it. Newline-delimited JSON has no
comments (ollama-python and langchain-ollama fail on a blank line), so there is nothing to say there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


class Waiting:
    """Says something every `every_s` from `begin` to `end`. Costs a timer until the first time is due."""

    def __init__(self, say: Callable[[], Awaitable[None]], every_s: float) -> None:
        self._say, self._every_s = say, every_s
        self._timer: asyncio.TimerHandle | None = None
        self._saying: asyncio.Task[None] | None = None
        self._over = False

    def begin(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._every_s, self._due)

    def _due(self) -> None:
        self._saying = asyncio.ensure_future(self._once())

    async def _once(self) -> None:
        await self._say()
        if not self._over:
            self.begin()

    async def end(self) -> None:
        """Nothing is written after this returns. What is half written is let finish first."""
        self._stop()
        if self._saying is not None:
            saying, self._saying = self._saying, None
            await saying

    def close(self) -> None:
        """For when nobody listens any more."""
        self._stop()
        if self._saying is not None:
            self._saying.cancel()

    def _stop(self) -> None:
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def comment(phase: str, waited_s: float, estimate_s: float | None = None) -> bytes:
    """One SSE comment. `estimate_s`: until the first byte, from now; None is unknown."""
    about = "" if estimate_s is None else f", about {max(1, round(estimate_s))} s more"
    words = f"{phase}, {round(waited_s)} s so far{about}"
    return b": " + " ".join(words.split()).encode("utf-8", "replace") + b"\n\n"
