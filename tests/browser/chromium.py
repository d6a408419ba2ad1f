"""The machine's own Chromium: nothing is downloaded for it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SHOTS = Path(__file__).resolve().parents[2] / ".run" / "browser"
"""Where pictures of the pages are left."""


class NoBrowser(Exception):
    pass


def path() -> str:
    """Raises NoBrowser, with what to do."""
    named = os.environ.get("PHAROS_TEST_CHROMIUM")
    found = named or next((p for n in NAMES if (p := shutil.which(n)) is not None), None)
    if found is None:
        raise NoBrowser(
            "These tests drive Chromium, and there is none here: install it (Debian: `apt-get install chromium`)"
            " or name its program in PHAROS_TEST_CHROMIUM."
        )
    return found


@contextmanager
def running() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        root = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=path(), args=root)
        try:
            yield browser
        finally:
            browser.close()
