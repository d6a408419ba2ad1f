"""A body of 20 MiB beside small requests: how long it holds the gateway's loop, what the others feel."""

from __future__ import annotations

import asyncio
import base64
import json
import os

from benchmarks.client import Connection, Times, open_loop, request
from benchmarks.overhead import Compared, compare
from benchmarks.parties import Parties, Party
from benchmarks.report import Figure, figure
from benchmarks.standin import MODEL

MIB = 1 << 20
BIG = 20 * MIB
BIG_BODIES = 12  # each shape
RATE, PER_BODY_S = 40.0, 0.5  # of the small requests

LATE = "the latest tick beside each of the bodies; what neighbours on the CPUs take is in it"
BUDGET = "the most beside each of the bodies, budget 5 ms; on a busy machine others' time counts as ours"


def measure(stage: Parties) -> list[Figure]:
    figures = []
    for name, content in shapes().items():
        data = _request(stage.gateway.port, content)
        held = [_held(stage, data) for _ in range(BIG_BODIES)]
        figures.append(figure(f"loop late, 20 MiB, {name}", "ms", [late for late, _ in held], note=LATE))
        cpu = [cpu for _, cpu in held]
        note = f"{BUDGET}; the least of {BIG_BODIES}, what the work itself takes: {min(cpu):.1f} ms"
        figures.append(figure("  held: CPU time between two ticks", "ms", cpu, note=note))
    figures.append(_beside(stage, "one image"))
    return figures


def shapes() -> dict[str, object]:
    """What makes a body large: pictures, long texts, long conversations."""
    image = "data:image/png;base64," + base64.b64encode(os.urandom(BIG * 3 // 4)).decode()
    line = 'def f(x):\n    return "ü" + x\n'
    return {
        "one image": [
            {"type": "text", "text": "What is it?"},
            {"type": "image_url", "image_url": {"url": image}},
        ],
        "one text": line * (BIG // len(json.dumps(line))),
        "10,000 messages": [line * 50] * 10_000,
    }


def _request(port: int, content: object) -> bytes:
    contents = content if isinstance(content, list) and isinstance(content[0], str) else [content]
    messages = [{"role": "user", "content": one} for one in contents]
    body = json.dumps({"model": MODEL, "stream": True, "messages": messages}).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _held(stage: Parties, data: bytes) -> tuple[float, float]:
    stage.watch_loop()
    asyncio.run(_send(stage.gateway, data))
    seen = stage.loop_seen()
    return max(seen.late_ms), max(seen.cpu_ms)


async def _send(party: Party, data: bytes) -> Times:
    times, connection = Times(), Connection(party.port)
    await connection.ask(data, times)
    connection.close()
    return times


def _beside(stage: Parties, shape: str) -> Figure:
    content = shapes()[shape]
    small = {party.port: request(party.port) for party in stage.all()}
    big = {party.port: _request(party.port, content) for party in stage.all()}

    async def load(party: Party) -> Times:
        asking = asyncio.ensure_future(open_loop(party.port, RATE, 4 * PER_BODY_S, small[party.port]))
        for _ in range(4):
            await _send(party, big[party.port])
            await asyncio.sleep(PER_BODY_S / 2)
        return await asking

    compared: Compared = compare(stage, load, blocks=4)
    note = f"{RATE:g} requests of 32 KiB a second while bodies of 20 MiB come; those hold the client too"
    return compared.figure("first byte beside 20 MiB", lambda t: t.first_byte, note)
