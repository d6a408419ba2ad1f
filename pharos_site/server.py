"""The process: Daphne's server, with a beginning and an end.

`daphne pharos_site.asgi:application` reads `CommandLineInterface.server_class` after it has imported the
application, which is how this class comes in. Daphne gives the command line, the reactor on an asyncio loop
and the endpoints; what a gateway needs besides is here (seen missing in Daphne 4.2.3):

- The application is started by ASGI lifespan before anybody can connect. If that fails the process says why
  and ends with code 1.
- The first SIGTERM, SIGINT or SIGHUP drains: new requests are taken during the application's grace, then the
  listener closes and idle connections with it; running requests end whole; code 0. A second signal ends the
  process at once, as that signal does by default.
- A request is forgotten when its application returns, not by a timer.
- Everything loaded is frozen out of the garbage collector's sight once the process serves.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from daphne.server import Server
from twisted.internet import reactor as _reactor
from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.endpoints import serverFromString
from twisted.internet.error import CannotListenError

from . import command_line, logs
from .channel import Factory, Phase
from .exchange import Exchange
from .lifespan import Lifespan, StartupError

if TYPE_CHECKING:
    from .asgi import Application

log = logging.getLogger("pharos")
reactor: Any = _reactor

BACKLOG = 1024
LAST_BYTES_S = 5.0  # for clients to take what is already written when the process ends
LAST_STEPS_S = 5.0  # for applications to end once cancelled


class PharosServer(Server):
    application: Application

    def __init__(self, application: Application, **options: Any) -> None:  # noqa: ANN401  (Daphne's own)
        super().__init__(application, **options)
        if not command_line.access_log_asked(sys.argv[1:]):
            self.action_logger = None
        if self.server_name == "daphne":
            self.server_name = "pharos"
        self.exchanges: set[Exchange] = set()
        self.factory = Factory(self, reactor._asyncioEventloop.call_later)
        self.draining = False
        self._ports: list[Any] = []
        self._signals = 0
        self._stop_asked = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None

    @property
    def body_limit(self) -> int:
        return self.application.limits.body

    @property
    def write_stall_s(self) -> float:
        return self.application.limits.write_stall

    # -- the life of the process --------------------------------------------------------------------

    def run(self) -> None:
        logs.twisted_to_logging()
        logs.more(self.verbosity)
        loop: asyncio.AbstractEventLoop = reactor._asyncioEventloop
        asyncio.set_event_loop(loop)
        loop.set_debug(self.verbosity >= 3)
        if self.signal_handlers:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):  # HUP: its terminal was closed
                loop.add_signal_handler(number, self._signalled, number)
        reactor.callWhenRunning(self._begin, loop)
        reactor.run(installSignalHandlers=False)

    def stop(self) -> None:
        """Drain and end, as the first signal does."""
        self._stop_asked.set()

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self._serving = loop.create_task(self._live())

    async def _live(self) -> None:
        lifespan = Lifespan(self.application)
        try:
            if await self._unless_stopped(self._start(lifespan)):
                try:
                    await self._stop_asked.wait()
                    await self._drain()
                finally:
                    await lifespan.shutdown()
        except (StartupError, CannotListenError) as error:
            log.critical("Pharos did not start: %s", error)
            self.abort_start = True  # Daphne's command ends with code 1
        except Exception:
            log.critical("Pharos ends because of an error of its own", exc_info=True)
            self.abort_start = True
        finally:
            await _cancel_all_but_me()
            reactor.stop()

    async def _unless_stopped(self, starting: Awaitable[None]) -> bool:
        """Whether `starting` came to its end; a signal meanwhile cancels it."""
        start, stop = asyncio.ensure_future(starting), asyncio.ensure_future(self._stop_asked.wait())
        await asyncio.wait([start, stop], return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if not start.done():
            start.cancel()
            return False
        await start
        return True

    async def _start(self, lifespan: Lifespan) -> None:
        await lifespan.startup()
        wanted = self.endpoints
        if not command_line.address_asked(sys.argv[1:], wanted):
            wanted = command_line.endpoints_for(self.application.listen)
        loop = asyncio.get_running_loop()
        try:
            for description in wanted:
                endpoint = serverFromString(reactor, command_line.with_backlog(description, BACKLOG))
                self._ports.append(await endpoint.listen(self.factory).asFuture(loop))
        except CannotListenError:
            await lifespan.shutdown()
            raise
        gc.collect()
        gc.freeze()
        for port in self._ports:
            log.info("Pharos serves %s", _address_of(port.getHost()))

    # -- the end of the process -----------------------------------------------------------------------

    def _signalled(self, number: int) -> None:
        self._signals += 1
        if self._signals == 1:
            log.info(
                "%s: finishing %d requests; the same again ends at once",
                signal.Signals(number).name,
                len(self.exchanges),
            )
            self._stop_asked.set()
            return
        log.warning(
            "%s again: ending now, %d requests are cut", signal.Signals(number).name, len(self.exchanges)
        )
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    async def _drain(self) -> None:
        self.draining = True
        self.application.begin_drain()
        await self.application.grace_over()
        loop = asyncio.get_running_loop()
        for port in self._ports:
            if (closing := port.stopListening()) is not None:
                await closing.asFuture(loop)
        self._close_idle()
        await self.application.drained()
        await self._cancel_exchanges()
        self._close_idle()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.factory.no_channels.wait(), LAST_BYTES_S)

    def _close_idle(self) -> None:
        for channel in list(self.factory.channels):
            if channel.phase is not Phase.REPLY:
                channel.loseConnection()

    async def _cancel_exchanges(self) -> None:
        """Those that the application's own timeout left."""
        tasks = [exchange.task for exchange in self.exchanges if exchange.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            log.warning("%d requests were not finished in time and are cut", len(tasks))
            await asyncio.wait(tasks, timeout=LAST_STEPS_S)

    # -- requests ---------------------------------------------------------------------------------------

    def answer(self, exchange: Exchange) -> None:
        """Let the application answer one request."""
        self.exchanges.add(exchange)
        coroutine = self.application(exchange.scope(), exchange.receive, exchange.send)
        exchange.task = asyncio.ensure_future(coroutine)
        exchange.task.add_done_callback(exchange.ended)


async def _cancel_all_but_me() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others, timeout=LAST_STEPS_S)


def _address_of(host: object) -> str:
    if not isinstance(host, IPv4Address | IPv6Address):
        return str(host)
    name = f"[{host.host}]" if ":" in host.host else host.host
    return f"http://{name}:{host.port}"
