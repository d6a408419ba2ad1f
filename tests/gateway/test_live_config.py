"""The config file, edited while Pharos runs."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from gateway.config import Config
from gateway.live_config import LiveConfig

GOOD = "listen: 127.0.0.1:1\n"
OTHER = "listen: 127.0.0.1:22\n"


def watching(path: Path) -> tuple[LiveConfig, list[Config]]:
    applied: list[Config] = []
    return LiveConfig(path, applied.append), applied


async def test_an_edit_is_applied_once(tmp_path: Path) -> None:
    path = tmp_path / "pharos.yaml"
    path.write_text(GOOD)
    live, applied = watching(path)
    await live.look()
    assert applied == []
    path.write_text(OTHER)
    await live.look()
    await live.look()
    assert [c.listen for c in applied] == ["127.0.0.1:22"]


async def test_a_mistake_changes_nothing_and_is_told_with_its_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "pharos.yaml"
    path.write_text(GOOD)
    live, applied = watching(path)
    path.write_text(GOOD + "polcy: cost\n")
    with caplog.at_level(logging.ERROR):
        await live.look()
        await live.look()
    assert applied == []
    assert live.error is not None
    assert "line 2" in live.error
    assert caplog.text.count("stays in use") == 1
    path.write_text(OTHER)
    await live.look()
    assert len(applied) == 1
    assert not live.error


async def test_a_file_that_goes_away_leaves_the_config_in_use(tmp_path: Path) -> None:
    path = tmp_path / "pharos.yaml"
    path.write_text(GOOD)
    live, applied = watching(path)
    path.unlink()
    await live.look()
    assert applied == []
    assert live.error is not None
    assert "gone" in live.error


async def test_a_file_that_is_made_later_is_used(tmp_path: Path) -> None:
    path = tmp_path / "pharos.yaml"
    live, applied = watching(path)
    path.write_text(GOOD)
    await live.look()
    assert len(applied) == 1


async def test_a_file_put_in_its_place_with_the_same_size_is_seen(tmp_path: Path) -> None:
    path, new = tmp_path / "pharos.yaml", tmp_path / "new"
    path.write_text(GOOD)
    live, applied = watching(path)
    new.write_text(GOOD.replace("1\n", "2\n"))
    info = path.stat()
    os.utime(new, ns=(info.st_atime_ns, info.st_mtime_ns))
    os.replace(new, path)
    await live.look()
    assert [c.listen for c in applied] == ["127.0.0.1:2"]
