"""Real engines in every role, the gateway's own process in front of them, and accidents."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from gateway.demo.engines import NEWEST, LlamaServer, model_file
from gateway.demo.processes import status_of
from gateway.demo.stage import Gateway

ENDLESS = 3500
"""Tokens that last for a minute at the least, in a slot that holds them."""
CONTEXT = 4096


def plain(folder: Path, slots: int, port: int | None = None) -> LlamaServer:
    return LlamaServer(folder, slots=slots, context=CONTEXT, port=port, extra=["--metrics"])


def router(folder: Path, models: Sequence[str], *, slots: int, version: str = NEWEST) -> LlamaServer:
    """It lists these models, all of them the same weights, and keeps one in memory."""
    files = folder / "models"
    files.mkdir()
    for name in models:
        os.symlink(model_file(), files / f"{name}.gguf")
    extra = ["--models-dir", str(files), "--models-max", "1"]
    return LlamaServer(folder, version=version, slots=slots, context=CONTEXT, router=True, extra=extra)


def loads(server: LlamaServer, model: str) -> int:
    """How many times a router has loaded this model, by its log (b10068 to b10434)."""
    return server.log.read_text(errors="replace").count(f"spawning server instance with name={model} ")


@contextmanager
def in_front_of(folder: Path, engines: Sequence[LlamaServer]) -> Iterator[Gateway]:
    """A gateway that has read all of these, once they are ready."""
    for engine in engines:
        engine.wait_ready()
    with Gateway(folder, [engine.url for engine in engines]) as gateway:
        gateway.wait_ready()
        yield gateway


def kill(server: LlamaServer) -> None:
    """SIGKILL to the engine alone, as the kernel sends it when memory runs out. Returns once it is gone."""
    (engine,) = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
    with suppress(ProcessLookupError):
        os.kill(int(engine), signal.SIGKILL)
    while status_of(server.port, "/health") is not None:
        time.sleep(0.01)
