"""Who asks what: conversations drawn from a seed. What a user says does not depend on how it is served.

Only when a turn is sent does: a user reads, thinks, and sends the next one. So all routers are given the
same conversations, and a slow one gets through fewer of them.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from engines.doubles.assumptions import BYTES_PER_TOKEN
from gateway.simulate.scenario import Habit, Scenario, Users

_LATIN, _CYRILLIC = (
    text.split()
    for text in (
        "the of and to in is that for it with as was on be at by this have from or had not are but what all "
        "were when we there can an your which their said if do will each about how up out them then she many "
        "some so these would other into has more her two like him see time could no make than first been who "
        "now people my made over did down only way find use may water long little very after words called",
        "и в не на я быть он с что а по это она этот к но они мы весь который из у то за свой так от для как "
        "вы все год один мочь человек время дело жизнь день рука работа слово место вопрос лицо друг дом",
    )
)


@dataclass(frozen=True, slots=True)
class Turn:
    """One request, as its client sends it, and what the engine makes of it."""

    user: str
    session: str
    kind: str
    key: str
    model: str
    number: int  # in its conversation, from 0
    body: bytes
    answer: bytes
    answer_tokens: int
    pause_s: float  # from the end of its answer to the next turn


@dataclass(frozen=True, slots=True)
class User:
    name: str
    starts_s: float
    turns: Iterator[Turn]


def users_of(scenario: Scenario, seed: int) -> list[User]:
    """Everybody, each with an endless iterator of turns. The same seed gives the same turns."""
    found = []
    for at, group in enumerate(scenario.users):
        for n in range(group.count):
            name = f"{group.kind}-{at + 1}.{n + 1}"
            rng = random.Random(f"{seed} {name}")
            cyrillic = n < round(group.escaped * group.count)
            found.append(User(name, rng.uniform(0, group.starts_s), _turns(name, group, cyrillic, seed, rng)))
    return found


def _turns(name: str, group: Users, cyrillic: bool, seed: int, rng: random.Random) -> Iterator[Turn]:
    habit = group.habits
    words = _CYRILLIC if cyrillic else _LATIN
    app = random.Random(f"{seed} {group.app or group.kind}")
    system = {"role": "system", "content": _text(app, _LATIN, habit.shared_tokens)}
    conversation = 0
    while True:
        conversation += 1
        messages = [system]
        turns = max(1, round(_draw(rng, habit.turns, habit.spread)))
        for number in range(turns):
            said = habit.next_tokens if number else habit.first_tokens
            messages.append(_message("user", rng, words, _draw(rng, said, habit.spread)))
            tokens = max(1, round(_draw(rng, habit.answer_tokens, habit.spread)))
            answer = _message("assistant", rng, words, tokens)
            last = number == turns - 1
            yield Turn(
                name,
                f"{name}/{conversation}",
                group.kind,
                group.key,
                group.model,
                number,
                _body(group.model, messages, escape=cyrillic),
                answer["content"].encode(),
                tokens,
                _draw(rng, _pause(habit, last), habit.spread),
            )
            messages.append(answer)


def _pause(habit: Habit, last: bool) -> float:
    return habit.rest_s if last else habit.think_s


def _draw(rng: random.Random, median: float, spread: float) -> float:
    """Log-normal, and at most six times the median: one draw must not decide a run."""
    return min(median * math.exp(rng.gauss(0, spread)), 6 * median)


def _message(role: str, rng: random.Random, words: list[str], tokens: float) -> dict[str, str]:
    return {"role": role, "content": _text(rng, words, tokens)}


def _text(rng: random.Random, words: list[str], tokens: float) -> str:
    wanted = round(tokens * BYTES_PER_TOKEN)
    each = 5 if words is _LATIN else 10  # bytes of a word and its blank
    return " ".join(rng.choices(words, k=max(1, wanted // each)))


def _body(model: str, messages: list[dict[str, str]], *, escape: bool) -> bytes:
    asked = {"model": model, "messages": messages, "stream": True, "stream_options": {"include_usage": True}}
    return json.dumps(asked).encode() if escape else msgspec.json.encode(asked)
