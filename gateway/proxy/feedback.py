"""What a finished request teaches of its target's speed. Pure: a `Done` in, a sample out."""

from __future__ import annotations

from gateway.fleet.stats import WARM_LOAD_S, Sample
from gateway.proxy.decisions import Load
from gateway.proxy.done import Done


def sample_of(done: Done) -> Sample | None:
    """None: nothing, for it got no whole answer."""
    if done.target is None or done.granted_s is None or done.status != 200 or done.outcome != "ok":
        return None
    return Sample(
        streamed=done.streamed,
        cold=done.cold,
        control=done.control,
        ttft_s=ttft_s(done),
        predicted_s=done.predicted_s,
        total_s=done.total_s - done.granted_s,
        prompt_tokens=done.prompt_tokens,
        estimated_tokens=done.estimated_tokens,
        cached_tokens=done.cached_tokens,
        load_s=done.load_s,
        prefill_s=done.prefill_s,
    )


def ttft_s(done: Done) -> float | None:
    """From the end of its wait for a place to its first token. None: not a stream, or none came."""
    if done.first_token_s is None or done.granted_s is None:
        return None
    return done.first_token_s - done.granted_s


def load_of(done: Done) -> Load | None:
    """What it had to do with a load of its model. None: nothing, as far as the engine tells."""
    if done.control:
        return Load.CONTROL
    if done.cold:
        return Load.COLD_START
    return Load.UNEXPECTED if done.load_s is not None and done.load_s >= WARM_LOAD_S else None
