"""What the simulated users say."""

from __future__ import annotations

import itertools
import json

import pytest

from engines.doubles.asks import prompt_of
from gateway.simulate.trace import Turn, users_of
from tests.gateway.simulate.small import small


def turns(user: int, n: int = 8, seed: int = 1) -> list[Turn]:
    """User 0 writes Cyrillic and escapes it, 1 and 2 chat plainly, 4 is the agent, 5 the classifier."""
    return list(itertools.islice(users_of(small(), seed)[user].turns, n))


@pytest.mark.parametrize("user", range(6))
def test_a_later_turn_begins_with_the_whole_earlier_one_and_its_answer(user: int) -> None:
    pairs = [(a, b) for a, b in itertools.pairwise(turns(user, 30)) if a.session == b.session]
    for earlier, later in pairs:
        begin = prompt_of(json.loads(earlier.body)) + earlier.answer
        assert prompt_of(json.loads(later.body)).startswith(begin)
    assert pairs or user == 5


def test_users_of_one_app_share_a_system_prompt_and_no_conversation() -> None:
    one, other = (json.loads(turns(user, 1)[0].body)["messages"] for user in (1, 2))
    assert one[0] == other[0]
    assert one[1] != other[1]


def test_apps_have_system_prompts_of_their_own() -> None:
    chat, agent = (json.loads(turns(user, 1)[0].body)["messages"] for user in (1, 4))
    assert chat[0] != agent[0]


def test_an_escaped_body_holds_the_same_text_in_ascii() -> None:
    body = turns(0, 1)[0].body
    assert body.isascii()
    assert b"\\u0" in body
    assert not json.loads(body)["messages"][1]["content"].isascii()


def test_a_classifier_wants_one_token() -> None:
    assert {t.answer_tokens for t in turns(5, 20)} <= {1, 2, 3, 4, 5, 6}
    assert all(t.number == 0 for t in turns(5, 20) if t.session.endswith("/1"))


def test_what_is_said_depends_on_the_seed_alone() -> None:
    assert turns(1, 5) == turns(1, 5)
    assert turns(1, 5) != turns(1, 5, seed=2)
