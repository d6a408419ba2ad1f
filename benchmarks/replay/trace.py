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


@dataclass(frozen=True, slots=True)
class Shape:
    """How long, how many. A word of the licence is 1.3 tokens."""

    users: int = 8
    turns: int = 4
    system_words: tuple[int, ...] = (950, 700, 120)
    """Of the system prompts, about 1,250, 900 and 160 tokens. The first ones are picked more often."""
    question_words: tuple[int, int] = (20, 90)
    pasted_words: int = 250  # with the first question of every third conversation
    answer_tokens: tuple[int, int] = (12, 40)
    think_s: float = 2.0  # on average


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


def trace(seed: int, shape: Shape = Shape()) -> list[Talk]:
    """The same for the same arguments."""
    chance = random.Random(seed)
    sentences = _sentences()
    systems = [_text(chance, sentences, words) for words in shape.system_words]
    return [_talk(chance, sentences, number, systems, shape) for number in range(shape.users)]


def _talk(
    chance: random.Random, sentences: Sequence[str], number: int, systems: Sequence[str], shape: Shape
) -> Talk:
    system = chance.choices(systems, range(len(systems) + 1, 1, -1))[0]
    turns = []
    for turn in range(shape.turns):
        pasted = shape.pasted_words if turn == 0 and number % 3 == 0 else 0
        question = _text(chance, sentences, chance.randint(*shape.question_words) + pasted)
        answer_tokens = chance.randint(*shape.answer_tokens)
        turns.append(Turn(chance.expovariate(1 / shape.think_s), question, answer_tokens))
    return Talk(f"user-{number}", system, tuple(turns))


def _sentences() -> list[str]:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    return [" ".join(s.split()) for s in re.split(r"(?<=[.;:])\s", text) if len(s) > 20]


def _text(chance: random.Random, sentences: Sequence[str], words: int) -> str:
    found: list[str] = []
    while len(found) < words:
        found += chance.choice(sentences).split(" ")
    return " ".join(found[:words])
