"""A stand-in for the gateway, served by the real process: `daphne tests.pharos_site.app:application`.

What it does is chosen by the path; `/debug/...` tells what the server still holds.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import time
import weakref
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

from django.core.asgi import get_asgi_application

from gateway.asgi import Receive, Scope, Send
from pharos_site.asgi import Application, serve_with_ours
from pharos_site.channel import Channel
from pharos_site.exchange import Exchange

seen: weakref.WeakSet[Exchange] = weakref.WeakSet()
connections: weakref.WeakSet[Channel] = weakref.WeakSet()
MIB = 1 << 20


@dataclass
class Limits:
    body: int = int(os.environ.get("TEST_BODY", str(32 * MIB)))
    write_stall: float = float(os.environ.get("TEST_STALL", "60"))


class StandIn:
    """Speaks the gateway's protocol; its grace and patience come from the environment."""

    def __init__(self) -> None:
        self.limits = Limits()
        self.listen = ("127.0.0.1", int(os.environ.get("TEST_LISTEN", "8090")))
        self.running = 0
        self.draining = False
        self.told: dict[str, float] = {}  # when a watcher was told that its client had gone
        self.kept: list[object] = []

    async def start(self) -> None:
        if reason := os.environ.get("TEST_FAIL"):
            raise OSError(reason)

    def begin_drain(self) -> None:
        self.draining = True

    async def grace_over(self) -> None:
        await asyncio.sleep(float(os.environ.get("TEST_GRACE", "0.5")))

    async def drained(self) -> None:
        deadline = time.monotonic() + float(os.environ.get("TEST_DRAIN", "20"))
        while self.running and time.monotonic() < deadline:
            await asyncio.sleep(0.02)

    async def stop(self) -> None:
        print("stopped", flush=True)  # noqa: T201  (the tests read it)

    def routes(self, path: str) -> bool:
        return not path.startswith("/django/")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = scope["path"].strip("/").replace("/", "_").replace("-", "_") or "echo"
        query = {k: v[0] for k, v in parse_qs(scope["query_string"].decode(), True).items()}
        self.running += 1
        try:
            await getattr(self, f"do_{name}", self.do_echo)(scope, receive, send, query)
        finally:
            self.running -= 1

    # -- replies ----------------------------------------------------------------------------------

    async def do_echo(self, scope: Scope, receive: Receive, send: Send, query: dict[str, str]) -> None:
        message = await receive()
        exchange = getattr(receive, "__self__", None)
        if isinstance(exchange, Exchange) and exchange.channel is not None:
            seen.add(exchange)
            connections.add(exchange.channel)
        await reply(
            send,
            {
                "method": scope["method"],
                "path": scope["path"],
                "raw_path": scope["raw_path"].decode("latin-1"),
                "query": scope["query_string"].decode(),
                "http_version": scope["http_version"],
                "headers": [[k.decode("latin-1"), v.decode("latin-1")] for k, v in scope["headers"]],
                "body": message["body"][:4096].decode("latin-1"),
                "size": len(message["body"]),
                "whole": not message["more_body"],
                "extensions": sorted(scope.get("extensions") or {}),
                "draining": self.draining,
            },
        )

    async def do_stream(self, scope: Scope, receive: Receive, send: Send, query: dict[str, str]) -> None:
        """`n` pieces of `size` bytes, `gap` seconds apart."""
        await receive()
        await start(send)
        for i in range(int(query.get("n", "5"))):
            piece = b"%06d " % i
            await send(body(piece + b"x" * (int(query.get("size", "8")) - len(piece)), more=True))
            if gap := float(query.get("gap", "0")):
                await asyncio.sleep(gap)
        await send(body(b""))

    async def do_watch(self, scope: Scope, receive: Receive, send: Send, query: dict[str, str]) -> None:
        """Says nothing more until its client leaves."""
        await receive()
        if "quiet" not in query:
            await start(send)
            await send(body(b"here", more=True))
        message = await receive()
        assert message["type"] == "http.disconnect"
        self.told[query["id"]] = time.time()
        if "answer" in query:
            await reply(send, {"late": True})

    async def do_told(self, scope: Scope, receive: Receive, send: Send, query: dict[str, str]) -> None:
        await reply(send, self.told.get(query["id"]))

    async def do_deaf(self, scope: Scope, receive: Receive, send: Send, query: dict[str, str]) -> None:
        """Cares for nothing for `s` seconds."""
        await asyncio.sleep(float(query.get("s", "1")))
        await reply(send, "at last")

    async def do_cut(self, scope: Scope, receive: Receive, send: Send, query: dict[str, str]) -> None:
        await receive()
        length = [(b"content-length", b"100")] if "length" in query else []
        await start(send, headers=length)
        await send(body(b"before the end", more=True))
        scope["extensions"]["pharos.connection"]["abort"]()
        await send(body(b"never seen"))

    # -- mistakes -----------------------------------------------------------------------------------

    async def do_raise(self, scope: Scope, receive: Receive, send: Send, query: dict[str, str]) -> None:
        if "late" in query:
            await start(send)
            await send(body(b"so far", more=True))
            await asyncio.sleep(0.05)
        raise KeyError("a mistake")

    async def do_return(self, scope: Scope, receive: Receive, send: Send, query: dict[str, str]) -> None:
        if "late" in query:
            await start(send)
            await send(body(b"so far", more=True))

    async def do_wrong_length(
        self, scope: Scope, receive: Receive, send: Send, query: dict[str, str]
    ) -> None:
        await start(send, headers=[(b"content-length", query["says"].encode())])
        await send(body(b"0123456789"))

    async def do_split(self, scope: Scope, receive: Receive, send: Send, query: dict[str, str]) -> None:
        await start(send, headers=[(b"x-a", b"b\r\nx-evil: yes")])
        await send(body(b""))

    async def do_empty(self, scope: Scope, receive: Receive, send: Send, query: dict[str, str]) -> None:
        await start(send, int(query.get("status", "204")))
        await send(body(b"not", more=True))
        await send(body(b" for you"))

    # -- what the server holds --------------------------------------------------------------------------

    async def do_debug_held(self, scope: Scope, receive: Receive, send: Send, query: dict[str, str]) -> None:
        server = receive.__self__.server  # type: ignore[attr-defined]
        await reply(
            send,
            {
                "exchanges": len(server.exchanges) - 1,
                "channels": len(server.factory.channels),
                "objects": len(seen),
                "connection_objects": len(connections),
                "running": self.running - 1,
                "frozen": gc.get_freeze_count(),
            },
        )

    async def do_debug_gc(self, scope: Scope, receive: Receive, send: Send, query: dict[str, str]) -> None:
        gc.collect()
        (gc.disable if query["on"] == "0" else gc.enable)()
        await reply(send, None)


async def start(send: Send, status: int = 200, headers: list[tuple[bytes, bytes]] | None = None) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers or []})


def body(data: bytes, more: bool = False) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": more}


async def reply(send: Send, value: object) -> None:
    data = json.dumps(value).encode()
    await start(send, headers=[(b"content-length", b"%d" % len(data))])
    await send(body(data))


application = Application(StandIn, get_asgi_application())
serve_with_ours()
