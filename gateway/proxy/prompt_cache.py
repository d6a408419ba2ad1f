"""One request's prompt beside what engines have cached: what is expected before it is sent, what is learned
when its reply is over."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from engines.recipes.base import PromptCache
from gateway.fleet.target import Target
from gateway.routing.links import Chain
from gateway.routing.prefix import Match, Outcome, PrefixIndex, Source


class CachedPrompt:
    """`prompt_tokens` is the estimate of the whole prompt; `now` is the loop's clock, `wall` gives seconds
    since the epoch."""

    def __init__(
        self,
        index: PrefixIndex,
        chain: Chain,
        prompt_tokens: int,
        now: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._index, self._chain, self._prompt_tokens = index, chain, prompt_tokens
        self._now, self._wall = now, wall
        self._found: Mapping[str, Match] = {}
        self._target: Target | None = None  # where it was sent
        self._generation = 0  # of that target then
        self._recorded = False

    @property
    def known(self) -> bool:
        """Can anything be said of what is cached of it? Not where it could not be read as a prompt."""
        return bool(self._chain.links)

    def expected(self, targets: Iterable[Target]) -> dict[int, int]:
        """Target id -> tokens of the prompt that it should have cached now; no entry is none."""
        if not self.known:
            return {}
        self._found = self._index.lookup(self._chain, {t.key: t.generation for t in targets})
        per_byte = self._prompt_tokens / max(self._chain.size, 1)
        found = ((t.id, self._found.get(t.key)) for t in targets)
        return {id_: int(match.bytes * per_byte) for id_, match in found if match is not None and match.bytes}

    def sent(self, target: Target) -> None:
        self._target, self._generation, self._recorded = target, target.generation, False

    @property
    def source(self) -> Source | None:
        """How what was expected of the target was known. None: nothing was."""
        match = self._match
        return None if match is None or not match.bytes else match.source

    def first_token(self) -> None:
        """A cache that all requests share holds the prompt from now on."""
        if self._whose() is PromptCache.SHARED:
            self._record()

    def ended(self, cached_tokens: int | None, prompt_tokens: int | None) -> Outcome | None:
        """Its generation is over; the tokens are what the engine reports. None: nothing to compare."""
        if self._target is None or not self.known:
            return None
        outcome = self._index.correct(
            self._target.key, self._generation, self._chain, self._match, cached_tokens, prompt_tokens,
            self._wall(),
        )  # fmt: skip
        self._record()
        return outcome

    def refused(self) -> None:
        """The engine answered with an error: or it would draw the same prompt again."""
        if self._target is not None:
            self._index.forget(self._target.key, self._generation, self._chain, self._wall())

    @property
    def _match(self) -> Match | None:
        return None if self._target is None else self._found.get(self._target.key)

    def _whose(self) -> PromptCache | None:
        view = None if self._target is None else self._target.backend.view
        return None if view is None else view.plan.recipe.prompt_cache

    def _record(self) -> None:
        target = self._target
        if self._recorded or target is None:
            return
        self._recorded = True
        view = target.backend.view
        if view is None:
            return
        kept = view.plan.recipe.prompts_kept(view.plan.version, target.view(self._now()).capacity)
        self._index.record(target.key, self._generation, self._chain, self._wall(), kept)
