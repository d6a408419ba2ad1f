"""Who may come in, which models exist for him, and what his request is charged when it is over."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

from gateway.accounts.admission import UNUSED, Accounts, Admission, Refused, Spending, Why
from gateway.accounts.keys import Key
from gateway.accounts.quota import duration
from gateway.fleet.fleet import Fleet
from gateway.proxy import serving
from gateway.proxy.answer import ClientGone
from gateway.proxy.ask import Ask, credentials, may_generate
from gateway.proxy.done import Done
from gateway.proxy.headers import Header
from gateway.proxy.refusals import Refusal

BACK_PRESSURE = (429, 503)
ENGINE_TRIED = ("engine_failed", "engine_timeout", "engine_error")
"""Codes of refusals after an engine has had the request: it counts, though its client got no reply."""


class Gate:
    def __init__(self, accounts: Accounts, fleet: Fleet) -> None:
        self.accounts, self.fleet = accounts, fleet

    def key(self, headers: Sequence[Header]) -> Key:
        """Raises Refusal (401), and nothing else in Pharos does: some clients retry it for minutes."""
        found = self.accounts.who(credentials(headers))
        if isinstance(found, Refused):
            raise _refusal(found, 0)
        return found

    def sees(self, key: Key) -> Callable[[str], bool]:
        """Does a model that the fleet lists under a name exist for the key?"""
        return lambda name: key.may_use(*serving.names(self.fleet, name))

    def enter(self, ask: Ask, headers: Sequence[Header]) -> tuple[Ask, Admission]:
        """The request as its key's, and its admission, to be charged. Raises Refusal (401, 404, 429).

        A model that nobody serves is refused first: that takes nothing of a quota.
        """
        key = self.key(headers)
        try:
            name = serving.find(self.fleet, ask.route, ask.model, self.sees(key))
        except Refusal as e:
            if serving.known_as(self.fleet, ask.route, ask.model) is None:
                raise
            raise NotAllowed(e.status, e.code, e.message) from None
        prompt_tokens = 0 if ask.route.free else ask.prompt_tokens
        names = serving.names(self.fleet, name)
        found = self.accounts.admit(credentials(headers), names, prompt_tokens, may_generate(ask))
        if isinstance(found, Refused):
            raise _refusal(found, prompt_tokens)
        if self.accounts.keys:
            ask = replace(ask, key=key.name, weight=key.weight)
        return ask, found


class NotAllowed(Refusal):
    """The model is there, and not for this key. Its client is told what it would be told of any name."""


@dataclass(slots=True)
class Charge:
    """Around the work of one request: leaving it settles its admission, whatever happened."""

    admission: Admission
    ask: Ask
    done: Done

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if _turned_away(self.done, value):
            self.admission.refund()
        else:
            self.done.spending = _spending(self.ask, self.done, value)
            self.admission.settle(self.done.spending)


def _turned_away(done: Done, ended_by: BaseException | None) -> bool:
    """Did the gateway or a full engine refuse it? Its client did nothing wrong, and got nothing."""
    if isinstance(ended_by, Refusal):
        return ended_by.code not in ENGINE_TRIED or ended_by.status in BACK_PRESSURE
    return ended_by is None and done.status in BACK_PRESSURE


def _spending(ask: Ask, done: Done, ended_by: BaseException | None) -> Spending:
    left = isinstance(ended_by, ClientGone)
    failed = done.status is not None and done.status >= 400  # the engine's own error: it did no work
    if done.backend is None or ask.route.free or failed:
        return replace(UNUSED, abandoned=left)
    return Spending(done.prompt_tokens, done.completion_tokens, done.cached_tokens, abandoned=left)


# -- what a client is told ---------------------------------------------------------------------

SEND_IT = "send it as `Authorization: Bearer …` or `x-api-key: …` (in most apps the field is called API key)"
CHALLENGE: Sequence[Header] = ((b"www-authenticate", b"Bearer"),)


def _refusal(refused: Refused, prompt_tokens: int) -> Refusal:
    """In words. What was presented is never among them."""
    if refused.key is None:
        message = (
            f"Pharos asks for a key, and this request has none: {SEND_IT}."
            if refused.why is Why.NO_KEY
            else "Pharos does not know the key of this request: whoever runs it can give you one."
        )
        return Refusal(401, "invalid_api_key", message, headers=CHALLENGE)
    headers = refused.standing.headers() if refused.standing is not None else []
    code = "rate_limit_exceeded"
    if refused.why is Why.TOKENS:
        code = "insufficient_quota"
        headers.append((b"x-should-retry", b"false"))  # OpenAI's and Anthropic's libraries then do not
    after_s = None if refused.retry_after_s is None else math.ceil(refused.retry_after_s)
    return Refusal(429, code, _words(refused, refused.key, prompt_tokens), after_s, headers)


def _words(refused: Refused, key: Key, prompt_tokens: int) -> str:
    wait = duration(math.ceil(refused.retry_after_s or 0))
    if refused.why is Why.REQUESTS:
        return f"The key {key.name} may make {key.rpm} requests a minute and has: come back in {wait}."
    of = f"its {key.tokens_per_day} tokens a day"
    if refused.why is Why.HELD:
        return f"Requests in flight of the key {key.name} hold what is left of {of}: come back when one ends."
    left = refused.standing.tokens_left if refused.standing is not None else None
    if left:
        prompt = f"This prompt of about {prompt_tokens} tokens is more than the {left}"
        return f"{prompt} that the key {key.name} has left of {of}: a new day begins in {wait}."
    return f"The key {key.name} has used all of {of}: a new day begins in {wait}."
