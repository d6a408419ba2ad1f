"""llama.cpp's own server with a small real model, on a free loopback port."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

from gateway.demo import install
from gateway.demo.processes import Child, free_port, wait_ready

MODEL_NAME = "SmolLM2-135M-Instruct"
NEWEST = "0.10434.0"
READY_DEADLINE_S = 120.0
"""0.4 to 0.8 s on an idle machine; a loaded one took 7 s, a slow disk takes longer."""

_CONTEXT = 2048  # tokens of a slot: a few turns of talk
_GRACE_S = 1.0
"""llama.cpp keeps a stream open for 30 s after SIGTERM (b10434, b11434): nobody waits for that here."""


def model_file() -> Path:
    return install.SMOLLM2.folder / install.SMOLLM2_FILE


class LlamaServer(Child):
    """A llama.cpp server that starts at once and ends with us. Its packages must be installed.

    `slots` requests are worked on at a time, each with `context` tokens. A `router` is started without
    a model. `extra` goes to its command line as it is. Without a `port` it takes a free one, or raises
    StartError when there is none.
    """

    def __init__(
        self,
        log_dir: Path,
        *,
        version: str = NEWEST,
        slots: int = 1,
        threads: int = 1,
        context: int = _CONTEXT,
        router: bool = False,
        port: int | None = None,
        extra: Sequence[str] = (),
    ) -> None:
        self.version = version
        self.slots = slots
        self.port = port or free_port()
        bin_dir = install.LLAMA_SERVERS[version].folder / install.LLAMA_SERVER_BIN
        super().__init__(
            f"llama.cpp {version} on port {self.port}",
            [
                str(_executable(bin_dir / "llama-server")),
                *("--host", "127.0.0.1", "--port", str(self.port)),
                *("-t", str(threads), "-np", str(slots), "-c", str(context * slots)),
                *(() if router else ("-m", str(model_file()), "--alias", MODEL_NAME)),
                *extra,
            ],
            log_dir / f"llama-server-{self.port}.log",
            env={**os.environ, "LD_LIBRARY_PATH": str(bin_dir)},
            grace_s=_GRACE_S,
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def wait_ready(self, tick: Callable[[], None] = lambda: None) -> float:
        """Wait until the model is loaded; the seconds it took. Raises StartError."""
        return wait_ready(self, self.port, "/health", deadline_s=READY_DEADLINE_S, tick=tick)


def _executable(path: Path) -> Path:
    if not os.access(path, os.X_OK):  # some installers drop the mode bits
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path
