"""What the demo starts: engines, the gateway in front of them, and a folder for config and logs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import yaml

from gateway.demo.engines import LlamaServer
from gateway.demo.install import ROOT
from gateway.demo.processes import Child, free_port, wait_ready

PORT = 8090
"""The gateway's own default port, taken when it is free."""

FOLDER = ROOT / ".run" / "demo"
"""Config and logs of the last run: they stay, for whoever wants to know why something did not start."""

APPLICATION = "pharos_site.asgi:application"
_GATEWAY_DEADLINE_S = 60.0


def config_text(port: int, backends: Sequence[str]) -> str:
    """An address to listen on and the engines; and no grace on the way out, as nobody else is served here."""
    config = {
        "listen": f"127.0.0.1:{port}",
        "backends": [{"url": url} for url in backends],
        "drain": {"grace": "1ms", "timeout": "2s"},
    }
    return yaml.safe_dump(config, sort_keys=False)


def environment(ours: Mapping[str, str], config: Path) -> dict[str, str]:
    """The gateway's environment: ours, without settings of Pharos that are meant for another gateway."""
    kept = {name: value for name, value in ours.items() if not name.startswith("PHAROS_")}
    return {**kept, "PHAROS_CONFIG": str(config), "DJANGO_SETTINGS_MODULE": "pharos_site.settings"}


class Gateway(Child):
    """`daphne pharos_site.asgi:application` in front of `backends`, as its own process."""

    def __init__(self, folder: Path, backends: Sequence[str], *, port: int | None = None) -> None:
        self.port = port or free_port(PORT)
        config = folder / f"pharos-{self.port}.yaml"
        config.write_text(config_text(self.port, backends))
        super().__init__(
            "The gateway",
            [sys.executable, "-m", "daphne", APPLICATION],
            folder / f"gateway-{self.port}.log",
            env=environment(os.environ, config),
            cwd=ROOT,
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def wait_ready(self, tick: Callable[[], None] = lambda: None) -> float:
        """Wait until /healthz answers 200; the seconds it took. Raises StartError."""
        return wait_ready(self, self.port, "/healthz", deadline_s=_GATEWAY_DEADLINE_S, tick=tick)


class Stage(AbstractContextManager["Stage"]):
    """Everything the demo started; leaving it ends them all, the gateway first."""

    def __init__(self) -> None:
        self._started = ExitStack()
        self.folder = FOLDER
        self.folder.mkdir(parents=True, exist_ok=True)

    def engines(self) -> list[LlamaServer]:
        """Two servers with one and with two slots. They are loading when this returns."""
        threads = max(1, (os.cpu_count() or 2) // 2)
        return [
            self._started.enter_context(
                LlamaServer(self.folder, slots=slots, threads=threads, extra=["--metrics"])
            )
            for slots in (1, 2)
        ]

    def gateway(self, backends: Sequence[str]) -> Gateway:
        return self._started.enter_context(Gateway(self.folder, backends))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._started.close()
