"""What people ask: conversations that share system prompts, grow, and pause while somebody reads. Pure.

The words are sentences of our licence in random order: English, so that a token is as long as usual, and the
same in every copy of Pharos.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.demo.install import ROOT

USERS = 8
TURNS = 4
SYSTEM_WORDS = (950, 700, 120)
"""Of the system prompts. A word of the licence is 1.3 tokens, so these are about 1,250, 900 and 160 tokens."""
WEIGHTS = (3, 3, 2)
QUESTION_WORDS = (20, 90)
PASTED_WORDS = 250  # with the first question of every third conversation
ANSWER_TOKENS = (12, 40)
THINK_S = 2.0  # on average


@dataclass(frozen=True, slots=True)
class Turn:
    think_s: float  # from the answer before, or from the start
    question: str
    answer_tokens: int


@dataclass(frozen=True, slots=True)
class Talk:
    """One user's conversation."""

    user: str
    system: str
    turns: tuple[Turn, ...]


def trace(seed: int, users: int = USERS, turns: int = TURNS) -> list[Talk]:
    """The same for the same arguments."""
    chance = random.Random(seed)
    sentences = _sentences()
    systems = [_text(chance, sentences, words) for words in SYSTEM_WORDS]
    return [_talk(chance, sentences, number, systems, turns) for number in range(users)]


def _talk(chance: random.Random, sentences: Sequence[str], number: int, systems: list[str], turns: int) -> Talk:
    system = chance.choices(systems, WEIGHTS)[0]
    asked = []
    for turn in range(turns):
        words = chance.randint(*QUESTION_WORDS) + (PASTED_WORDS if turn == number % 3 == 0 else 0)
        question = _text(chance, sentences, words)
        asked.append(Turn(chance.expovariate(1 / THINK_S), question, chance.randint(*ANSWER_TOKENS)))
    return Talk(f"user-{number}", system, tuple(asked))


def _sentences() -> list[str]:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    return [" ".join(s.split()) for s in re.split(r"(?<=[.;:])\s", text) if len(s) > 20]


def _text(chance: random.Random, sentences: Sequence[str], words: int) -> str:
    found: list[str] = []
    while len(found) < words:
        found += chance.choice(sentences).split(" ")
    return " ".join(found[:words])
