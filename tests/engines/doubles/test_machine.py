"""Slots, queue, residency, memory and caches behave as they were measured. No clock, no sockets."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from engines.doubles import PHYSICS, Full, Job, Machine, Phase, Physics
from engines.doubles.assumptions import BYTES_PER_TOKEN
from engines.signals import Residency

COMMON = "You are a harbour pilot. " * 40


def machine(kind: str = "llamacpp", models: tuple[str, ...] = ("a",), **physics: object) -> Machine:
    changed: Physics = replace(PHYSICS[kind], **physics)  # type: ignore[arg-type]
    return Machine(changed, models, models[:1])


def prompt(tail: str) -> bytes:
    return (COMMON + tail).encode()


def finish(m: Machine) -> float:
    """Run until nothing is due but expiries; the time of the last job's end."""
    while (at := m.next_at) is not None and (m.running() or m.waiting()):
        m.advance(at)
    return m.now


def test_no_more_than_its_slots_run_and_the_rest_wait_in_order_of_arrival() -> None:
    m = machine(slots=2)
    jobs = [m.arrive(0.0, "a", prompt(str(i)), 5) for i in range(5)]
    assert (m.running(), m.waiting()) == (2, 3)
    finish(m)
    admitted = [j.admitted_at for j in jobs]
    assert admitted == sorted(admitted, key=lambda at: inf if at is None else at)


def test_first_token_comes_after_the_prompt_is_computed_and_the_rest_one_by_one() -> None:
    m = machine(prefill_s_per_token=0.5, decode_s_per_token=2.0)
    job = m.arrive(10.0, "a", b"x" * 4 * BYTES_PER_TOKEN, 3)
    finish(m)
    assert (job.first_at, job.ended_at) == (12.0, 16.0)


def test_streams_beside_each_other_slow_llamacpp_and_not_vllm() -> None:
    def end(kind: str, count: int) -> float:
        m = machine(kind, prefill_s_per_token=0.0)
        for i in range(count):
            m.arrive(0.0, "a", f"{i} other".encode(), 100)
        return finish(m)

    assert end("llamacpp", 4) > 3 * end("llamacpp", 1)
    assert end("vllm", 4) == pytest.approx(end("vllm", 1))


def test_a_prompt_stalls_the_running_streams_of_llamacpp() -> None:
    m = machine(prefill_s_per_token=1.0, decode_s_per_token=0.1)
    first = m.arrive(0.0, "a", b"1234", 100)
    m.advance(2.0)
    m.arrive(2.0, "a", b"y" * 40 * BYTES_PER_TOKEN, 1)
    seen = first.tokens
    m.advance(41.0)
    assert first.tokens <= seen + 1


# -- caches ------------------------------------------------------------------------------------


def cached(m: Machine, at: float, tail: str) -> int:
    job = m.arrive(at, "a", prompt(tail), 1)
    finish(m)
    return job.cached_tokens


def test_an_idle_slot_serves_its_prefix_again() -> None:
    m = machine()
    assert cached(m, 0.0, "one") == 0
    assert cached(m, 100.0, "two") > 200


def test_a_busy_slots_prefix_is_of_no_use_to_llamacpp() -> None:
    m = machine()
    m.arrive(0.0, "a", prompt("one"), 10_000)
    m.advance(20.0)
    assert m.arrive(20.0, "a", prompt("two"), 1).cached_tokens == 0


def test_a_running_requests_prefix_serves_others_in_vllm_in_whole_blocks() -> None:
    m = machine("vllm")
    m.arrive(0.0, "a", prompt("one"), 10_000)
    m.advance(20.0)
    assert m.arrive(20.0, "a", prompt("two"), 1).cached_tokens == 128


def test_two_at_once_with_one_new_prefix_are_both_cold() -> None:
    m = machine("sglang")
    assert [m.arrive(0.0, "a", prompt(t), 1).cached_tokens for t in "xy"] == [0, 0]


def test_an_identical_prompt_computes_its_last_token_only() -> None:
    m = machine()
    first = m.arrive(0.0, "a", prompt("one"), 1)
    finish(m)
    again = m.arrive(50.0, "a", prompt("one"), 1)
    assert again.cached_tokens == first.prompt_tokens - 1


def test_the_next_turn_of_a_chat_finds_the_answer_in_the_cache_too() -> None:
    m = machine()
    first = m.arrive(0.0, "a", prompt("one"), 1, answer=b"a long answer " * 20)
    finish(m)
    second = m.arrive(50.0, "a", prompt("one") + b"a long answer " * 20 + b"next", 1)
    assert second.cached_tokens > first.prompt_tokens + 60


def test_the_shared_cache_forgets_the_oldest() -> None:
    m = machine("sglang", cache_tokens=300)
    for at, tail in ((0.0, "one"), (100.0, "two")):
        cached(m, at, tail)
    m.arrive(200.0, "a", b"z" * 290 * BYTES_PER_TOKEN, 1)
    finish(m)
    assert cached(m, 400.0, "three") == 0


# -- memory ------------------------------------------------------------------------------------


def test_a_cold_model_is_loaded_once_for_a_burst() -> None:
    m = machine("ollama", ("a", "b"))
    jobs = [m.arrive(0.0, "b", prompt(str(i)), 1) for i in range(6)]
    assert m.residency("b") is Residency.LOADING
    finish(m)
    assert (m.loads, [j.cold for j in jobs]) == (2, [True] * 6)


def test_the_idle_model_goes_and_the_waiting_one_comes() -> None:
    m = machine("ollama", ("a", "b", "c"), max_loaded=1)
    m.arrive(0.0, "b", prompt("x"), 1)
    finish(m)
    assert [m.residency(n) for n in "abc"] == [Residency.COLD, Residency.LOADED, Residency.COLD]
    assert m.evictions == 1


