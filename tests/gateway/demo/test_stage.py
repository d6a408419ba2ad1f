"""The config and the environment of the demo's gateway."""

from __future__ import annotations

from pathlib import Path

from gateway.config import load
from gateway.demo.stage import config_text, environment


def test_the_demos_config_is_one_that_the_gateway_takes(tmp_path: Path) -> None:
    file = tmp_path / "pharos.yaml"
    file.write_text(config_text(8090, ["http://127.0.0.1:5001", "http://127.0.0.1:5002"]))
    config = load(file, {})
    assert config.address == ("127.0.0.1", 8090)
    assert [backend.url for backend in config.backends] == ["http://127.0.0.1:5001", "http://127.0.0.1:5002"]


def test_settings_meant_for_another_gateway_do_not_reach_the_demos(tmp_path: Path) -> None:
    ours = {"PATH": "/bin", "PHAROS_LISTEN": "0.0.0.0:1", "PHAROS_CONFIG": "mine.yaml"}
    env = environment(ours, tmp_path / "demo.yaml")
    assert env["PATH"] == "/bin"
    assert env["PHAROS_CONFIG"] == str(tmp_path / "demo.yaml")
    assert "PHAROS_LISTEN" not in env
