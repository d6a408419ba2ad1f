"""Who takes part: the stand-in engine, and in front of it the gateway, and nginx for comparison."""

from __future__ import annotations

import json
import os
import resource
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path

import yaml

from gateway.demo.install import ROOT
from gateway.demo.processes import Child, StartError, free_port, wait_ready
from gateway.demo.stage import environment

CAPACITY = 4096  # of the stand-in engine: nobody waits for a place in these measurements
FILES = 8192  # a thousand streams are two thousand sockets

NGINX_MISSING = (
    "not measured: there is no nginx here. On Debian and Ubuntu: apt install nginx-light; `make bench` "
    "starts one of its own, so nothing is to be set up"
)

NGINX = """\
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/nginx-errors.log;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    client_max_body_size 32m;
    client_body_buffer_size 32m;
    keepalive_requests 1000000;
    tcp_nodelay on;
    upstream engine {{ {upstream} }}
    server {{
        listen 127.0.0.1:{port} backlog=1024;
        location / {{
            proxy_pass http://engine;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
        }}
    }}
}}
"""
"""A plain proxy: it reads bodies whole and in memory, as Pharos does, and passes on each chunk as it comes.
One worker, as Pharos is one process."""


class Party(Child):
    """One process, or one with its workers, that answers on `port`."""

    def __init__(self, name: str, command: list[str], folder: Path, port: int, env: dict[str, str]) -> None:
        self.port = port
        super().__init__(name, command, folder / f"{port}.log", env=env, cwd=ROOT)

    def processes(self) -> list[int]:
        """What the leash holds, and its children; empty where there is no /proc."""
        commands = _children(self.pid)
        return [*commands, *(worker for command in commands for worker in _children(command))]

    def cpu_s(self) -> float | None:
        """User and system time so far, from /proc."""
        pids = self.processes()
        return sum(map(_cpu_s, pids)) if pids else None

    def resident_mib(self) -> float | None:
        pids = self.processes()
        return sum(map(_resident_mib, pids)) if pids else None


@dataclass(frozen=True, slots=True)
class Seen:
    """Of the gateway's loop, one entry a tick: how late it came, and the CPU time since the one before."""

    late_ms: list[float]
    cpu_ms: list[float]


@dataclass(frozen=True, slots=True)
class Parties:
    engine: Party
    gateway: Party
    nginx: Party | None  # where there is one

    def all(self) -> list[Party]:
        return [p for p in (self.engine, self.nginx, self.gateway) if p is not None]

    # -- the loop of the gateway ---------------------------------------------------------------

    def watch_loop(self) -> None:
        self._get("/bench/lag/start")

    def loop_seen(self) -> Seen:
        """What was seen since `watch_loop`; the watch is over then."""
        return Seen(**json.loads(self._get("/bench/lag/stop")))

    def _get(self, path: str) -> bytes:
        connection = HTTPConnection("127.0.0.1", self.gateway.port, timeout=30)
        try:
            connection.request("GET", path)
            return connection.getresponse().read()
        finally:
            connection.close()


@contextmanager
def on_stage(folder: Path) -> Iterator[Parties]:
    """Raises StartError when the stand-in engine or the gateway does not come up."""
    _allow_files(FILES)
    env = dict(os.environ)
    with ExitStack() as started:
        port = free_port()
        command = [sys.executable, "-m", "benchmarks.standin", str(port)]
        engine = started.enter_context(Party("The stand-in engine", command, folder, port, env))
        wait_ready(engine, port, "/v1/models", deadline_s=30)
        gateway = started.enter_context(_gateway(folder, port))
        wait_ready(gateway, gateway.port, "/healthz", deadline_s=60)
        beside = nginx(folder, f"server 127.0.0.1:{port}; keepalive 64; keepalive_requests 1000000;")
        if beside is not None:
            started.enter_context(beside)
            wait_ready(beside, beside.port, "/v1/models", deadline_s=30)
        yield Parties(engine, gateway, beside)


def _gateway(folder: Path, engine: int) -> Party:
    port, file = free_port(), folder / "pharos.yaml"
    config = {
        "listen": f"127.0.0.1:{port}",
        "backends": [{"url": f"http://127.0.0.1:{engine}", "capacity": CAPACITY}],
        "drain": {"grace": "1ms", "timeout": "2s"},
    }
    file.write_text(yaml.safe_dump(config))
    command = [sys.executable, "-m", "daphne", "benchmarks.watched:application"]
    return Party("The gateway", command, folder, port, environment(os.environ, file))


def nginx(folder: Path, upstream: str) -> Party | None:
    """Running once made; `upstream` is the block that names its engines. None: no nginx here."""
    program = shutil.which("nginx", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")
    if program is None:
        return None
    port, file = free_port(), folder / "nginx.conf"
    file.write_text(NGINX.format(folder=folder, upstream=upstream, port=port))
    folder.chmod(0o755)  # its worker runs as another user when we are root
    return Party("nginx", [program, "-p", str(folder), "-c", str(file)], folder, port, dict(os.environ))


def _allow_files(wanted: int) -> None:
    """For this process and those it starts. Raises StartError where even the hard limit is lower."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise StartError(f"a process may open {hard} files here and the bench needs {wanted}: ulimit -Hn")
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


# -- /proc -------------------------------------------------------------------------------------


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _cpu_s(pid: int) -> float:
    """By the process's clock where it can be read: /proc counts in hundredths of a second, and nginx needs
    fewer of them for a block of requests than there are requests."""
    try:
        return time.clock_gettime((~pid << 3) | 2)  # Linux: the clock of all threads of another process
    except OSError:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0
