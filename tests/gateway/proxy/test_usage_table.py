"""docs/SUPPORT.md says per engine version what its replies report. It is what the tap reads of the recordings."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path

from engines.usage import Api
from tests.engines.recorded_usage import ALL, Reply
from tests.gateway.proxy.test_tap_replay import tap_of, through

SUPPORT = Path(__file__).parents[3] / "docs" / "SUPPORT.md"

COLUMNS = (Api.CHAT, Api.COMPLETIONS, Api.MESSAGES, Api.RESPONSES, Api.EMBEDDINGS, Api.OLLAMA)
WORDS = {
    "prompt_tokens": "prompt",
    "completion_tokens": "generated",
    "cached_tokens": "cached",
    "prefill_s": "times",
    "load_s": "load",
}
"""A field in a cell. `decode_s` comes with `prefill_s`, and `total_s` is of no use to a reader."""


def fields(replies: list[Reply], api: Api) -> str:
    read = [asdict(through(tap_of(r), [r.body])[1].usage) for r in replies if r.api is api]
    return ", ".join(word for name, word in WORDS.items() if any(u[name] is not None for u in read)) or "–"


def row(version: str, replies: list[Reply]) -> str:
    counted = sum(through(tap_of(r), [r.body])[1].usage.prompt_tokens is not None for r in replies)
    cells = [version, *(fields(replies, api) for api in COLUMNS), f"{counted} of {len(replies)}"]
    return "| " + " | ".join(cells) + " |"


def test_the_table_in_the_docs_is_what_the_recordings_say() -> None:
    versions = sorted({(r.engine, r.version) for r in ALL})
    expected = [
        row(f"{engine} {version}", [r for r in ALL if (r.engine, r.version) == (engine, version)])
        for engine, version in versions
    ]
    section = SUPPORT.read_text().split("\n## Token usage\n")[1].split("\n## ")[0]
    assert re.findall(r"(?m)^\| [a-z].* v?b?\d.*\|$", section) == expected, "\n".join(expected)
