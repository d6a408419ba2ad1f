"""Sending a request to an engine. One connection pool per backend; every way an engine fails has a name."""

from __future__ import annotations

import asyncio
import functools
import os
import ssl
from collections.abc import AsyncIterator
from contextvars import ContextVar
from enum import StrEnum
from types import SimpleNamespace
from typing import Self

import aiohttp
import httpx
from httpx_aiohttp import AiohttpTransport

from gateway.proxy.headers import Header

CONNECT_S = 5.0
KEEPALIVE_S = 4.0
"""llama.cpp, vLLM and SGLang close an idle connection after 5 s, so ours go first."""

PIECE = 256 * 1024
"""A body goes out in pieces of so many bytes. Given 20 MiB at once, aiohttp and asyncio copy them twice and
hold the loop for 10 ms (aiohttp 3.14, Python 3.11)."""

URLS = 64
"""Kept parsed for each backend: httpx takes 0.1 ms to parse one, and there are as many as routes, with few
exceptions."""


class Fault(StrEnum):
    """How an engine failed a request."""

    REFUSED = "refused"  # no connection: nothing was sent
    DIED = "died"  # the connection ended before the reply did
    STALLED = "stalled"  # silent for longer than the limit
    UNFINISHED = "unfinished"  # the reply ended properly, and without what it was to bring


class EngineFault(Exception):
    def __init__(self, fault: Fault, message: str) -> None:
        super().__init__(message)
        self.fault = fault


_reused: ContextVar[list[bool] | None] = ContextVar("pharos_reused", default=None)


class Reply:
    """An engine's reply: status and headers now, the body as it comes. To be used with `async with`."""

    def __init__(self, response: httpx.Response, first_byte_s: float, idle_s: float) -> None:
        assert isinstance(response.stream, httpx.AsyncByteStream)
        self._body = response.stream
        self._wait_s, self._idle_s = first_byte_s, idle_s
        self.status = response.status_code
        self.headers: list[Header] = list(response.headers.raw)

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body's bytes as they arrive. Raises EngineFault when it ends early or goes silent."""
        body = aiter(self._body)
        try:
            while True:
                async with asyncio.timeout(self._wait_s):
                    piece = await anext(body)
                self._wait_s = self._idle_s
                yield piece
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise EngineFault(Fault.STALLED, f"the engine sent nothing for {self._wait_s:g} s") from None
        except httpx.HTTPError as e:
            raise EngineFault(Fault.DIED, f"the engine's reply ended early ({_brief(e)})") from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._body.aclose()


