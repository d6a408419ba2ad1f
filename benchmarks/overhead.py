"""What a request through the gateway costs beyond the same request sent to the engine itself."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.client import Times, run
from benchmarks.report import Figure, figure, quantile
from gateway.demo.install import ROOT
from gateway.demo.processes import Child, free_port, wait_ready
from gateway.demo.stage import Gateway

BLOCKS = 6  # direct and through the gateway in turn, so that both meet the same neighbours
REQUESTS = {1: 250, 16: 640}  # connections: requests in a block


class StandIn(Child):
    """The stand-in engine as its own process."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        command = [sys.executable, "-m", "benchmarks.standin", str(self.port)]
        super().__init__("The stand-in engine", command, folder / "standin.log", cwd=ROOT)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def behind_the_gateway(folder: Path) -> Iterator[tuple[StandIn, Gateway]]:
    with StandIn(folder) as engine:
        wait_ready(engine, engine.port, "/v1/models", deadline_s=30)
        with Gateway(folder, [engine.url], port=free_port()) as gateway:
            gateway.wait_ready()
            yield engine, gateway


def measure(folder: Path) -> list[Figure]:
    with behind_the_gateway(folder) as (engine, gateway):
        pid = command_pid(gateway)
        idle = resident_mib(pid)
        figures: list[Figure] = []
        for connections, requests in REQUESTS.items():
            figures += asyncio.run(_compare(engine, gateway, pid, connections, requests))
        figures.append(Figure("resident memory, idle", "MiB", idle, note="one backend, before any request"))
        figures.append(Figure("resident memory, after the load above", "MiB", resident_mib(pid)))
    return figures


async def _compare(
    engine: StandIn, gateway: Gateway, pid: int | None, connections: int, requests: int
) -> list[Figure]:
    await run(gateway.port, connections, max(connections, requests // 4))  # warm up
    through, direct, cpu_s = Times(), Times(), 0.0
    for _ in range(BLOCKS):
        _add(direct, await run(engine.port, connections, requests))
        before = cpu_seconds(pid)
        _add(through, await run(gateway.port, connections, requests))
        cpu_s += cpu_seconds(pid) - before
    count = len(through.total)
    where = f"{connections} connection" + ("s" if connections > 1 else "")
    added = quantile(through.first_byte, 0.5) - quantile(direct.first_byte, 0.5)
    return [
        figure(
            f"first byte, {where}", "ms", through.first_byte, direct.first_byte, f"adds {added:.2f} ms at p50"
        ),
        figure(f"whole reply, {where}", "ms", through.total, direct.total),
        Figure(
            f"requests, {where}",
            "1/s",
            count / through.elapsed_s,
            direct_p50=len(direct.total) / direct.elapsed_s,
            note="mean of the run, each connection asking again at once; client and engine share the CPUs",
        ),
        Figure(
            f"CPU per request, {where}",
            "ms",
            cpu_s / count * 1000 if pid is not None else None,
            note="of the gateway's process, mean" if pid is not None else "read from /proc, so on Linux only",
        ),
    ]


def _add(times: Times, more: Times) -> None:
    times.first_byte += more.first_byte
    times.total += more.total
    times.elapsed_s += more.elapsed_s


# -- /proc -------------------------------------------------------------------------------------


def command_pid(child: Child) -> int | None:
    """The process that the leash holds; None where there is no /proc."""
    try:
        return int(Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()[0])
    except (OSError, IndexError):
        return None


def cpu_seconds(pid: int | None) -> float:
    """User and system time so far; 0 where there is no /proc."""
    if pid is None:
        return 0.0
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mib(pid: int | None) -> float | None:
    if pid is None:
        return None
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return None
