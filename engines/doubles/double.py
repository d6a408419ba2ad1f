"""A double on a socket: the thin shell that lets clients speak to a `Machine`.

How this works. One task per connection reads a request, asks the machine, and writes what was recorded
with the machine's numbers. One more task, the pump, sleeps until the machine's next event and tells those
whom it concerns. The machine's clock runs `speed` times as fast as the real one.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from urllib.parse import parse_qs, urlsplit

from engines.doubles import pages, wire
from engines.doubles.assumptions import PHYSICS, Physics
from engines.doubles.exchange import Exchange
from engines.doubles.faults import Faults
from engines.doubles.jobs import Job
from engines.doubles.kinds import KINDS, Imitation
from engines.doubles.machine import Machine
from engines.doubles.recordings import Page
from engines.doubles.recordings import pages as recorded_pages
from engines.doubles.refusals import not_found


class Double:
    """One engine. `url` is known once it runs; `faults`, `machine` and `requests` are for tests.

    Raises ValueError for a kind that there is none of, NoRecording when the recordings are not there.
    """

    def __init__(
        self,
        kind: str,
        *,
        models: Sequence[str] = (),
        loaded: Sequence[str] | None = None,
        physics: Physics | None = None,
        slots: int | None = None,
        speed: float = 1.0,
        idle_close_s: float | None = None,
        embeds: bool = False,
        seed: int = 0,
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        if kind not in KINDS:
            raise ValueError(f"there is no double of {kind!r}; there are {', '.join(KINDS)}")
        if speed <= 0:
            raise ValueError(f"speed is {speed:g}; it must be larger than 0")
        self.imitation: Imitation = KINDS[kind]
        self.names = tuple(models) or self.imitation.names
        chosen = physics or PHYSICS[kind]
        chosen = replace(chosen, slots=slots) if slots else chosen
        own = self.names[:1] if self.imitation.one_process else self.names
        in_memory = own[:1] if loaded is None else tuple(n for n in loaded if n in own)
        self.machine = Machine(chosen, own, in_memory)
        self.faults = Faults()
        self.idle_close_s = self.imitation.idle_close_s if idle_close_s is None else idle_close_s
        self.embeds = embeds  # as a server that was started for embeddings
        self.requests: list[wire.Request] = []
        self.speed, self.wall, self.rng = speed, wall, random.Random(seed)
        self._now, self._started = now, now()
        self._waiters: dict[Job, asyncio.Event] = {}
        self._kick = asyncio.Event()
        self._thawed = asyncio.Event()
        self._thawed.set()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._pump_task: asyncio.Task[None] | None = None
        self.address: tuple[str, int] = ("127.0.0.1", 0)
        recorded_pages(f"{self.imitation.recording}/{self.imitation.idle}")

    # -- running it ----------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return f"http://{self.address[0]}:{self.address[1]}"

    @property
    def version(self) -> str:
        return self.imitation.recording.partition("/")[2]

    @property
    def connections(self) -> int:
        """Open ones."""
        return len(self._tasks)

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        """Raises OSError when the port is taken."""
        self.address = (host, port)
        await self.accept()
        self._pump_task = asyncio.create_task(self._pump())

    async def accept(self) -> None:
        """Listen, again after `refuse` at the same address.

        A llama.cpp without its model loads it and says so; the other engines listen when they have it.
        """
        if self.imitation.one_process and not self.machine.residents:
            start = self.machine.load if self.imitation.loading else self.machine.put
            start(self.machine_now(), self.machine.models[0])
            self.tell()
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._protocol, *self.address)
        host, port = self._server.sockets[0].getsockname()[:2]
        self.address = (host, port)

    def refuse(self) -> None:
        """Nobody listens any more. Open connections go on: `cut` ends them."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def cut(self) -> None:
        """Every open connection ends at once, as when the process is killed."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def crash(self) -> None:
        """Killed: refuses, cuts, and nothing is in memory. `accept` starts it again."""
        self.refuse()
        await self.cut()
        self.machine.crash(self.machine_now())
        self.tell()

    def freeze(self) -> None:
        """As SIGSTOP: connections are taken, and nothing more is said until `thaw`."""
        self._thawed.clear()

    def thaw(self) -> None:
        self._thawed.set()

    async def stop(self) -> None:
        self.refuse()
        await self.cut()
        if self._pump_task is not None:
            self._pump_task.cancel()
            await asyncio.gather(self._pump_task, return_exceptions=True)

    # -- the machine's time --------------------------------------------------------------------

    def machine_now(self) -> float:
        return (self._now() - self._started) * self.speed

    def tell(self) -> None:
        """Wake those whom the machine's changes concern, and look anew at what comes next."""
        self._wake()
        self._kick.set()

    def _wake(self) -> None:
        for job in self.machine.changed:
            if job in self._waiters:
                self._waiters[job].set()
        self.machine.changed.clear()

    @asynccontextmanager
    async def watching(self, job: Job) -> AsyncIterator[asyncio.Event]:
        """An event that is set with each change of the job; at the end its client is gone."""
        self._waiters[job] = event = asyncio.Event()
        self.tell()
        try:
            yield event
        finally:
            del self._waiters[job]
            self.machine.leave(self.machine_now(), job)
            self.tell()

    async def _pump(self) -> None:
        while True:
            self._kick.clear()
            self.machine.advance(self.machine_now())
            self._wake()
            due = self.machine.next_at
            wait_s = None if due is None else max(0.0, (due - self.machine_now()) / self.speed)
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._kick.wait()

    # -- connections ---------------------------------------------------------------------------

    def _protocol(self) -> asyncio.StreamReaderProtocol:
        return asyncio.StreamReaderProtocol(wire.WatchedReader(), self._connected)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert isinstance(reader, wire.WatchedReader)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while await self._one(reader, writer):
                pass
        except (ConnectionError, wire.BadRequest, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _one(self, reader: wire.WatchedReader, writer: asyncio.StreamWriter) -> bool:
        """One request; whether the connection stays open."""
        request = await wire.read_request(reader, writer, self.idle_close_s)
        if request is None:
            return False
        await self._thawed.wait()
        self.requests.append(request)
        return await Exchange(self, request, reader, writer).serve()

    @property
    def thawed(self) -> asyncio.Event:
        return self._thawed

    # -- pages ---------------------------------------------------------------------------------

    def page(self, method: str, target: str) -> Page:
        """A status page as it is now."""
        self.machine.advance(self.machine_now())
        self._touch(target)
        path = urlsplit(target).path
        state = f"{self.imitation.recording}/{self.imitation.idle}"
        if self.imitation.loading and self.machine.residents and not self._ready():
            state = f"{self.imitation.recording}/{self.imitation.loading}"
            return recorded_pages(state).get((method, path)) or next(iter(recorded_pages(state).values()))
        known = recorded_pages(state)
        asked = target if (method, target) in known else path
        found = known.get((method, asked))
        if found is None or not found.status:
            return not_found(self.imitation)
        if found.status != 200 or method != "GET":
            return found
        body = pages.paint(self.scene(), asked, found.body)
        return Page(found.status, found.content_type, body)

    def scene(self) -> pages.Scene:
        return pages.Scene(self.imitation, self.names, self.machine, self.wall(), self.speed)

    def _ready(self) -> bool:
        return any(r.ready_at <= self.machine.now for r in self.machine.residents.values())

    def _touch(self, target: str) -> None:
        """A router loads a model for a page that names it, unless told not to (b11434)."""
        query = parse_qs(urlsplit(target).query)
        names = query.get("model", [])
        if self.imitation.kind == "llamacpp-router" and query.get("autoload") != ["false"]:
            for name in names:
                if name in self.machine.models:
                    self.machine.load(self.machine_now(), name)
                    self.tell()


@asynccontextmanager
async def running(double: Double, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[Double]:
    """The double on a socket of its own for as long as the block."""
    await double.start(host, port)
    try:
        yield double
    finally:
        await double.stop()
