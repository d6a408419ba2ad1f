"""The real process in front of two engine doubles, and a real browser."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page

from gateway.accounts.keys import digest_of
from tests.browser import chromium
from tests.pharos_site.raw import Process, free_port

OPS, ALICE = "sk-the-operator-of-these-tests", "sk-alice-of-these-tests"
SOON_S = 20.0
CONFIG = """
backends:
  - url: http://127.0.0.1:{ollama}
  - url: http://127.0.0.1:{vllm}
  - url: http://127.0.0.1:1
drain: {{grace: 100ms, timeout: 1s}}
usage: {{timezone: Asia/Tokyo}}
"""
KEYS = f"""
keys:
  - {{name: ops, sha256: {digest_of(OPS)}, admin: true}}
  - {{name: alice, sha256: {digest_of(ALICE)}, rpm: 1000, tokens_per_day: 200000}}
"""


class Site:
    def __init__(self, process: Process, config: Path) -> None:
        self.process, self.config = process, config
        self.url = f"http://127.0.0.1:{process.port}"

    def ask(
        self, model: str, key: str = ALICE, max_tokens: int = 8, words: int = 40, stream: bool = True
    ) -> int:
        body = {
            "model": model, "stream": stream, "max_tokens": max_tokens,
            "messages": [{"role": "user", "content": "Tell me about it. " + "word " * words}],
        }  # fmt: skip
        headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        url = f"{self.url}/v1/chat/completions"
        request = urllib.request.Request(url, json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                reply.read()
                return int(reply.status)
        except urllib.error.HTTPError as e:
            with e:
                return e.code


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + SOON_S
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture(scope="session")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, int]]:
    folder = tmp_path_factory.mktemp("engines")
    ports = {"ollama": free_port(), "vllm": free_port()}
    running = [
        Process(folder / kind, ("manage", "pharos_double", kind, "--port", str(port)), port)
        for kind, port in ports.items()
    ]
    yield ports
    for process in running:
        process.stop()


def start(folder: Path, engines: dict[str, int], keys: str) -> Site:
    config = folder / "pharos.yaml"
    config.write_text(CONFIG.format(**engines) + keys)
    port = free_port()
    command = ["daphne", "-b", "127.0.0.1", "-p", str(port), "pharos_site.asgi:application"]
    process = Process(folder / "log", command, port, PHAROS_CONFIG=str(config), TZ="UTC")
    site = Site(process, config)

    def up() -> bool:
        try:
            with urllib.request.urlopen(f"{site.url}/healthz", timeout=5) as reply:
                return list(json.load(reply)["backends"].values()).count("up") == 2
        except OSError:
            return False

    try:
        until(up)
    except BaseException:
        process.stop()
        raise
    return site


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory, engines: dict[str, int]) -> Iterator[Site]:
    made = start(tmp_path_factory.mktemp("site"), engines, KEYS)
    for i in range(12):
        made.ask(
            "smollm2" if i % 3 else "smollm2:135m", (ALICE, OPS)[i % 4 == 0], 8 + 4 * i, 30 * i, i % 5 != 0
        )
    assert made.ask("no-such-model") == 404
    assert made.ask("smollm2", "sk-nobody") == 401
    yield made
    made.process.stop()


@pytest.fixture(scope="session")
def open_site(tmp_path_factory: pytest.TempPathFactory, engines: dict[str, int]) -> Iterator[Site]:
    """Without keys."""
    made = start(tmp_path_factory.mktemp("open"), engines, "")
    yield made
    made.process.stop()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    try:
        chromium.path()
    except chromium.NoBrowser as e:
        pytest.fail(str(e), pytrace=False)
    with chromium.running() as found:
        yield found


class Watched:
    """A browser's window, and what went wrong in it."""

    def __init__(self, context: BrowserContext, site: Site) -> None:
        self.context, self.page, self.site = context, context.new_page(), site
        self.errors: list[str] = []
        self.asked: set[str] = set()
        self.page.on(
            "console", lambda m: self.errors.append(m.text) if m.type in ("error", "warning") else None
        )
        self.page.on("pageerror", lambda e: self.errors.append(str(e)))
        context.on("request", lambda r: self.asked.add(r.url))

    def go(self, path: str) -> Page:
        self.page.goto(self.site.url + path)
        return self.page

    def log_in(self, key: str = OPS) -> Page:
        self.go("/admin/login/")
        self.page.fill("#id_key", key)
        self.page.click("input[type=submit]")
        return self.page

    @property
    def elsewhere(self) -> list[str]:
        return [url for url in self.asked if not url.startswith(self.site.url + "/")]


@pytest.fixture
def window(browser: Browser, site: Site) -> Iterator[Watched]:
    with_options = look(browser, site)
    yield with_options
    with_options.context.close()


def look(browser: Browser, site: Site, **options: Any) -> Watched:
    options = {
        "timezone_id": "Europe/Paris",
        "locale": "en-GB",
        "viewport": {"width": 1360, "height": 900},
    } | options
    return Watched(browser.new_context(**options), site)