class Upstream:
    """One backend's connections.

    `first_byte_s` bounds the wait for a reply to begin, `idle_s` each gap inside it. The transport is used
    without httpx's client: redirects, cookies and auth are not for a proxy, and cost half as much again.
    """

    def __init__(self, base: str, first_byte_s: float, idle_s: float) -> None:
        self._first_byte_s, self._idle_s = first_byte_s, idle_s
        self._url = functools.lru_cache(URLS)(lambda path: httpx.URL(base + path))
        self._pooled, self._single = _connections(reuse=True), _connections(reuse=False)

    async def send(
        self, path: str, headers: list[Header], body: bytes, *, own_connection: bool = False,
        method: str = "POST",
    ) -> Reply:  # fmt: skip
        """Raises EngineFault.

        `own_connection` opens one for this request alone: llama.cpp closes after a stream whatever its
        headers announce, and the next request on that connection would be lost (b10068 to b10434).
        A request that dies without a byte of reply on a connection that had been idle raced with the
        engine closing it: it is sent once more, on a fresh one.
        """
        if own_connection:
            return await self._send(self._single, method, path, headers, body, [])
        reused: list[bool] = []
        try:
            return await self._send(self._pooled, method, path, headers, body, reused)
        except EngineFault as fault:
            if fault.fault is not Fault.DIED or not reused:
                raise
            first = fault
        try:
            return await self._send(self._single, method, path, headers, body, [])
        except EngineFault as again:
            if again.fault is Fault.REFUSED:  # no race then: the engine died of it, or with it
                raise first from None
            raise

    async def _send(
        self, transport: AiohttpTransport, method: str, path: str, headers: list[Header], body: bytes,
        reused: list[bool],
    ) -> Reply:  # fmt: skip
        timeout = {"connect": CONNECT_S}
        url = self._url(path)
        content: bytes | AsyncIterator[bytes] = body
        if len(body) > PIECE:
            headers, content = [*headers, (b"content-length", b"%d" % len(body))], _in_pieces(body)
        request = httpx.Request(
            method, url, headers=headers, content=content, extensions={"timeout": timeout}
        )
        token = _reused.set(reused)
        try:
            async with asyncio.timeout(self._first_byte_s):
                response = await transport.handle_async_request(request)
        except TimeoutError:
            raise EngineFault(Fault.STALLED, f"no reply began within {self._first_byte_s:g} s") from None
        except httpx.HTTPError as e:
            raise _fault(e) from None
        except (aiohttp.ClientError, OSError, ValueError) as e:  # what the transport does not translate
            raise EngineFault(
                Fault.DIED, f"what the engine sent is not an HTTP reply ({_brief(e)})"
            ) from None
        finally:
            _reused.reset(token)
        if response.status_code < 200:  # 101 would leave the client waiting for another protocol
            await response.aclose()
            raise EngineFault(Fault.DIED, f"its reply has the status {response.status_code}")
        return Reply(response, self._first_byte_s, self._idle_s)

    async def close(self) -> None:
        await self._pooled.aclose()
        await self._single.aclose()


async def _in_pieces(body: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(body), PIECE):
        yield body[at : at + PIECE]


def _connections(*, reuse: bool) -> AiohttpTransport:
    def session() -> aiohttp.ClientSession:
        """Made on the first request: aiohttp wants a running loop."""
        trace = aiohttp.TraceConfig()
        trace.on_connection_reuseconn.append(_on_reuse)
        connector = (
            aiohttp.TCPConnector(limit=0, ssl=tls(), keepalive_timeout=KEEPALIVE_S)
            if reuse
            else aiohttp.TCPConnector(limit=0, ssl=tls(), force_close=True)
        )
        return aiohttp.ClientSession(
            connector=connector,
            trace_configs=[trace],
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
            auto_decompress=False,
        )

    return AiohttpTransport(verify=tls(), client=session)


@functools.cache
def tls() -> ssl.SSLContext:
    """One for all connections to engines: reading the certificates takes tens of milliseconds."""
    return httpx.create_ssl_context(trust_env=False)


async def _on_reuse(_session: aiohttp.ClientSession, _context: SimpleNamespace, _params: object) -> None:
    mark = _reused.get()
    if mark is not None:
        mark.append(True)


def _fault(e: httpx.HTTPError) -> EngineFault:
    """By cause: the transport reports a connection that breaks as a connect timeout."""
    cause = e.__cause__
    if isinstance(e, httpx.ConnectError) or isinstance(
        cause, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError
    ):
        return EngineFault(Fault.REFUSED, f"no connection ({_brief(e)})")
    return EngineFault(Fault.DIED, f"the connection ended before a reply ({_brief(e)})")


def _brief(e: Exception) -> str:
    if isinstance(e.__cause__, aiohttp.ServerDisconnectedError):  # its text is the half-read reply's repr
        return "the engine closed it"
    if isinstance(e.__cause__, aiohttp.ClientPayloadError):  # its text speaks of a 400 that nobody answered
        return "the engine closed it in the middle"
    if isinstance(e.__cause__, aiohttp.ClientConnectorError):  # its text names the address again, and `ssl`
        cause = e.__cause__.os_error
        return os.strerror(cause.errno) if cause.errno and cause.errno > 0 else str(cause.strerror)
    return str(e)[:160] or type(e.__cause__ or e).__name__
