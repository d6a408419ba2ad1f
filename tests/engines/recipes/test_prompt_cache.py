"""From when on, and how many, prompts can be found again in an engine's cache."""

from __future__ import annotations

import pytest

from engines.recipes import RECIPES
from engines.recipes.base import PromptCache


@pytest.mark.parametrize(
    ("kind", "cache"),
    [
        ("vllm", PromptCache.SHARED),
        ("sglang", PromptCache.SHARED),
        ("llamacpp", PromptCache.SLOT),
        ("ollama", PromptCache.SLOT),
        ("llama-swap", PromptCache.SLOT),
        ("openai", PromptCache.SLOT),
    ],
)
def test_a_cache_of_slots_is_assumed_unless_it_was_seen_to_be_shared(kind: str, cache: PromptCache) -> None:
    assert RECIPES[kind].prompt_cache is cache


@pytest.mark.parametrize(
    ("version", "capacity", "kept"),
    [
        ("0.12.11", 2, 2),
        ("0.24.0", 1, 1),
        ("0.24.0", None, None),
        ("0.30.0-rc1", 2, None),
        ("0.32.15", 2, None),
        ("1.0.0", 2, None),
        ("dev", 2, None),
        (None, 2, None),
    ],
)
def test_old_ollama_keeps_one_prompt_a_place(
    version: str | None, capacity: int | None, kept: int | None
) -> None:
    assert RECIPES["ollama"].prompts_kept(version, capacity) == kept


def test_llama_cpp_keeps_more_prompts_than_it_has_slots() -> None:
    assert RECIPES["llamacpp"].prompts_kept("b10434-7e4c0a9", 4) is None
