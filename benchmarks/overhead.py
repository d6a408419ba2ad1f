"""What a request through the gateway costs beyond the same request sent to the engine itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from benchmarks.client import Times, closed_loop, open_loop, request
from benchmarks.parties import Parties, Party
from benchmarks.report import Figure, figure, quantile

BLOCKS = 6  # everybody in turn, so that all meet the same neighbours
REQUESTS = {1: 120, 16: 480, 64: 960}  # connections: requests in a block
RATE, SECONDS = 40.0, 2.5  # of the open loop: the CPUs are idle most of the time, as with real users
CHUNKS, STREAMS = 1000, 8  # long streams beside short ones: the difference is what a chunk costs

Load = Callable[[Party], Awaitable[Times]]


@dataclass(slots=True)
class Compared:
    """The same load on everybody. `nginx` is empty where there is none."""

    direct: Times = field(default_factory=Times)
    nginx: Times = field(default_factory=Times)
    gateway: Times = field(default_factory=Times)

    def figure(self, name: str, of: Callable[[Times], list[float]], note: str = "") -> Figure:
        return figure(name, "ms", of(self.gateway), of(self.direct), note, of(self.nginx))

    def added(self, name: str, note: str) -> Figure:
        """To the first byte: p50 over the direct p50, p99 over the direct p99."""

        def over(times: Times, share: float) -> float | None:
            if not times.first_byte:
                return None
            return quantile(times.first_byte, share) - quantile(self.direct.first_byte, share)

        return Figure(
            name,
            "ms",
            over(self.gateway, 0.5),
            over(self.gateway, 0.99),
            nginx_p50=over(self.nginx, 0.5),
            nginx_p99=over(self.nginx, 0.99),
            note=note,
        )

    def cpu_ms(self, name: str, per: int = 1, note: str = "") -> Figure:
        """A request, or one of the `per` things in a request."""

        def each(times: Times) -> float | None:
            return times.cpu_s / len(times.total) / per * 1000 if times.cpu_s else None

        return Figure(name, "ms", each(self.gateway), nginx_p50=each(self.nginx), note=note)


def measure(stage: Parties) -> list[Figure]:
    stage.watch_loop()
    asyncio.run(asyncio.sleep(2))
    figures = [figure("loop lag, idle", "ms", stage.loop_seen().late_ms, note=LAG)]
    for connections, requests in REQUESTS.items():
        figures += _closed(stage, connections, requests)
    figures += _open(stage)
    figures.append(_chunks(stage))
    return figures


LAG = "a tick is due every ms in the gateway's process: how late it came; neighbours on the CPUs add to it"
CLOSED = (
    "each connection asks again at once, and client, engine and gateway share the CPUs: much of it is a queue"
)
CPU = "user and system time of the process; a request is 32 KiB and its reply 22 chunks"
BUDGET = "budget: 0.8 ms at p50, 2 ms at p99"


def _closed(stage: Parties, connections: int, requests: int) -> list[Figure]:
    data = {party.port: request(party.port) for party in stage.all()}
    compared = compare(stage, lambda p: closed_loop(p.port, connections, requests, data[p.port]))
    stage.watch_loop()
    asyncio.run(closed_loop(stage.gateway.port, connections, requests, data[stage.gateway.port]))
    lag = stage.loop_seen().late_ms
    where = f"{connections} connection" + ("s" if connections > 1 else "")
    note = BUDGET if connections == 1 else CLOSED
    return [
        compared.figure(f"first byte, {where}", lambda t: t.first_byte),
        compared.added(f"  added, {where}", note),
        Figure(
            f"requests, {where}",
            "1/s",
            _rate(compared.gateway),
            direct_p50=_rate(compared.direct),
            nginx_p50=_rate(compared.nginx),
            note=CLOSED,
        ),
        compared.cpu_ms(f"CPU per request, {where}", note=CPU),
        figure(f"loop lag, {where}", "ms", lag, note=LAG),
    ]


def _open(stage: Parties) -> list[Figure]:
    data = {party.port: request(party.port) for party in stage.all()}
    compared = compare(stage, lambda p: open_loop(p.port, RATE, SECONDS, data[p.port]))
    where = f"{RATE:g} a second"
    return [
        compared.figure(f"first byte, {where}", lambda t: t.first_byte),
        compared.added(f"  added, {where}", BUDGET),
        compared.cpu_ms(f"CPU per request, {where}", note=CPU),
    ]


def _chunks(stage: Parties) -> Figure:
    """Long streams, a chunk per write of the engine. What the request itself costs is lost in it."""
    data = {party.port: request(party.port, 1024, f"?chunks={CHUNKS}&gap_ms=1") for party in stage.all()}
    compared = compare(stage, lambda p: closed_loop(p.port, STREAMS, STREAMS, data[p.port]), blocks=2)
    note = f"{STREAMS} streams of {CHUNKS} chunks, one each ms at most"
    return compared.cpu_ms("CPU per streamed chunk", CHUNKS, note)


def compare(stage: Parties, load: Load, blocks: int = BLOCKS) -> Compared:
    """Everybody's turn `blocks` times, after one to warm up."""
    compared = Compared()
    turns = [(stage.engine, compared.direct), (stage.gateway, compared.gateway)]
    if stage.nginx is not None:
        turns.insert(1, (stage.nginx, compared.nginx))
    asyncio.run(_one(load, stage.gateway))
    for _ in range(blocks):
        for party, times in turns:
            before = party.cpu_s() or 0.0
            more = asyncio.run(_one(load, party))
            more.cpu_s = (party.cpu_s() or 0.0) - before
            times.add(more)
    return compared


async def _one(load: Load, party: Party) -> Times:
    return await load(party)


def _rate(times: Times) -> float | None:
    return len(times.total) / times.elapsed_s if times.total else None
