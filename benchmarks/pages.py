"""What the pages cost: the snapshot, which holds the loop, the time to a page, how late the loop is then.

A year of 1,000 keys and 50 models. The days share their cells, so that they fit anywhere; to read them costs
the same, and what they would take is told by one day that shares nothing.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import sys
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

from benchmarks.report import Figure, figure

KEYS, MODELS, DAYS, BACKENDS = 1000, 50, 400, 64
ROUNDS = 200
BUDGET_MS = 5.0
TICK_S = 0.001


def measure() -> list[Figure]:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "pharos_site.settings")
    import django

    django.setup()
    return asyncio.run(_measure())


async def _measure() -> list[Figure]:
    from gateway.runtime import SWITCH_S
    from gateway.web import snapshot

    sys.setswitchinterval(SWITCH_S)
    gateway = _gateway()
    note = f"{BACKENDS} targets, {KEYS:,} keys; CPU time on the loop; budget {BUDGET_MS:g} ms"
    some = tuple(gateway.accounts.keys)[: snapshot.KEYS_A_STEP]
    gc.collect()
    gc.freeze()  # as the server does once it has started
    figures = [
        figure("snapshot for the pages", "ms", _times(lambda: snapshot.take(gateway)), note=note),
        figure(
            "snapshot of some keys",
            "ms",
            _times(lambda: snapshot._keys(some, gateway)),
            note="one step of the loop",
        ),
        figure("first count after a snapshot", "ms", _times(lambda: _count(gateway), gateway), note=note),
    ]
    figures.append(
        figure("loop late with nothing to do", "ms", await _idle(), note="what else the machine does")
    )
    for target in (
        "/status",
        "/usage",
        _year("&format=html"),
        _year("&format=csv"),
        _year("&format=json"),
        "/admin/keys/",
    ):
        figures += await _page(gateway, target)
    return [*figures, _memory()]


def _year(more: str) -> str:
    from datetime import UTC, datetime, timedelta

    first = datetime.now(UTC).date() - timedelta(days=DAYS - 1)
    return f"/usage?from={first}{more}"


def _times(work: Callable[[], object], fresh: Any = None) -> list[float]:  # noqa: ANN401  (a gateway)
    times = []
    for _ in range(ROUNDS):
        if fresh is not None:
            fresh.accounts.usage.history()
        began = time.thread_time()
        work()
        times.append((time.thread_time() - began) * 1000)
    return times


def _count(gateway: Any) -> None:  # noqa: ANN401  (a gateway)
    from gateway.accounts.usage import Counts

    gateway.accounts.usage.add(gateway.accounts.today, "key-1", "model-1", Counts(1, 10, 10))


async def _page(gateway: Any, target: str) -> list[Figure]:  # noqa: ANN401  (a gateway)
    """Milliseconds to the whole page, and by how much the loop was late meanwhile."""
    from django.core.asgi import get_asgi_application

    from gateway.web.desk import Pages

    pages = Pages(get_asgi_application())
    took: list[float] = []
    late: list[float] = []
    await _ask(pages, gateway, target)
    stop = asyncio.Event()
    watch = asyncio.create_task(_lateness(stop, late))
    for _ in range(3):
        began = time.perf_counter()
        size = await _ask(pages, gateway, target)
        took.append((time.perf_counter() - began) * 1000)
    stop.set()
    await watch
    name = target.partition("?")[0] + (" of a year" if "from=" in target else "")
    name += f" as {kind}" if (kind := target.partition("format=")[2]) else ""
    return [
        figure(f"page {name}", "ms", took, note=f"{size / 1e6:.1f} MB; budget 2 s"),
        figure(f"loop late during {name}", "ms", late, note=f"budget {BUDGET_MS:g} ms"),
    ]


async def _idle() -> list[float]:
    late: list[float] = []
    stop = asyncio.Event()
    watch = asyncio.create_task(_lateness(stop, late))
    await asyncio.sleep(2)
    stop.set()
    await watch
    return late


async def _lateness(stop: asyncio.Event, late: list[float]) -> None:
    while not stop.is_set():
        began = time.perf_counter()
        await asyncio.sleep(TICK_S)
        late.append(max(0.0, (time.perf_counter() - began - TICK_S) * 1000))


async def _ask(pages: Any, gateway: Any, target: str) -> int:  # noqa: ANN401  (an application, a gateway)
    """The size of the body. Raises ValueError when it is not a 200."""
    from gateway.asgi import GATEWAY

    path, _, query = target.partition("?")
    headers = [(b"host", b"localhost"), (b"accept", b"text/html"), (b"x-api-key", b"sk-0")]
    scope = {
        "type": "http", "http_version": "1.1", "method": "GET", "scheme": "http", "path": path,
        "raw_path": path.encode(), "query_string": query.encode(), "root_path": "", "headers": headers,
        "client": ["127.0.0.1", 1], "server": ["127.0.0.1", 1], GATEWAY: gateway,
    }  # fmt: skip
    size = status = 0
    given = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> Any:  # noqa: ANN401  (a message)
        if given:
            return given.pop()
        return await asyncio.Event().wait()

    async def send(message: Any) -> None:  # noqa: ANN401  (a message)
        nonlocal size, status
        status = message.get("status", status)
        size += len(message.get("body", b""))

    await pages(scope, receive, send)
    if status != 200:
        raise ValueError(f"{target} answered {status}")
    return size


# -- what is shown -----------------------------------------------------------------------------


def _gateway() -> Any:  # noqa: ANN401  (a gateway)
    from engines.plan import Plan
    from engines.recipes import RECIPES
    from engines.signals import Load, ModelInfo, Residency, Signal, Snapshot
    from gateway.accounts.keys import digest_of
    from gateway.config import BackendConfig, Config, Digest, KeyConfig
    from gateway.runtime import Gateway

    keys = [
        KeyConfig(
            name=f"key-{i}",
            sha256=Digest(digest_of(f"sk-{i}")),
            rpm=60,
            tokens_per_day=10**6,
            admin=i == 0,
        )
        for i in range(KEYS)
    ]
    backends = [BackendConfig(url=f"http://10.0.0.{i}:8000") for i in range(BACKENDS)]
    gateway = Gateway(Config(keys=keys, backends=backends))
    gateway.fleet.set_backends(backends)
    signals = (
        Signal.MODELS,
        Signal.RESIDENCY,
        Signal.RUNNING,
        Signal.WAITING,
        Signal.CAPACITY,
        Signal.KV_USAGE,
    )
    recipe = RECIPES["vllm"]
    for backend in gateway.fleet.backends:
        plan = Plan(recipe, "0.32.0", recipe.probes, {})
        models, load = {"m": ModelInfo(Residency.LOADED)}, {"m": Load(1, 0, 8, 0.5)}
        source = dict.fromkeys(signals, "x")
        backend.resolved(plan, Snapshot("0.32.0", models, load, source), gateway.now())
    for i in range(KEYS):
        gateway.accounts.admit([f"sk-{i}".encode()], ["m"], 10, 10)
    usage, today = gateway.accounts.usage, gateway.accounts.today
    day = _day()
    for number in range(today - DAYS + 1, today + 1):
        usage._days[number] = type(day)(day.cells, dict(day.by_key), dict(day.by_model))
    return gateway


def _day() -> Any:  # noqa: ANN401  (a day of usage)
    from gateway.accounts.usage import Counts, Day

    made, day = random.Random(1), Day()
    for k in range(KEYS):
        for m in range(MODELS):
            counts = Counts(
                made.randint(1, 99), made.randint(1000, 10**6), made.randint(1000, 10**5), 0, 0, 0
            )
            day.put((1, f"key-{k}", f"model-{m}"), counts)
    return day


def _memory() -> Figure:
    tracemalloc.start()
    kept = _day()
    size = tracemalloc.get_traced_memory()[0] / 2**20
    tracemalloc.stop()
    note = f"{KEYS * MODELS:,} cells, ids included; {DAYS} such days: {size * DAYS / 1024:.1f} GiB at most"
    return Figure("memory of a day's usage", "MiB", size if kept else None, note=note)
