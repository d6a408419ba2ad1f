"""The client's side of a request: reading its body, noticing that it left, answering it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence

from gateway.asgi import CONNECTION, Receive, Scope, Send
from gateway.proxy.apis import ANTHROPIC, Family
from gateway.proxy.headers import Header
from gateway.proxy.refusals import Refusal


class ClientGone(Exception):
    """The client closed its connection: nobody is left to answer."""


class ReplyCut(Exception):
    """Raised to make a server without our extension close a reply that has begun, unfinished."""


class Answer:
    """The reply to one client: at most one start, and after it an end or a cut."""

    def __init__(self, scope: Scope, send: Send, request_id: str, family: Family) -> None:
        self._scope, self._send, self.request_id, self.family = scope, send, request_id, family
        self.started = False
        self.standing: Sequence[Header] = ()  # what the key has left: goes out with the reply

    async def start(self, status: int, headers: list[Header]) -> None:
        self.started = True
        own = [(b"x-request-id", self.request_id.encode()), (b"x-accel-buffering", b"no")]
        headers = [*headers, *self.standing, *own]
        if self.family is ANTHROPIC:  # where its clients look for it
            headers.append((b"request-id", self.request_id.encode()))
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def write(self, piece: bytes) -> None:
        await self._send({"type": "http.response.body", "body": piece, "more_body": True})

    async def end(self, body: bytes = b"") -> None:
        await self._send({"type": "http.response.body", "body": body})

    async def whole(
        self, status: int, body: bytes, kind: bytes = b"application/json", headers: Sequence[Header] = ()
    ) -> None:
        """A reply of our own. To a HEAD it is the headers alone, with the length of what a GET brings."""
        length = (b"content-length", str(len(body)).encode())
        await self.start(status, [(b"content-type", kind), length, *headers])
        await self.end(b"" if self._scope["method"] == "HEAD" else body)

    async def refuse(self, refusal: Refusal) -> None:
        """As a reply, or as the last event of a stream that began, which is then cut: may raise ReplyCut."""
        if self.started:
            await self.write(self.family.error_event(refusal))
            self.cut()
        else:
            await self.whole(refusal.status, self.family.error(refusal), headers=refusal.headers)

    def cut(self) -> None:
        """End a reply that has begun in a way that no client takes for a complete one. May raise ReplyCut."""
        connection = self._scope.get("extensions", {}).get(CONNECTION)
        if connection is None:
            raise ReplyCut
        connection["abort"]()


async def read_body(receive: Receive, limit: int) -> bytes:
    """Raises Refusal (413) and ClientGone. Our server hands over the whole body, bounded, in one message."""
    pieces: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        pieces.append(message.get("body", b""))
        size += len(pieces[-1])
        if size > limit:
            raise Refusal(
                413, "request_too_large", f"The body is over {limit} bytes, the limit of this gateway."
            )
        if not message.get("more_body", False):
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)


async def until_gone(receive: Receive, work: Awaitable[None]) -> None:
    """Do the work while the client is there. Raises ClientGone once the work is cancelled and has ended."""
    worker = asyncio.current_task()
    assert worker is not None

    def leave(watch: asyncio.Task[None]) -> None:
        if not watch.cancelled():
            worker.cancel()

    watch = asyncio.ensure_future(_disconnect(receive))
    watch.add_done_callback(leave)
    try:
        await work
    except asyncio.CancelledError:
        if not watch.done() or worker.uncancel():
            raise  # somebody else ends us too
        raise ClientGone from None
    finally:
        watch.remove_done_callback(leave)
        watch.cancel()


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
