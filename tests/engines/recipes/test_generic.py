"""llama-swap and the generic engine: what their users are told."""

from __future__ import annotations

import pytest

from engines.plan import Unreachable, resolve
from engines.recipes import RECIPES
from engines.recipes.base import Findings, Kind
from engines.signals import Snapshot
from tests.engines.replay import CAPTURES, Capture


async def notes(kind: Kind, key: str) -> str:
    recipe = RECIPES[kind]
    try:
        plan, snapshot = await resolve(Capture(CAPTURES / key).replay(), recipe)
    except Unreachable as e:
        return "\n".join(recipe.advice(Findings(Snapshot(), {"x": str(e)}, {}, {})))
    return "\n".join(recipe.advice(Findings(snapshot, plan.dropped, {}, {})))


async def test_a_generic_engine_is_told_to_name_its_capacity() -> None:
    said = await notes("openai", "mlx-lm/v0.32.2/idle")
    assert "`capacity: N`" in said
    assert "no request will be sent" not in said


@pytest.mark.parametrize(
    ("state", "why"), [("no-hf-cache", "could not be read"), ("no-model-cold", "is empty")]
)
async def test_a_generic_engine_without_models_is_told_why_nothing_is_sent(state: str, why: str) -> None:
    said = await notes("openai", f"mlx-lm/v0.32.2/{state}")
    assert why in said


@pytest.mark.parametrize(("state", "asks"), [("idle", False), ("fresh", True)])
async def test_llama_swap_is_told_to_name_a_capacity_only_when_none_is_read(state: str, asks: bool) -> None:
    assert ("`capacity: N`" in await notes("llama-swap", f"llama-swap/v250/{state}")) is asks


async def test_llama_swap_that_wants_a_key_is_told_so_and_nothing_else() -> None:
    said = await notes("llama-swap", "llama-swap/v250/api-key")
    assert "api_key" in said
    assert "\n" not in said
