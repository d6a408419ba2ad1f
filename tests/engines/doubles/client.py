"""A client that sees the bytes: what came, and how it ended."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from engines.doubles import Double

SOON_S = 10.0
"""For what must come: far longer than it takes."""

HI = {"messages": [{"role": "user", "content": "Hi"}]}


@dataclass
class Came:
    status: int
    head: str
    body: bytes  # without the chunks' own bytes
    whole: bool  # ended as HTTP says, not by the connection alone

    def header(self, name: str) -> str | None:
        for line in self.head.split("\r\n")[1:]:
            key, _, value = line.partition(":")
            if key.lower() == name:
                return value.strip()
        return None

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Talk:
    """One connection to a double."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def ask(self, path: str, body: object = None, method: str | None = None) -> None:
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        verb = method or ("GET" if body is None else "POST")
        head = f"{verb} {path} HTTP/1.1\r\nHost: double\r\nContent-Length: {len(data)}\r\n\r\n"
        self.writer.write(head.encode() + data)
        await self.writer.drain()

    async def head(self) -> str:
        async with asyncio.timeout(SOON_S):
            return (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")

    async def rest(self, head: str) -> Came:
        came = Came(int(head.split(" ")[1]), head, b"", False)
        async with asyncio.timeout(SOON_S):
            length = came.header("content-length")
            if length is not None:
                came.body = await self._at_most(int(length))
                came.whole = len(came.body) == int(length)
            elif came.header("transfer-encoding") == "chunked":
                await self._chunks(came)
            else:
                came.body = await self.reader.read()
        return came

    async def _at_most(self, size: int) -> bytes:
        try:
            return await self.reader.readexactly(size)
        except asyncio.IncompleteReadError as e:
            return e.partial

    async def _chunks(self, came: Came) -> None:
        try:
            while size := int(await self.reader.readuntil(b"\r\n"), 16):
                came.body += await self.reader.readexactly(size)
                await self.reader.readexactly(2)
            await self.reader.readexactly(2)
            came.whole = True
        except asyncio.IncompleteReadError as e:
            came.body += e.partial

    async def chunk(self) -> bytes:
        async with asyncio.timeout(SOON_S):
            size = int(await self.reader.readuntil(b"\r\n"), 16)
            return (await self.reader.readexactly(size + 2))[:-2]

    async def came(self) -> Came:
        return await self.rest(await self.head())

    async def closed(self) -> bool:
        """Whether the peer ends the connection, and sends nothing before."""
        async with asyncio.timeout(SOON_S):
            try:
                return await self.reader.read(1) == b""
            except ConnectionError:
                return True

    async def silent(self, for_s: float = 0.2) -> bool:
        try:
            async with asyncio.timeout(for_s):
                await self.reader.read(1)
        except TimeoutError:
            return True
        return False

    def leave(self) -> None:
        self.writer.close()


@asynccontextmanager
async def talk(double: Double) -> AsyncIterator[Talk]:
    reader, writer = await asyncio.open_connection(*double.address)
    try:
        yield Talk(reader, writer)
    finally:
        writer.close()


async def ask(double: Double, path: str, body: object = None, method: str | None = None) -> Came:
    async with talk(double) as conversation:
        await conversation.ask(path, body, method)
        return await conversation.came()


async def chat(double: Double, **more: Any) -> Came:
    return await ask(double, "/v1/chat/completions", {"model": double.names[0], **HI, **more})


async def until(true: Any, within_s: float = SOON_S) -> None:
    async with asyncio.timeout(within_s):
        while not true():
            await asyncio.sleep(0.005)


def free(double: Double) -> bool:
    """Nothing is held any more: no slot, no place in the queue, no one waiting for the machine."""
    machine = double.machine
    return machine.running() == 0 and machine.waiting() == 0 and not double._waiters
