"""What the demo starts ends with it, whatever ends it, and its last words are kept."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.demo.processes import Child, StartError, free_port, wait_ready

ROOT = Path(__file__).resolve().parents[3]

STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(os.getpid(), child.pid, flush=True)
time.sleep(600)
"""
"""Ignores SIGTERM and has a child of its own, as a llama.cpp router has."""


def until(true: Callable[[], bool], deadline_s: float = 20.0) -> bool:
    end = time.monotonic() + deadline_s
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def pids_in(log: Path) -> list[int]:
    assert until(lambda: log.exists() and len(log.read_text().split()) == 2)
    return [int(pid) for pid in log.read_text().split()]


def python(code: str, log: Path, grace_s: float = 0.1) -> Child:
    return Child("the script", [sys.executable, "-c", code], log, grace_s=grace_s)


def test_a_child_that_ignores_sigterm_is_killed_with_its_own_children(tmp_path: Path) -> None:
    with python(STUBBORN, tmp_path / "log"):
        pids = pids_in(tmp_path / "log")
        assert all(alive(pid) for pid in pids)
    assert until(lambda: not any(alive(pid) for pid in pids))


def test_a_child_gets_its_grace_to_end_by_itself(tmp_path: Path) -> None:
    code = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('bye', flush=True), sys.exit(7)))\n"
        "print('up', flush=True)\ntime.sleep(600)"
    )
    with python(code, tmp_path / "log", grace_s=20.0) as child:
        assert until(lambda: "up" in (tmp_path / "log").read_text())
    assert "bye" in (tmp_path / "log").read_text()
    assert child.exit_code == 7


def test_a_killed_parent_takes_its_children_along(tmp_path: Path) -> None:
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom gateway.demo.processes import Child\n"
        f"log = Path({str(tmp_path / 'log')!r})\n"
        f"child = Child('x', [sys.executable, '-c', {STUBBORN!r}], log, grace_s=0.1)\n"
        "time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    pids = pids_in(tmp_path / "log")
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert until(lambda: not any(alive(pid) for pid in pids))


def test_a_child_that_dies_while_starting_is_reported_with_its_last_words(tmp_path: Path) -> None:
    code = "import sys; print('cannot open the model', file=sys.stderr); sys.exit(3)"
    with python(code, tmp_path / "log") as child, pytest.raises(StartError) as e:
        wait_ready(child, free_port(), "/health", deadline_s=20.0)
    assert "the script ended while starting (exit code 3)" in str(e.value)
    assert "cannot open the model" in str(e.value)
    assert str(tmp_path / "log") in str(e.value)


def test_a_child_that_never_gets_ready_is_given_up(tmp_path: Path) -> None:
    with python("import time; time.sleep(600)", tmp_path / "log") as child, pytest.raises(StartError) as e:
        wait_ready(child, free_port(), "/health", deadline_s=0.2)
    assert "was not ready after" in str(e.value)


def test_stopping_twice_is_stopping_once(tmp_path: Path) -> None:
    with python("import time; time.sleep(600)", tmp_path / "log") as child:
        child.stop()
    assert child.exit_code == 128 + signal.SIGTERM
    assert not child.running


def test_a_preferred_port_is_taken_when_it_is_free() -> None:
    port = free_port()
    assert free_port(port) == port


def test_a_preferred_port_that_is_in_use_is_left_alone() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        assert free_port(listener.getsockname()[1]) not in (0, listener.getsockname()[1])


def test_a_child_sees_no_terminal_input(tmp_path: Path) -> None:
    with python("import sys; print(repr(sys.stdin.read()))", tmp_path / "log") as child:
        assert until(lambda: not child.running)
    assert (tmp_path / "log").read_text() == "''\n"
