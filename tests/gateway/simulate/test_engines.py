"""What the simulated gateway can see of an engine: no more than a scraper would."""

from __future__ import annotations

from engines.doubles import PHYSICS
from gateway.simulate.engines import SHOWN, SimFleet, SimTarget
from tests.gateway.simulate.small import small

PROMPT = b"word " * 4000


def fleet(changes: dict[str, str] | None = None, *, truth: bool = False) -> SimFleet:
    made = SimFleet(small(**changes or {}), truth=truth)
    for backend in made.backends:
        backend.poll(0.0)
    return made


def target(of: SimFleet, host: str, model: str) -> SimTarget:
    return next(t for t in of.targets if t.backend.host.name == host and t.model == model)


def test_every_engine_that_can_be_simulated_says_what_it_shows() -> None:
    assert SHOWN.keys() == PHYSICS.keys()


def test_what_an_engine_does_not_show_is_unknown() -> None:
    view = target(fleet(), "one", "a").view(0.0)  # Ollama
    assert (view.running, view.waiting, view.kv_usage, view.load_at) == (None, None, None, None)
    assert target(fleet(), "two", "a").view(0.0).warm is None  # llama.cpp


def test_a_capacity_that_nobody_told_is_unknown() -> None:
    assert target(fleet(), "one", "a").view(0.0).capacity == 2
    untold = fleet({"    told_capacity: 2\n": ""})
    assert target(untold, "one", "a").view(0.0).capacity is None


def test_what_happened_since_the_last_poll_is_not_known_yet() -> None:
    two = target(fleet(), "two", "a")
    two.backend.machine.arrive(1.0, "a", PROMPT, 100)
    assert two.view(1.1).running == 0
    two.backend.poll(1.2)
    assert two.view(1.2).running == 1


def test_the_oracle_sees_the_machine_itself() -> None:
    two = target(fleet(truth=True), "two", "a")
    two.backend.machine.arrive(1.0, "a", PROMPT, 100)
    assert two.view(1.1).running == 1


def test_vllm_counts_a_request_from_the_end_of_its_prefill() -> None:
    made = fleet({"engine: llamacpp": "engine: vllm"})
    two = target(made, "two", "a")
    two.backend.machine.arrive(0.0, "a", PROMPT, 1000)
    two.backend.poll(1.0)
    assert two.view(1.0).running == 0
    two.backend.poll(6.0)
    assert two.view(6.0).running == 1


def test_a_load_of_ollama_looks_cold_until_it_is_over() -> None:
    b = target(fleet(), "one", "b")
    b.backend.machine.arrive(6.0, "b", PROMPT, 1)
    b.backend.poll(7.0)
    assert (b.view(7.0).warm, b.view(7.0).loading) == (False, False)
    b.backend.poll(13.0)
    assert b.view(13.0).warm is True


def test_residency_is_read_in_a_full_round_only() -> None:
    b = target(fleet(), "one", "b")
    b.backend.machine.put(1.0, "b")
    b.backend.poll(2.0)
    assert b.view(2.0).warm is False
    b.backend.poll(5.0)
    assert b.view(5.0).warm is True


def test_a_model_that_went_out_of_memory_begins_a_new_generation() -> None:
    a = target(fleet(), "one", "a")
    a.backend.machine.unload(1.0, "a")
    a.backend.poll(6.0)
    assert a.generation == 1


def test_a_reply_shows_that_its_model_is_loaded_until_the_next_full_round() -> None:
    b = target(fleet(), "one", "b")
    b.replied_at = 1.0
    assert b.view(1.0).warm is True
    b.backend.poll(6.0)
    assert b.view(6.0).warm is False
