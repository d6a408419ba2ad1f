"""Prompts that engines compute now, as far as our own requests can tell. Pure.

An engine computes one prompt after another, or several at once and each of them slower: vLLM, SGLang and
llama.cpp share out the tokens of a step first come, first served. So a request that finds a free place still
waits for the prompts that were sent before it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class _Running:
    count: int = 0
    until: float = 0.0  # when the last of them should be done


class Prefills:
    """By the target's id. Costs the same for one prompt and for a thousand."""

    def __init__(self) -> None:
        self._running: dict[int, _Running] = {}  # no entry is none

    def begin(self, target: int, until: float) -> None:
        """A prompt is sent; `until` is when it should be done, those before it included."""
        running = self._running.setdefault(target, _Running())
        running.count += 1
        running.until = max(running.until, until)

    def end(self, target: int) -> None:
        """One of those begun is done, or its request is over."""
        running = self._running[target]
        running.count -= 1
        if not running.count:
            del self._running[target]

    def left_s(self, target: int, now: float) -> float:
        """Seconds until all should be done. One that takes longer than expected counts no more."""
        running = self._running.get(target)
        return 0.0 if running is None else max(running.until - now, 0.0)
