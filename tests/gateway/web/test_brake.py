"""How fast keys can be tried at the login form."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.web.brake import ALL_BURST, ALL_EVERY_S, BURST, EVERY_S, KEPT, Brake


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_few_tries_are_free_then_one_in_a_while() -> None:
    clock = Clock()
    brake = Brake(clock)
    assert [brake.take("10.0.0.1") for _ in range(BURST)] == [0.0] * BURST
    assert brake.take("10.0.0.1") == EVERY_S
    clock.now += EVERY_S
    assert brake.take("10.0.0.1") == 0.0
    assert brake.take("10.0.0.1") > 0


@given(st.lists(st.floats(0, 30), min_size=1, max_size=60))
def test_no_client_ever_gets_more_than_its_share(pauses: list[float]) -> None:
    clock = Clock()
    brake = Brake(clock)
    tries = 0
    for pause in pauses:
        clock.now += pause
        tries += brake.take("10.0.0.1") == 0.0
    assert tries <= BURST + sum(pauses) / EVERY_S


def test_many_addresses_together_are_slowed_too() -> None:
    clock = Clock()
    brake = Brake(clock)
    waits = [brake.take(f"10.0.{i // 250}.{i % 250}") for i in range(ALL_BURST + 5)]
    assert waits.count(0.0) == ALL_BURST
    assert brake.take("127.0.0.1") == 0.0  # who sits at the machine is not kept out by them
    clock.now += ALL_EVERY_S
    assert brake.take("10.9.9.9") == 0.0


def test_addresses_of_one_ipv6_network_are_one_client() -> None:
    brake = Brake(Clock())
    waits = [brake.take(f"2001:db8::{i}") for i in range(1, BURST + 2)]
    assert waits[:BURST] == [0.0] * BURST
    assert waits[BURST] > 0
    assert brake.take("2001:db8:0:1::1") == 0.0


def test_the_right_key_clears_what_was_mistyped_before() -> None:
    brake = Brake(Clock())
    for _ in range(BURST):
        brake.take("10.0.0.1")
    brake.forgive("10.0.0.1")
    assert brake.take("10.0.0.1") == 0.0


def test_what_is_remembered_is_bounded() -> None:
    clock = Clock()
    brake = Brake(clock)
    for i in range(3 * KEPT):
        clock.now += ALL_EVERY_S
        brake.take(f"10.{i // 65536}.{i // 256 % 256}.{i % 256}")
    assert len(brake._due) <= KEPT
