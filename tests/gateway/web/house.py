"""A gateway that was never started, and its pages asked as a server would."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from django.core.asgi import get_asgi_application

from engines.plan import Plan
from engines.recipes import RECIPES
from engines.signals import Load, ModelInfo, Residency, Signal, Snapshot
from gateway.accounts.keys import digest_of
from gateway.asgi import GATEWAY
from gateway.config import BackendConfig, Config, Digest, KeyConfig
from gateway.fleet.backend import Backend
from gateway.runtime import Gateway
from gateway.web.desk import Pages

OPS, ALICE = "sk-the-operator", "sk-alice"
URL = "http://box:8000"


def keys() -> list[KeyConfig]:
    return [
        KeyConfig(name="ops", sha256=Digest(digest_of(OPS)), admin=True),
        KeyConfig(name="alice", sha256=Digest(digest_of(ALICE)), rpm=60, tokens_per_day=1000),
    ]


def gateway(*configs: KeyConfig, file: Path | None = None, **settings: Any) -> Gateway:
    return Gateway(Config(keys=list(configs), backends=[BackendConfig(url=URL)], **settings), file=file)


def known(made: Gateway, load: Load | None = None, residency: Residency | None = None) -> Backend:
    """Its one backend, as a round that read this leaves it."""
    backend = Backend(BackendConfig(url=URL))
    recipe = RECIPES["vllm"]
    plan = Plan(recipe, "0.32.0", recipe.probes[:4], {"vllm-waiting": "it is <not> shown"})
    source = {Signal.MODELS: "openai-models"}
    if load is not None:
        source |= {Signal.RUNNING: "r", Signal.WAITING: "w", Signal.CAPACITY: "c", Signal.KV_USAGE: "k"}
    if residency is not None:
        source[Signal.RESIDENCY] = "s"
    snapshot = Snapshot("0.32.0", {"m": ModelInfo(residency)}, {"m": load} if load else {}, source)
    made.fleet._use([backend])
    backend.resolved(plan, snapshot, made.now())
    return backend


@dataclass(slots=True)
class Came:
    status: int
    headers: list[tuple[str, str]]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def header(self, name: str) -> str | None:
        return next((v for n, v in self.headers if n == name.lower()), None)

    @property
    def cookies(self) -> dict[str, str]:
        """Name -> the whole line."""
        return {v.partition("=")[0]: v for n, v in self.headers if n == "set-cookie"}


@dataclass(slots=True)
class Visitor:
    """A browser, as far as these tests need one: it keeps cookies and sends back the form's token."""

    gateway: Gateway
    client: str | None = "127.0.0.1"
    host: str = "localhost:8090"
    scheme: str = "http"
    accept: str = "text/html,*/*;q=0.8"
    pages: Pages = field(default_factory=lambda: Pages(get_asgi_application()))
    jar: dict[str, str] = field(default_factory=dict)

    async def get(self, path: str, *more: tuple[str, str]) -> Came:
        return await self.ask("GET", path, more)

    async def post(self, path: str, form: dict[str, str], *more: tuple[str, str]) -> Came:
        kind = ("content-type", "application/x-www-form-urlencoded")
        return await self.ask("POST", path, (kind, *more), urlencode(form).encode())

    async def log_in(self, key: str = OPS, next_: str = "") -> Came:
        form = await self.get(f"/admin/login/?{urlencode({'next': next_})}")
        token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', form.text)
        assert token is not None
        sent = {"csrfmiddlewaretoken": token[1], "key": key, "next": next_}
        return await self.post("/admin/login/", sent)

    async def ask(
        self, method: str, target: str, more: Sequence[tuple[str, str]] = (), body: bytes = b""
    ) -> Came:
        path, _, query = target.partition("?")
        headers = [("host", self.host), ("accept", self.accept), *more]
        if self.jar:
            headers.append(("cookie", "; ".join(f"{n}={v}" for n, v in self.jar.items())))
        merged = dict(headers)  # what is given last counts
        scope = {
            "type": "http", "http_version": "1.1", "method": method, "scheme": self.scheme,
            "path": path, "raw_path": path.encode(), "query_string": query.encode(), "root_path": "",
            "headers": [(n.encode(), v.encode("latin-1")) for n, v in merged.items() if v != "-"],
            "client": None if self.client is None else [self.client, 50000], "server": ["127.0.0.1", 8090],
            GATEWAY: self.gateway,
        }  # fmt: skip
        sent: list[Any] = []
        given = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Any:
            if given:
                return given.pop()
            return await asyncio.Event().wait()

        async def send(message: Any) -> None:
            sent.append(message)

        await self.pages(scope, receive, send)
        lines = [(n.decode().lower(), v.decode("latin-1")) for n, v in sent[0]["headers"]]
        came = Came(sent[0]["status"], lines, b"".join(m.get("body", b"") for m in sent[1:]))
        for name, line in came.cookies.items():
            kept = line.partition(";")[0].partition("=")[2].strip('"')
            self.jar.pop(name, None)
            if kept:
                self.jar[name] = kept
        return came
