"""Whatever comes in whatever order: slots taken are given back, and nobody is forgotten."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from engines.doubles import PHYSICS, Full, Job, Machine, Phase
from engines.signals import Residency

MODELS = ("a", "b", "c")

arrivals = st.tuples(
    st.just("arrive"), st.sampled_from(MODELS), st.integers(0, 3), st.integers(0, 12), st.booleans()
)
leaves = st.tuples(st.just("leave"), st.integers(0, 40))
times = st.tuples(st.just("wait"), st.floats(0, 3))
unloads = st.tuples(st.just("unload"), st.sampled_from(MODELS))
loads = st.tuples(st.just("load"), st.sampled_from(MODELS))
crashes = st.tuples(st.just("crash"), st.none())
steps = st.lists(st.one_of(arrivals, arrivals, leaves, times, times, unloads, loads, crashes), max_size=40)
PROMPTS = [b"one" * 20, b"one" * 40, b"two" * 300, b"three" * 5]


def consistent(m: Machine, jobs: list[Job]) -> None:
    held = [s.job for r in m.residents.values() for s in r.slots if s.job is not None]
    running = [j for j in jobs if j.phase in (Phase.PREFILL, Phase.DECODE)]
    assert len(held) == len(set(held)) == len(running)
    assert set(held) == set(running)
    assert set(m.queue) == {j for j in jobs if j.phase is Phase.WAITING}
    assert len(m.queue) == len(set(m.queue))
    assert all(len(r.running) <= m.physics.slots for r in m.residents.values())
    assert len(m.residents) <= m.physics.max_loaded
    assert sum(r.state is Residency.LOADING for r in m.residents.values()) <= 1
    for job in running:
        assert job.slot is not None
        assert job.slot.job is job
        assert m.residents[job.model] is job.slot.resident


@settings(max_examples=300, deadline=None)
@given(kind=st.sampled_from(sorted(PHYSICS)), slots=st.integers(1, 3), overtaking=st.booleans(), script=steps)
def test_any_interleaving_gives_every_slot_back(
    kind: str, slots: int, overtaking: bool, script: list[tuple[object, ...]]
) -> None:
    physics = replace(PHYSICS[kind], slots=slots, overtaking=overtaking, load_s=1.0)
    m, now, jobs = Machine(physics, MODELS, ("a",)), 0.0, list[Job]()
    for step in script:
        match step:
            case ("arrive", str(model), int(which), int(tokens), bool(streamed)):
                with suppress(Full):
                    jobs.append(m.arrive(now, model, PROMPTS[which], tokens, streamed=streamed))
            case ("leave", int(which)) if jobs:
                m.leave(now, jobs[which % len(jobs)])
            case ("wait", float(dt)):
                now += dt
                m.advance(now)
            case ("unload", str(model)):
                m.unload(now, model)
            case ("load", str(model)):
                m.load(now, model)
            case ("crash", _):
                m.crash(now)
        consistent(m, jobs)
    for _ in range(100_000):
        if m.next_at is None or not (m.running() or m.waiting()):
            break
        m.advance(m.next_at)
    consistent(m, jobs)
    assert (m.running(), m.waiting()) == (0, 0)
    assert all(j.ended and j.slot is None for j in jobs)
    assert all(j.left or j.phase in (Phase.DONE, Phase.FAILED) for j in jobs)
