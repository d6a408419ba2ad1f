"""Run a command that must not outlive the one who started it.

    python leash.py GRACE_S COMMAND [ARGUMENT …]

How this works. Whoever starts this script holds the writing end of its standard input. When that
end closes, because it was closed or because its owner died (SIGKILL included), the command's whole
process group gets SIGTERM and, GRACE_S seconds later, SIGKILL. SIGTERM, SIGINT or SIGHUP to this
script do the same. The exit code is the command's. Standard library only: it starts in milliseconds.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time

_PR_SET_PDEATHSIG = 1
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def die_with_parent() -> None:
    """Linux only: the kernel kills the command should this script itself be killed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def hold(command: list[str], grace_s: float) -> int:
    wake, signalled = os.pipe()
    os.set_blocking(signalled, False)
    signal.set_wakeup_fd(signalled)
    for number in (signal.SIGCHLD, *_ENDING):
        signal.signal(number, lambda *_: None)
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=die_with_parent if sys.platform == "linux" else None,  # this script has one thread
    )
    while child.poll() is None:
        ready, _, _ = select.select([0, wake], [], [])
        if 0 in ready or set(os.read(wake, 64)) & set(_ENDING):
            end_group(child, grace_s)
            break
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)  # what it left behind: children of a llama.cpp router
    return child.wait()


def end_group(child: subprocess.Popen[bytes], grace_s: float) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)


if __name__ == "__main__":
    code = hold(sys.argv[2:], float(sys.argv[1]))
    sys.exit(code if code >= 0 else 128 - code)
