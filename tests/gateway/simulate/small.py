"""A scenario small enough for a test, and runs of it."""

from __future__ import annotations

from functools import cache

from gateway.simulate.many import Run, simulate
from gateway.simulate.measure import Result
from gateway.simulate.scenario import Scenario, parse

TEXT = """
about: Two engines and a few people
minutes: 2
hosts:
  - name: one
    engine: ollama
    models: [a, b]
    loaded: [a]
    memory_gb: 8
    slots: 2
    prefill_tokens_s: 1000
    decode_tokens_s: 60
    load_s: 5
    told_capacity: 2
    told_memory: true
  - name: two
    engine: llamacpp
    models: [a]
    loaded: [a]
    slots: 2
    prefill_tokens_s: 2000
    decode_tokens_s: 60
    load_s: 3
sizes_gb: {a: 5, b: 5}
weights: {team: 2}
users:
  - {kind: chat, count: 3, model: a, key: team, escaped: 0.5}
  - {kind: chat, count: 1, model: b, key: guests}
  - {kind: agent, count: 1, model: a, key: team}
  - {kind: classifier, count: 1, model: a, key: guests}
"""


def small(**changes: str) -> Scenario:
    """`old="new"` changes the text of the scenario."""
    text = TEXT
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    return parse(text, "small")


@cache
def once(router: str) -> Result:
    """Seed 1. Two calls give one object."""
    return run(router)


def run(router: str, seed: int = 1, scenario: Scenario | None = None) -> Result:
    return simulate(Run(small() if scenario is None else scenario, router, seed))