def test_models_that_do_not_fit_together_are_not_in_memory_together() -> None:
    m = Machine(
        replace(PHYSICS["ollama"], memory_bytes=10, max_loaded=9), ("a", "b"), ("a",), {"a": 6, "b": 5}
    )
    m.arrive(0.0, "b", prompt("x"), 1)
    finish(m)
    assert set(m.residents) == {"b"}


def test_a_busy_model_is_not_evicted_and_its_new_requests_overtake() -> None:
    m = machine("ollama", ("a", "b"), max_loaded=1)
    m.arrive(0.0, "a", prompt("long"), 1000)
    other = m.arrive(1.0, "b", prompt("x"), 1)
    later = m.arrive(1.5, "a", prompt("y"), 1)
    m.advance(3.0)
    assert (later.admitted_at, other.phase) == (1.5, Phase.WAITING)
    finish(m)
    assert other.phase is Phase.DONE


def test_without_overtaking_a_swap_lets_the_waiting_model_in() -> None:
    m = machine("llama-swap", ("a", "b"), overtaking=False)
    first = m.arrive(0.0, "a", prompt("long"), 100)
    other = m.arrive(1.0, "b", prompt("x"), 1)
    later = m.arrive(1.5, "a", prompt("y"), 1)
    finish(m)
    order = [first.admitted_at, other.admitted_at, later.admitted_at]
    assert order == sorted(order, key=lambda at: inf if at is None else at)


def test_an_idle_model_is_unloaded_after_its_keep_alive() -> None:
    m = machine("ollama")
    m.arrive(100.0, "a", prompt("x"), 1)
    ended = finish(m)
    m.advance(ended + 299)
    assert m.residency("a") is Residency.LOADED
    m.advance(ended + 300)
    assert m.residency("a") is Residency.COLD


def test_unload_waits_for_what_runs() -> None:
    m = machine("ollama")
    job = m.arrive(0.0, "a", prompt("x"), 10)
    m.unload(0.1, "a")
    assert m.residency("a") is Residency.LOADED
    finish(m)
    assert job.phase is Phase.DONE


def test_a_load_of_ollama_is_thrown_away_with_its_client_and_begun_anew_for_the_next() -> None:
    m = machine("ollama", ("a", "b"))
    first = m.arrive(0.0, "b", prompt("x"), 1)
    second = m.arrive(0.1, "b", prompt("y"), 1)
    m.leave(0.3, first)
    finish(m)
    assert second.admitted_at == pytest.approx(0.3 + PHYSICS["ollama"].load_s)


def test_a_model_larger_than_the_memory_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="b can never be loaded"):
        Machine(PHYSICS["ollama"], ("a", "b"), (), {"b": 2**60})


# -- leaving and refusing ----------------------------------------------------------------------


def left(kind: str, *, streamed: bool) -> Job:
    m = machine(kind)
    job = m.arrive(0.0, "a", b"1234", 50, streamed=streamed)
    m.advance(0.1)
    m.leave(0.1, job)
    finish(m)
    return job


@pytest.mark.parametrize(
    ("kind", "streamed", "phase"),
    [
        ("llamacpp", True, Phase.DROPPED),
        ("llamacpp", False, Phase.DONE),
        ("vllm", False, Phase.DROPPED),
        ("ollama", False, Phase.DROPPED),
        ("mlx-lm", False, Phase.DONE),
    ],
)
def test_what_a_left_request_costs(kind: str, streamed: bool, phase: Phase) -> None:
    assert left(kind, streamed=streamed).phase is phase


def test_a_left_waiting_request_of_llamacpp_is_counted_until_a_slot_is_free() -> None:
    m = machine(slots=1)
    m.arrive(0.0, "a", prompt("x"), 10)
    waiting = m.arrive(0.0, "a", prompt("y"), 10)
    m.leave(0.5, waiting)
    assert m.waiting() == 1
    finish(m)
    assert (m.waiting(), waiting.phase, waiting.tokens) == (0, Phase.DROPPED, 0)


def test_llama_swap_refuses_the_eleventh() -> None:
    m = machine("llama-swap", ("a", "b"))
    for i in range(10):
        m.arrive(0.0, "a", prompt(str(i)), 10)
    with pytest.raises(Full):
        m.arrive(0.0, "a", prompt("eleventh"), 10)
    m.arrive(0.0, "b", prompt("another model's"), 10)


def test_ollama_limits_those_who_wait_for_a_load_and_not_those_who_do_not() -> None:
    m = machine("ollama", ("a", "b"), max_waiting_for_load=2)
    for i in range(20):
        m.arrive(0.0, "a", prompt(str(i)), 10)
    m.arrive(0.0, "b", prompt("x"), 1)
    m.arrive(0.0, "b", prompt("x"), 1)
    with pytest.raises(Full):
        m.arrive(0.0, "b", prompt("x"), 1)


def test_a_crash_ends_everything() -> None:
    m = machine(slots=1)
    jobs = [m.arrive(0.0, "a", prompt(str(i)), 10) for i in range(3)]
    m.crash(0.5)
    assert [j.phase for j in jobs] == [Phase.FAILED] * 3
    assert (m.running(), m.waiting(), m.residents) == (0, 0, {})


def test_the_same_requests_take_the_same_time_to_the_last_bit() -> None:
    def run() -> list[float | None]:
        m = machine("ollama", ("a", "b"), max_loaded=1)
        jobs = [m.arrive(i * 0.37, "ab"[i % 2], prompt(str(i)), 7 + i) for i in range(9)]
        finish(m)
        return [j.ended_at for j in jobs]

    assert run() == run()
