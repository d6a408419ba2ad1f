"""A real process and a client that sees every byte."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


class Process:
    """A server of tests.pharos_site.app (or `command`), listening when the constructor returns."""

    def __init__(
        self,
        log: Path,
        command: Sequence[str] = ("daphne",),
        port: int | None = None,
        wait: bool = True,
        **env: str,
    ) -> None:
        self.port = port or free_port()
        self.log = log
        arguments = list(command)
        if arguments == ["daphne"]:
            arguments += ["-b", "127.0.0.1", "-p", str(self.port), "tests.pharos_site.app:application"]
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *arguments],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **env},
                stdout=out,
                stderr=out,
            )
        if wait:
            self._wait_until_listening()

    def _wait_until_listening(self) -> None:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                time.sleep(0.03)
        raise AssertionError(f"no server: {self.said()}")

    def said(self) -> str:
        return self.log.read_text()

    def client(self, **options: Any) -> Client:
        return Client(self.port, **options)

    def get(self, path: str) -> Any:
        with self.client() as client:
            client.ask("GET", path)
            return client.reply().json

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def wait(self, timeout: float = 10) -> int:
        return self.process.wait(timeout)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(5)

    def rss(self) -> int:
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("no VmRSS")


@dataclass
class Reply:
    status: int = 0
    head: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    whole: bool = False  # ended as its framing says

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        return str(self.json["error"]["code"])


class Client:
    def __init__(self, port: int, receive_buffer: int | None = None) -> None:
        self.socket = socket.socket()
        self.socket.settimeout(10)
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        try:
            self.socket.connect(("127.0.0.1", port))
        except OSError:
            self.socket.close()
            raise
        self.buffer = b""

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def ask(self, method: str, target: str, body: bytes | None = None, *headers: str) -> None:
        lines = [f"{method} {target} HTTP/1.1", "Host: here", *headers]
        if body is not None:
            lines.append(f"Content-Length: {len(body)}")
        self.send("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + (body or b""))

    def _more(self) -> bool:
        try:
            data = self.socket.recv(65536)
        except ConnectionError:
            return False
        self.buffer += data
        return bool(data)

    def until(self, mark: bytes) -> bytes:
        """What comes up to and with `mark`; asserts that it comes."""
        while mark not in self.buffer:
            assert self._more(), f"the connection ended before {mark!r}: {self.buffer[-200:]!r}"
        at = self.buffer.index(mark) + len(mark)
        taken, self.buffer = self.buffer[:at], self.buffer[at:]
        return taken

    def _take(self, size: int) -> bytes | None:
        while len(self.buffer) < size:
            if not self._more():
                return None
        taken, self.buffer = self.buffer[:size], self.buffer[size:]
        return taken

    def head(self) -> Reply:
        head = self.until(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")[:-2]
        pairs = (line.split(": ", 1) for line in lines)
        return Reply(int(first.split()[1]), head, {name.lower(): value for name, value in pairs})

    def reply(self, method: str = "GET") -> Reply:
        reply = self.head()
        if method == "HEAD" or reply.status in (100, 204, 304):
            reply.whole = True
        elif "transfer-encoding" in reply.headers:
            self._chunks(reply)
        elif "content-length" in reply.headers:
            size = int(reply.headers["content-length"])
            got = self._take(size)
            reply.body, reply.whole = (got, True) if got is not None else (self.buffer, False)
        else:
            while self._more():
                pass
            reply.body, self.buffer, reply.whole = self.buffer, b"", True
        return reply

    def _chunks(self, reply: Reply) -> None:
        while True:
            while b"\r\n" not in self.buffer:
                if not self._more():
                    return
            size = int(self.until(b"\r\n"), 16)
            piece = self._take(size + 2)
            if piece is None:
                return
            if size == 0:
                reply.whole = True
                return
            reply.body += piece[:-2]

    def reply_rest_is_whole(self) -> bool:
        while self._more():
            pass
        return self.buffer.endswith(b"0\r\n\r\n")

    def closed(self, within: float = 3) -> bool:
        """Whether the server closes its side, in which case nothing more came before."""
        self.socket.settimeout(within)
        try:
            return not self._more()
        except TimeoutError:
            return False
        finally:
            self.socket.settimeout(10)
