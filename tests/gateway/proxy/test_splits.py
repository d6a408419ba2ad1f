"""However a stream falls into reads, and wherever it breaks: properties over recorded streams."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Sequence
from typing import Self, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.config import BackendConfig, Limits
from gateway.fleet.backend import Backend
from gateway.fleet.fleet import Fleet
from gateway.fleet.target import Target
from gateway.proxy.consumer import Consumer
from gateway.proxy.headers import Header
from gateway.proxy.routes import family_of
from gateway.proxy.tap import Stream
from gateway.proxy.upstream import EngineFault, Fault, Upstream
from gateway.routing.policy import least_load
from gateway.routing.scheduler import Scheduler
from tests.gateway.proxy.bench import OLLAMA, STREAM, Client, gateway, listing
from tests.gateway.proxy.recorded import STREAMS, Said
from tests.stub import Peer, Request, stub


class Pieces:
    """An engine's reply that arrives in just these reads."""

    status = 200

    def __init__(self, kind: str, pieces: Sequence[bytes], *, dies: bool) -> None:
        self.headers: list[Header] = [(b"content-type", kind.encode())]
        self._pieces, self._dies = pieces, dies

    async def send(self, *_: object, **__: object) -> Self:
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def pieces(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece
        if self._dies:
            raise EngineFault(Fault.DIED, "gone")


def client_of(path: str, said: Said, pieces: Sequence[bytes], *, dies: bool = False) -> Client:
    backend = Backend(BackendConfig(url="http://engine:1"))
    listing(backend, OLLAMA, ["m"])
    pools = {backend: cast(Upstream, Pieces(said.kind, pieces, dies=dies))}
    fleet = Fleet([backend])
    scheduler: Scheduler[Target] = Scheduler(fleet, least_load, time.monotonic)
    consumer = Consumer(fleet, scheduler, pools, Limits(), lambda _done: None)
    client = Client()

    async def ask() -> None:
        client.inbox.put_nowait({"type": "http.request", "body": STREAM})
        await consumer(client.scope(path, "POST", [], seam=True), client.inbox.get, client.send)

    asyncio.run(ask())
    return client


def cut_up(body: bytes, at: Sequence[int]) -> list[bytes]:
    edges = [0, *sorted(a % (len(body) + 1) for a in at), len(body)]
    return [body[a:b] for a, b in itertools.pairwise(edges)]


PATHS = st.sampled_from(sorted(STREAMS))
CUTS = st.lists(st.integers(0, 1 << 20), max_size=12)


@settings(max_examples=150, deadline=None)
@given(PATHS, CUTS)
def test_any_split_of_a_stream_gives_the_client_the_same_bytes(path: str, at: list[int]) -> None:
    said = STREAMS[path]
    client = client_of(path, said, cut_up(said.body, at))
    assert (client.body, client.ended, client.cut) == (said.body, True, False)


def test_every_byte_may_come_alone() -> None:
    for path, said in STREAMS.items():
        client = client_of(path, said, [said.body[i : i + 1] for i in range(len(said.body))])
        assert (client.body, client.ended) == (said.body, True)


@settings(max_examples=200, deadline=None)
@given(PATHS, CUTS, st.integers(0, 1 << 20), st.booleans())
def test_a_stream_that_stops_anywhere_is_whole_only_if_its_engine_said_so(
    path: str, at: list[int], stop: int, dies: bool
) -> None:
    """Whether it broke or ended cleanly. What was sent is a beginning of it, and an error of its own at most."""
    said = STREAMS[path]
    part = said.body[: stop % len(said.body)]
    client = client_of(path, said, cut_up(part, at), dies=dies)
    tap = Stream(family_of(path, []).framing, family_of(path, []))
    tap.feed(part)
    between_events = tap.on_boundary
    tap.end()
    if client.status != 200:
        assert not part
    elif client.ended:
        assert not dies
        assert tap.finished
        assert client.body == part
    else:
        assert client.cut
        assert dies or not tap.finished
        assert client.body.startswith(part)
        assert (b"error" in client.body[len(part) :]) == between_events


# -- on the wire -------------------------------------------------------------------------------


async def over_a_socket(path: str, said: Said, chunks: Sequence[bytes], cuts: Sequence[int]) -> Client:
    """The client of an engine that sends these chunks in reads of these sizes."""
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {said.kind}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    framed = b"".join(b"%x\r\n%s\r\n" % (len(c), c) for c in chunks if c)
    reads = cut_up(head + framed + b"0\r\n\r\n", cuts)

    async def engine(_request: Request, peer: Peer) -> None:
        for read in reads:
            await peer.send(read)
            await asyncio.sleep(0)

    async with stub(engine) as s, gateway(s.url, recipe=OLLAMA) as g:
        return await g.ask(STREAM, path=path)


@settings(max_examples=60, deadline=None)
@given(PATHS, CUTS, CUTS)
def test_any_chunks_in_any_reads_give_the_client_the_same_bytes(
    path: str, chunks: list[int], reads: list[int]
) -> None:
    said = STREAMS[path]
    client = asyncio.run(over_a_socket(path, said, cut_up(said.body, chunks), reads))
    assert (client.body, client.ended, client.cut) == (said.body, True, False)
