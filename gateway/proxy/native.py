"""What Ollama's clients ask of all Ollama engines together, or of any one of them. Takes no place at any."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from gateway.fleet.backend import Backend
from gateway.fleet.fleet import Fleet
from gateway.proxy import aggregates, serving
from gateway.proxy.aggregates import Entry
from gateway.proxy.ask import Ask
from gateway.proxy.headers import Header, to_engine
from gateway.proxy.refusals import Refusal
from gateway.proxy.upstream import EngineFault, Upstream

log = logging.getLogger("pharos.requests")

LIST_S = 2.0
KNOWN_LIST_S = 0.5
"""How long a list waits for one engine; shorter where its last answer can stand in. Ollama takes 1 ms when it
is well (0.24.0, 0.32.15), and a frozen one must not hold up the page that lists all models."""
SHOW_S = 10.0
MAX_BYTES = 16 * 1024 * 1024

_list = msgspec.json.Decoder(dict[str, Any])


class Native:
    def __init__(
        self, fleet: Fleet, pools: Mapping[Backend, Upstream], busy: Callable[[Backend], int]
    ) -> None:
        self.fleet, self.pools, self.busy = fleet, pools, busy
        self._last: WeakKeyDictionary[Backend, dict[str, list[Entry]]] = WeakKeyDictionary()

    def up(self) -> list[Backend]:
        """Raises Refusal (503): an empty list would say that there are no models."""
        found = [b for b in self.fleet.backends if b.up and serving.native(b)]
        if not found:
            raise Refusal(503, "no_engine", "No Ollama engine is up now: see `manage.py pharos_doctor`.", 5)
        return found

    def version(self) -> bytes:
        known = [v for b in self.up() if b.view is not None and (v := b.view.plan.version) is not None]
        oldest = aggregates.oldest(known)
        if oldest is None:
            raise Refusal(503, "no_engine", "No Ollama engine that is up has told its version yet.", 5)
        return aggregates.encoded({"version": oldest})

    async def models(self, path: str, sees: serving.Sees = serving.everything) -> bytes:
        """GET /api/tags or /api/ps of all of them at once, as one list."""
        lists = await asyncio.gather(*(self._models(backend, path) for backend in self.up()))
        return aggregates.ollama_models([e for e in entries if sees(str(e["name"]))] for entries in lists)

    async def _models(self, backend: Backend, path: str) -> list[Entry]:
        last = self._last.setdefault(backend, {})
        try:
            async with asyncio.timeout(KNOWN_LIST_S if path in last else LIST_S):
                status, _, body = await self._ask(backend, "GET", path, [], b"")
            entries = _entries(body) if status == 200 else None
        except (TimeoutError, EngineFault) as e:
            log.debug("backend %s: no answer to GET %s (%s)", backend.url, path, e or "too slow")
            entries = None
        if entries is not None:
            last[path] = [aggregates.renamed(e, backend.config.aliases) for e in entries]
        elif path not in last:
            return _listed(backend) if path == "/api/tags" else []
        return last[path]

    async def show(
        self, ask: Ask, sees: serving.Sees = serving.everything
    ) -> tuple[int, list[Header], bytes]:
        """One engine's answer: of the least busy that serves the model, else of the next.

        Raises Refusal.
        """
        name = serving.find(self.fleet, ask.route, ask.model, sees)
        for backend in sorted(serving.serving(self.fleet, ask.route, name), key=self.busy):
            served = backend.models[name]
            body = ask.body if serving.same(backend, ask.model, served) else ask.body_for(served)
            try:
                async with asyncio.timeout(SHOW_S):
                    return await self._ask(backend, "POST", ask.route.path, [], body)
            except (TimeoutError, EngineFault) as e:
                log.info("backend %s: no answer to %s (%s)", backend.url, ask.route.path, e or "too slow")
        raise Refusal(503, "model_unavailable", f"No engine that serves {ask.model!r} answers now.", 5)

    async def _ask(
        self, backend: Backend, method: str, path: str, headers: list[Header], body: bytes
    ) -> tuple[int, list[Header], bytes]:
        """Raises EngineFault and Refusal (502)."""
        sent = to_engine(headers, backend.api_key)
        async with await self.pools[backend].send(path, sent, body, method=method) as reply:
            pieces: list[bytes] = []
            size = 0
            async for piece in reply.pieces():
                pieces.append(piece)
                size += len(piece)
                if size > MAX_BYTES:
                    raise Refusal(502, "engine_failed", f"The engine at {backend.url} answers without end.")
            return reply.status, reply.headers, b"".join(pieces)


def _entries(body: bytes) -> list[Entry] | None:
    try:
        models = _list.decode(body).get("models")
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    if not isinstance(models, list):
        return None
    return [e for e in models if isinstance(e, dict) and isinstance(e.get("name"), str)]


def _listed(backend: Backend) -> list[Entry]:
    """What the last round knew, for an engine that is too busy to say it again."""
    known = backend.view.snapshot.models if backend.view is not None else None
    entries: list[Entry] = []
    for name, served in backend.models.items():
        size = known[served].size_bytes if known is not None else None
        entries.append({"name": name, "model": name, **({} if size is None else {"size": size})})
    return entries
