"""Engines that run on this machine already, for where llama.cpp's package does not exist."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import httpx

from engines.detect import Undetected, detect
from engines.fetch import HttpFetch
from engines.recipes import RECIPES

PORTS = tuple(sorted({port for recipe in RECIPES.values() for port in recipe.ports}))
"""Where engines listen unless told otherwise."""

MEND = (
    "No engine answers on this machine's well-known ports ({ports}). Start one and try again, for example "
    "Ollama (`ollama serve`, and once `ollama pull smollm2:135m`) or llama.cpp "
    "(`llama-server -m model.gguf --metrics`)."
)


class NothingFoundError(Exception):
    """No engine answers here. The message says what to do."""


@dataclass(frozen=True, slots=True)
class Found:
    url: str
    title: str  # "Ollama"


def engines_running_here(ports: Iterable[int] = PORTS) -> Sequence[Found]:
    """Engines that answer on these ports of the loopback. Raises NothingFoundError when there is none."""
    ports = tuple(ports)
    found = [engine for engine in asyncio.run(_look(ports)) if engine is not None]
    if not found:
        raise NothingFoundError(MEND.format(ports=", ".join(map(str, ports))))
    return found


async def _look(ports: Iterable[int]) -> list[Found | None]:
    async with httpx.AsyncClient(trust_env=False) as client:
        return await asyncio.gather(*(_look_at(client, f"http://127.0.0.1:{port}") for port in ports))


async def _look_at(client: httpx.AsyncClient, url: str) -> Found | None:
    try:
        found = await detect(HttpFetch(client, url))
    except Undetected:
        return None
    return Found(url, RECIPES[found.kind].title)
