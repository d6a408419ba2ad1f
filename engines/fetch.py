"""Asking an engine, politely: one GET at a time, short waits, one fresh connection when one hangs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import httpx


class Fault(StrEnum):
    """Why a GET brought no answer."""

    REFUSED = "refused"  # nobody listens: the backend is down
    TIMEOUT = "timeout"  # busy, not down: an engine in a prefill does not answer
    BROKEN = "broken"  # the connection broke, or what came is not HTTP or of no use
    LOADING = "loading"  # it answers 503: up, and not ready
    DENIED = "denied"  # it answers 401 or 403: it wants a key


class FetchError(Exception):
    def __init__(self, fault: Fault, message: str) -> None:
        super().__init__(message)
        self.fault = fault


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)  # names in lower case


Fetch = Callable[[str], Awaitable[Answer]]
"""GET a path of one backend. Raises FetchError."""

NO_REQUEST = b"{}"
"""The body of a POST that names no model, so that no engine loads or generates anything for it."""

CONNECT_SHARE = 0.7
"""Of the time for an answer that a connection may take, so that the two timeouts can be told apart."""

MAX_BODY = 4 * 1024 * 1024
"""Bytes of a status page that are read. The largest one seen is 94 kB (SGLang's /metrics)."""


@dataclass(slots=True)
class HttpFetch:
    """A `Fetch` over httpx. It is one backend's, and never has two questions in flight.

    `timeout_s` bounds a whole answer, so that one that trickles in does not hold a poll either.
    """

    client: httpx.AsyncClient
    base: str  # "http://host:port", no trailing slash
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 2.0
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def __call__(self, path: str) -> Answer:
        """A connection that hangs is given up and the GET sent once more on a fresh one.

        llama.cpp b10068 to b11434 can leave one scrape without an answer after a burst of
        connections, until the next connection comes (seen on five builds).
        """
        async with self._turn:
            try:
                return await self._get(path)
            except FetchError as e:
                if e.fault is Fault.REFUSED:
                    raise
            return await self._get(path, {"connection": "close"})

    async def post_nothing(self, path: str) -> Answer:
        """POST `{}`, once: a hung one is not repeated. Raises FetchError."""
        async with self._turn:
            return await self._ask("POST", path, {"content-type": "application/json"}, NO_REQUEST)

    async def _get(self, path: str, extra: Mapping[str, str] | None = None) -> Answer:
        return await self._ask("GET", path, extra)

    async def _ask(
        self, method: str, path: str, extra: Mapping[str, str] | None = None, body: bytes | None = None
    ) -> Answer:
        headers = {"accept-encoding": "identity", **self.headers, **(extra or {})}
        try:
            async with (
                asyncio.timeout(self.timeout_s),
                self.client.stream(
                    method, self.base + path, headers=headers, content=body, timeout=self._timeout()
                ) as r,
            ):
                came = bytearray()
                async for piece in r.aiter_raw():
                    came += piece
                    if len(came) > MAX_BODY:
                        raise FetchError(Fault.BROKEN, f"{path} answered more than {MAX_BODY} bytes")
                return Answer(r.status_code, bytes(came), {k.lower(): v for k, v in r.headers.items()})
        except httpx.ConnectTimeout:  # a busy engine's kernel still connects: this host is off, or cut off
            raise FetchError(Fault.REFUSED, f"no connection to {self.base}: is that host on?") from None
        except (httpx.TimeoutException, TimeoutError):
            raise FetchError(Fault.TIMEOUT, f"{path} did not answer in {self.timeout_s:g} s") from None
        except httpx.ConnectError as e:
            raise FetchError(Fault.REFUSED, f"nothing answers at {self.base} ({_brief(e)})") from None
        except (httpx.LocalProtocolError, httpx.InvalidURL, UnicodeError):
            # their messages would show the key
            raise FetchError(
                Fault.BROKEN,
                f"{self.base} cannot be asked: HTTP cannot carry a character of its address or key",
            ) from None
        except (httpx.HTTPError, OSError) as e:
            raise FetchError(Fault.BROKEN, f"{path}: {type(e).__name__}: {_brief(e)}") from None

    def _timeout(self) -> httpx.Timeout:
        return httpx.Timeout(self.timeout_s, connect=CONNECT_SHARE * self.timeout_s)


def _brief(e: Exception) -> str:
    return str(e)[:160] or type(e).__name__
