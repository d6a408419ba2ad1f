"""What is known of a request when it is over."""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.accounts.admission import Spending
from gateway.fleet.target import Target
from gateway.proxy.decisions import Decision
from gateway.routing import policy as routing
from gateway.routing.prefix import Source


@dataclass(slots=True)
class Done:
    """One finished request: what its listeners learn of it. Never a word of a prompt.

    `arrived` is by the loop's clock; the other times are seconds since then, but for the three that the
    engine reports, which are lengths. None is unknown: the engine did not say, and 0 never stands for it.
    """

    request_id: str
    method: str
    path: str
    arrived: float
    key: str | None = None  # the name of its key; None: it was not let in
    model: str | None = None  # None: not a request of a model, or one that could not be read
    streamed: bool = False
    control: bool = False  # it loads or unloads a model of Ollama's, and generates nothing
    decisions: list[Decision] = field(default_factory=list)  # in order
    target: Target | None = None  # the last that was tried
    cold: bool = False  # its model was not loaded when the request was sent
    queued_s: float | None = None  # all its waits for a place together; None: it never had one
    own_s: float | None = None  # Pharos's own time until it was first sent to an engine, those waits left out
    granted_s: float | None = None  # when its last wait for a place was over
    predicted_s: float | None = None  # to its first token, from then, as the policy saw it
    estimated_tokens: int | None = None  # of the whole prompt, before anything was learned of its tokenizer
    decision: routing.Decision | None = None  # the policy's, with its scores
    expected_cached: int | None = None  # tokens of the prompt that its target was to have cached
    prefix_source: Source | None = None  # how that was known
    backend: str | None = None
    reason: str | None = None
    said: str | None = None  # why it was refused, as its client was told
    status: int | None = None  # None: the client left before there was one
    outcome: str = "ok"
    first_byte_s: float | None = None
    first_token_s: float | None = None  # of a stream: something generated came, not only a role or a comment
    finished: bool | None = None  # the engine ended the generation; None: it sent nothing that could say so
    prompt_tokens: int | None = None  # the whole prompt, cached tokens included
    completion_tokens: int | None = None
    cached_tokens: int | None = None  # of the prompt, taken from the engine's prefix cache
    prefill_s: float | None = None
    decode_s: float | None = None
    load_s: float | None = None  # Ollama: below 0.5 s the model was warm
    spending: Spending | None = None  # what its key is charged; None: nothing, it was turned away
    total_s: float = 0.0
