from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.pharos_site.raw import Client, Process

Start = Callable[..., Process]


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """One process for all tests that leave it as it was."""
    process = Process(tmp_path_factory.mktemp("server") / "log", TEST_STALL="1")
    yield process
    process.stop()


@pytest.fixture
def client(server: Process) -> Iterator[Client]:
    with server.client() as client:
        yield client


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts processes that end with the test."""
    started: list[Process] = []

    def start(**options: object) -> Process:
        process = Process(tmp_path / f"log{len(started)}", **options)  # type: ignore[arg-type]
        started.append(process)
        return process

    yield start
    for process in started:
        process.stop()
