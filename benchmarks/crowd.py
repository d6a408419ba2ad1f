"""A thousand streams at once: do all end whole, what they cost in memory, and how the loop fares."""

from __future__ import annotations

import asyncio

from benchmarks.client import Connection, Times, request
from benchmarks.parties import Parties
from benchmarks.report import Figure, figure

STREAMS = 1000
CHUNKS, GAP_MS = 30, 500  # two tokens a second each: two thousand chunks a second in all
ARRIVE_S = 6.0  # a request costs the gateway, the client and the engine 2 ms together


def measure(stage: Parties) -> list[Figure]:
    gateway = stage.gateway
    idle, before = gateway.resident_mib(), gateway.cpu_s()
    stage.watch_loop()
    times, broken, peak = asyncio.run(_crowd(stage, gateway.port))
    lag = stage.loop_seen().late_ms
    cpu = gateway.cpu_s()
    direct, _, _ = asyncio.run(_crowd(stage, stage.engine.port))
    busy = None if cpu is None or before is None else (cpu - before) / times.elapsed_s * 100
    note = f"{CHUNKS} chunks each, one every {GAP_MS} ms, all begun within {ARRIVE_S:g} s"
    if broken:
        note += f"; {len(broken)} failed, the first: {broken[0]}"
    return [
        Figure(f"{STREAMS} streams, ended whole", "", float(len(times.total)), note=note),
        figure("  their first byte", "ms", times.first_byte, direct.first_byte),
        figure("  their whole reply", "ms", times.total, direct.total),
        figure("  loop lag meanwhile", "ms", lag),
        Figure("  CPU of the gateway meanwhile", "%", busy),
        Figure("resident memory before them", "MiB", idle),
        Figure("resident memory at their peak", "MiB", peak),
    ]


async def _crowd(stage: Parties, port: int) -> tuple[Times, list[str], float | None]:
    """The times of those that ended whole, what became of the others, and the gateway's most memory."""
    times, broken, data = Times(), list[str](), request(port, 1024, f"?chunks={CHUNKS}&gap_ms={GAP_MS}")
    loop = asyncio.get_running_loop()
    began = loop.time()

    async def one() -> None:
        connection = Connection(port)
        try:
            await connection.ask(data, times)
        except OSError as e:
            broken.append(str(e))
        finally:
            connection.close()

    streams = []
    for number in range(STREAMS):
        streams.append(asyncio.ensure_future(one()))
        await asyncio.sleep(began + ARRIVE_S * (number + 1) / STREAMS - loop.time())
    await asyncio.sleep(1)
    peak = stage.gateway.resident_mib()
    await asyncio.gather(*streams)
    times.elapsed_s = loop.time() - began
    return times, broken, peak
