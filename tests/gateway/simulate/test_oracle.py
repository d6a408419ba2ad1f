"""The oracle's forecast of one machine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engines.doubles import PHYSICS, Machine
from gateway.simulate.oracle import start_of

PHYSICS_2 = replace(
    PHYSICS["ollama"],
    slots=2,
    prefill_s_per_token=0.001,
    decode_s_per_token=0.1,
    decode_share=0.0,
    load_s=5.0,
    unload_s=0.0,
    max_loaded=1,
)
PROMPT = b"x" * 4000  # a second


def machine(loaded: str = "a") -> Machine:
    return Machine(PHYSICS_2, ["a", "b"], [loaded])


def test_a_free_place_is_there_at_once() -> None:
    assert start_of(machine(), "a", 0) == 0


def test_a_cold_model_takes_its_load() -> None:
    assert start_of(machine(), "b", 0) == 5


def test_a_load_under_way_takes_what_is_left_of_it() -> None:
    loading = machine()
    loading.arrive(0.0, "b", PROMPT, 1)
    loading.advance(2.0)
    assert start_of(loading, "b", 0) == pytest.approx(3)


@pytest.mark.parametrize(("ahead", "seconds"), [(0, 11.7), (1, 21.7), (2, 28.4), (3, 38.4)])
def test_a_taken_place_is_there_when_its_request_ends(ahead: int, seconds: float) -> None:
    """Both are computed after 2 s, as it is now 1.8 s to then; one then takes 10 s and the other 20."""
    busy = machine()
    busy.arrive(0.0, "a", PROMPT, 100)
    busy.arrive(0.0, "a", b"y" * 4000, 200)
    busy.advance(0.2)
    assert start_of(busy, "a", ahead) == pytest.approx(seconds, abs=0.3)


def test_the_forecast_of_a_place_is_what_happens() -> None:
    busy = machine()
    first = busy.arrive(0.0, "a", PROMPT, 100)
    busy.arrive(0.0, "a", b"y" * 4000, 200)
    busy.advance(0.5)
    forecast = busy.now + start_of(busy, "a", 0)
    busy.advance(60.0)
    assert first.ended_at == pytest.approx(forecast, abs=0.3)
