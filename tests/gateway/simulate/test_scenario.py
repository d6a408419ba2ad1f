"""Scenario files: strict, and those that come with Pharos can be run."""

from __future__ import annotations

import pytest

from gateway.simulate.scenario import ScenarioError, load, names, parse
from gateway.simulate.trace import users_of
from tests.gateway.simulate.small import TEXT, small


@pytest.mark.parametrize("name", list(names()))
def test_every_scenario_that_comes_with_pharos_can_be_read_with_its_variants(name: str) -> None:
    for variant in ("", *(f":{v}" for v in load(name).variants)):
        assert users_of(load(name + variant), seed=1)


@pytest.mark.parametrize(
    ("wrong", "right", "said"),
    [
        ("minuts: 2", "minutes: 2", "minuts"),
        ("engine: olama", "engine: ollama", "no engine 'olama': there are llamacpp"),
        ("loaded: [c]", "loaded: [a]\n    memory", "c is loaded and not listed"),
        ("kind: robot", "kind: agent", "no kind of user is called 'robot': there are chat"),
        ("model: c, key", "model: b, key", "which no host has"),
        ("name: one", "name: two", "two hosts have one name"),
        ("slots: 0", "slots: 2", ">= 1"),
        ("load_s: -1", "load_s: 5", "> 0"),
    ],
)
def test_a_mistake_is_named(wrong: str, right: str, said: str) -> None:
    if right.endswith("memory"):
        wrong += "\n    memory"
    with pytest.raises(ScenarioError, match="scenario small: ") as e:
        small(**{right: wrong})
    assert said in str(e.value)


def test_a_file_that_is_not_yaml_is_said_to_be_none() -> None:
    with pytest.raises(ScenarioError, match="not YAML"):
        parse("a: [", "x")


def test_an_unknown_name_lists_those_there_are() -> None:
    with pytest.raises(ScenarioError, match="mixed"):
        load("nothing")
    with pytest.raises(ScenarioError, match="users-48"):
        load("mixed:users-5")


def test_a_variant_changes_every_host_and_the_number_of_users() -> None:
    varied = parse(TEXT + "variants: {slow: {hosts: {load_s: 90}, times: 2}}", "x").varied("slow")
    assert [h.load_s for h in varied.hosts] == [90, 90]
    assert len(users_of(varied, seed=1)) == 12
    assert varied.name == "x:slow"


def test_a_habit_can_be_changed_and_not_invented() -> None:
    slow = small(**{"kind: agent,": "kind: agent, habit: {think_s: 99},"})
    assert slow.users[2].habits.think_s == 99
    with pytest.raises(ScenarioError, match="thinks"):
        small(**{"kind: agent,": "kind: agent, habit: {thinks: 99},"})
