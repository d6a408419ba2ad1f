"""Recorded conversations, turn by turn: what each has in common with the turn before.

`python -m tests.gateway.routing.conversations` prints the table of docs/ROUTING.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from gateway.proxy.ask import decode
from gateway.routing.links import Chain
from gateway.routing.prefix import PrefixIndex
from gateway.routing.prompt import chain_of
from tests.gateway.proxy.recorded import CLIENTS, Sent, sent

CONVERSATIONS: Mapping[str, tuple[tuple[int, ...], ...]] = {
    "aider/0.86.2": ((10, 11, 12),),
    "anthropic-python/2.14.0": ((6, 7, 8), (9, 10)),
    "claude-code/2.1.332": ((4, 5), (8, 9, 10), (50, 51, 79, 80)),
    "codex/0.171.0": ((2, 3), (4, 5), (110, 112)),
    "langchain-openai/1.7.4": ((4, 5, 6), (7, 8)),
    "litellm/1.110.2": ((5, 6, 7), (8, 9)),
    "llm/0.36": ((6, 9, 12), (14, 15)),
    "ollama-python/0.6.3": ((7, 8, 9), (10, 11)),
    "open-webui/0.12.4": ((41, 44, 46), (67, 70), (76, 77)),
    "openai-node/6.49.0": ((7, 8, 9), (10, 11)),
    "openai-node/7.59.0": ((7, 8, 9), (10, 11)),
    "openai-python/3.57.0": ((9, 10, 11), (12, 13), (102, 103)),
    "opencode/1.18.33": ((4, 5), (7, 8)),
    "pydantic-ai/2.68.0": ((3, 4, 5), (6, 7)),
    "vercel-ai-sdk/7.0.173": ((4, 5, 6), (7, 8)),
}
"""Client to the numbers of the requests of each conversation. The other recorded clients ask once."""


def request(client: str, number: int) -> Sent:
    return sent(CLIENTS / client / f"{number:03}.request.http")


def chain(request: Sent) -> Chain:
    fields = decode(request.body)
    return chain_of(request.path, fields, json.loads(fields["model"]))


@dataclass(frozen=True)
class Turn:
    """One request after another of its conversation. Sizes in bytes of prompt."""

    client: str
    number: int
    size: int
    before: int  # the prompt of the turn before
    matched: int  # of it, by the index

    @property
    def kept(self) -> float:
        """The share of the turn before that is found again."""
        return self.matched / self.before

    @property
    def share(self) -> float:
        """The share of this prompt that need not be computed."""
        return self.matched / self.size

    def __str__(self) -> str:
        return f"{self.client.replace('/', '-')}-{self.number}"


def turns() -> list[Turn]:
    found = []
    for client, conversations in CONVERSATIONS.items():
        for numbers in conversations:
            index = PrefixIndex()
            before = chain(request(client, numbers[0]))
            for number in numbers[1:]:
                index.record("t", 0, before, 0.0)
                now = chain(request(client, number))
                match = index.lookup(now, {"t": 0}).get("t")
                found.append(Turn(client, number, now.size, before.size, match.bytes if match else 0))
                before = now
    return found


def table() -> str:
    lines = [
        "| client | turns | of the turn before found again | of the new prompt known |",
        "|---|---:|---:|---:|",
    ]
    for client in CONVERSATIONS:
        mine = [t for t in turns() if t.client == client]
        kept = min(t.kept for t in mine)
        shares = f"{min(t.share for t in mine):.0%} to {max(t.share for t in mine):.0%}"
        lines.append(f"| {client.replace('/', ' ')} | {len(mine)} | {kept:.0%} | {shares} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())  # noqa: T201
