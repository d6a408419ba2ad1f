"""Whose turn it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.routing.queue import Answer, FairQueue


def grants(queue: FairQueue[str], n: int, can: Callable[[str], bool] = lambda _: True) -> list[str]:
    """Up to `n` places free up, one at a time."""
    taken: list[str] = []
    limit = 0

    def offer(item: str) -> Answer:
        if len(taken) >= limit or not can(item):
            return Answer.REFUSED
        taken.append(item)
        return Answer.GRANTED

    for _ in range(n):
        limit = len(taken) + 1
        queue.serve(offer)
    return taken


def filled(*waiters: tuple[str, str, int], group: str = "m") -> FairQueue[str]:
    queue: FairQueue[str] = FairQueue()
    for item, key, weight in waiters:
        queue.push(item, key, weight, group)
    return queue


def test_one_key_is_served_in_order_of_arrival() -> None:
    assert grants(filled(("1", "a", 1), ("2", "a", 1), ("3", "a", 1)), 3) == ["1", "2", "3"]


def test_a_key_with_one_request_does_not_wait_behind_a_key_with_many() -> None:
    queue = filled(*((f"a{i}", "a", 1) for i in range(9)), ("b", "b", 1))
    assert grants(queue, 3) == ["a0", "b", "a1"]


def test_a_key_keeps_its_turn_for_as_many_grants_as_its_weight() -> None:
    queue = filled(*((f"a{i}", "a", 3) for i in range(6)), *((f"b{i}", "b", 1) for i in range(6)))
    assert grants(queue, 8) == ["a0", "a1", "a2", "b0", "a3", "a4", "a5", "b1"]


def test_a_retry_goes_before_the_others_of_its_key_only() -> None:
    queue = filled(("b1", "b", 1), ("a1", "a", 1), ("b2", "b", 1))
    queue.push("again", "a", 1, "m", front=True)
    assert grants(queue, 4) == ["b1", "again", "b2", "a1"]


def test_a_retry_that_differs_from_the_others_of_its_key_goes_before_them_too() -> None:
    queue = filled(("a1", "a", 1), ("a2", "a", 1))
    queue.push("again", "a", 1, "another group", front=True)
    queue.push("elsewhere", "a", 1, "m", kind="another kind", front=True)
    assert grants(queue, 4) == ["elsewhere", "again", "a1", "a2"]


def test_a_key_that_cannot_be_served_is_passed_by_and_keeps_its_place() -> None:
    queue: FairQueue[str] = FairQueue()
    queue.push("busy", "a", 1, "busy model")
    for i in range(4):
        queue.push(f"b{i}", "b", 1, "m")
        queue.push(f"c{i}", "c", 1, "m")
    assert grants(queue, 3, lambda item: item != "busy") == ["b0", "c0", "b1"]
    assert grants(queue, 2) == ["busy", "c1"]


def test_a_request_is_not_held_up_by_an_earlier_one_of_its_key_for_another_model() -> None:
    queue: FairQueue[str] = FairQueue()
    queue.push("busy", "a", 1, "busy model")
    queue.push("free", "a", 1, "m")
    assert grants(queue, 1, lambda item: item != "busy") == ["free"]


def test_a_waiter_that_is_gone_does_not_use_up_its_keys_turn() -> None:
    queue = filled(("gone", "a", 1), ("a1", "a", 1), ("b1", "b", 1))
    order: list[str] = []

    def offer(item: str) -> Answer:
        order.append(item)
        return Answer.GONE if item == "gone" else Answer.GRANTED

    queue.serve(offer)
    assert order == ["gone", "a1", "b1"]


def test_a_round_asks_once_for_all_who_want_the_same() -> None:
    queue = filled(*((str(i), f"key {i % 50}", 1) for i in range(1000)))
    asked: list[str] = []

    def refuse(item: str) -> Answer:
        asked.append(item)
        return Answer.REFUSED

    queue.serve(refuse)
    assert (len(asked), len(queue)) == (1, 1000)


def test_where_a_kind_has_no_place_one_is_asked_for_all_its_groups_and_other_kinds_go_on() -> None:
    queue: FairQueue[str] = FairQueue()
    for i in range(100):
        queue.push(f"full {i}", f"key {i % 10}", 1, group=i, kind="full")
    queue.push("open", "key 5", 1, group="g", kind="open")
    asked: list[str] = []

    def offer(item: str) -> Answer:
        asked.append(item)
        return Answer.GRANTED if item == "open" else Answer.FULL

    queue.serve(offer)
    assert asked == ["full 0", "open"]
    assert (len(queue), queue.has(3, "full"), queue.has("g", "open")) == (100, True, False)


def test_a_refusal_speaks_for_its_group_within_its_kind_only() -> None:
    queue: FairQueue[str] = FairQueue()
    for item, kind, group in (("1", "x", "g"), ("2", "x", "h"), ("3", "y", "g"), ("4", "x", "g")):
        queue.push(item, "a", 1, group, kind=kind)
    asked: list[str] = []

    def refuse(item: str) -> Answer:
        asked.append(item)
        return Answer.REFUSED

    queue.serve(refuse)
    assert asked == ["1", "2", "3"]


def test_nobody_waits_twice() -> None:
    queue = filled(("1", "a", 1))
    with pytest.raises(ValueError, match="already"):
        queue.push("1", "a", 1, "m")


def test_leaving_leaves_nothing_behind() -> None:
    queue = filled(("1", "a", 1))
    assert queue.remove("1")
    assert not queue.remove("1")
    assert (len(queue), list(queue), queue.by_key(), queue.has("m")) == (0, [], {}, False)


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(1, 9), min_size=2, max_size=6))
def test_shares_follow_the_weights_over_a_thousand_grants(weights: list[int]) -> None:
    queue: FairQueue[str] = FairQueue()
    for key, weight in enumerate(weights):
        for i in range(1000):
            queue.push(f"{key} {i}", str(key), weight, i % 3)
    counts = Counter(item.split()[0] for item in grants(queue, 1000))
    for key, weight in enumerate(weights):
        fair = 1000 * weight / sum(weights)
        assert counts[str(key)] == pytest.approx(fair, abs=max(0.1 * fair, weight))


@settings(deadline=None)
@given(st.data())
def test_whatever_comes_and_goes_each_waiter_is_granted_or_removed_once(data: st.DataObject) -> None:
    queue: FairQueue[int] = FairQueue()
    waiting: dict[int, str] = {}
    for n in range(data.draw(st.integers(1, 40))):
        match data.draw(st.sampled_from(["push", "push", "front", "remove", "serve"])):
            case "push" | "front" as how:
                key, group = data.draw(st.sampled_from("abc")), data.draw(st.sampled_from("xy"))
                queue.push(n, key, data.draw(st.integers(1, 3)), group, front=how == "front")
                waiting[n] = group
            case "remove" if waiting:
                gone = data.draw(st.sampled_from(sorted(waiting)))
                assert queue.remove(gone)
                del waiting[gone]
            case "serve":
                places = {"x": data.draw(st.integers(0, 2)), "y": data.draw(st.integers(0, 2))}

                def offer(item: int, places: dict[str, int] = places) -> Answer:
                    group = waiting[item]
                    if not places[group]:
                        return Answer.REFUSED
                    places[group] -= 1
                    del waiting[item]
                    return Answer.GRANTED

                queue.serve(offer)
                assert not any(places[group] for group in waiting.values())
        assert set(queue) == set(waiting)
        assert all(queue.has(g) == (g in waiting.values()) for g in "xy")
        assert sum(queue.by_key().values()) == len(queue)
