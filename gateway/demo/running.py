"""Engines that run on this machine already, for where llama.cpp's package does not exist."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MEND = (
    "No engine answers on this machine's well-known ports. Start one and try again, for example Ollama "
    "(`ollama serve`, then `ollama pull smollm2:135m`) or llama.cpp (`llama-server -m model.gguf --metrics`)."
)


class NothingFoundError(Exception):
    """No engine answers here. The message says what to do."""


@dataclass(frozen=True, slots=True)
class Found:
    url: str
    title: str


def engines_running_here() -> Sequence[Found]:
    """Engines on the loopback's well-known ports. Raises NothingFoundError."""
    raise NothingFoundError(MEND)
