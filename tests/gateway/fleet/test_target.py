"""What a target's view says, and when it stops saying it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engines.plan import Plan, Round
from engines.recipes.base import Recipe
from engines.signals import Load, ModelInfo, Residency, Signal, Snapshot
from gateway.config import BackendConfig
from gateway.fleet.backend import Backend
from gateway.fleet.fleet import Fleet
from gateway.fleet.stats import Sample, Stats, scaled

PLAN = Plan(Recipe("openai", "x", ()), "1", (), {})


def full(state: Residency = Residency.LOADED) -> Snapshot:
    return Snapshot(models={"m": ModelInfo(state=state)}, source={Signal.MODELS: "a", Signal.RESIDENCY: "b"})


def light(running: int) -> Round:
    return Round(Snapshot(load={"": Load(running=running)}, source={Signal.RUNNING: "c"}))


def backend() -> Backend:
    b = Backend(BackendConfig(url="http://a:1"))
    b.resolved(PLAN, full(), 0)
    return b


def test_a_light_round_is_seen_and_grows_stale_after_three_of_its_intervals() -> None:
    b = backend()
    b.load_read(light(2), PLAN, 1)
    target = b.targets["m"]
    assert (target.view(4).running, target.view(4).load_at) == (2, 1)
    assert target.view(4.1).running is None


def test_a_reply_means_loaded_until_the_next_full_round_says_cold() -> None:
    b = backend()
    b.scraped(Round(full(Residency.COLD)), PLAN, 5)
    target = b.targets["m"]
    target.replied(6)
    assert target.view(7).warm is True
    b.scraped(Round(full(Residency.COLD)), PLAN, 10)
    assert target.view(11).warm is False


def test_unloading_begins_a_new_generation_and_the_id_stays() -> None:
    b = backend()
    target = b.targets["m"]
    b.scraped(Round(full(Residency.COLD)), PLAN, 5)
    assert (b.targets["m"], target.generation) == (target, 1)


def test_a_backend_that_was_lost_comes_back_with_new_generations() -> None:
    b = backend()
    b.lost("refused")
    b.scraped(Round(full()), PLAN, 5)
    b.scraped(Round(full()), PLAN, 10)
    assert b.targets["m"].generation == 1


def test_rounds_and_ejection_tell_the_listeners() -> None:
    b, told = backend(), []
    fleet = Fleet([b])
    fleet.on_change.append(lambda: told.append(fleet.targets_of("m")))
    b.load_read(light(0), PLAN, 1)
    b.lost("refused")
    assert told == [(b.targets["m"],), ()]


@given(st.lists(st.tuples(st.floats(0, 5), st.booleans(), st.integers(0, 9)), max_size=20), st.floats(0, 30))
def test_no_order_of_rounds_shows_a_value_older_than_its_bound(
    rounds: list[tuple[float, bool, int]], later: float
) -> None:
    b, now, last = backend(), 0.0, None
    for step, is_full, n in rounds:
        now += step
        if is_full:
            b.scraped(Round(full()), PLAN, now)
        else:
            b.load_read(light(n), PLAN, now)
            last = (now, n)
    now += later
    fresh = last is not None and now - last[0] <= 3
    assert b.targets["m"].view(now).running == (last[1] if fresh and last else None)


@given(st.lists(st.floats(0.01, 100), min_size=1))
def test_an_average_stays_within_its_samples(seconds: list[float]) -> None:
    stats = Stats()
    for s in seconds:
        stats.learn(Sample(total_s=s))
    assert stats.service_s is not None
    assert min(seconds) * 0.999999 <= stats.service_s <= max(seconds) * 1.000001


def test_a_short_prompt_or_an_unknown_cache_teaches_nothing_of_the_prefill() -> None:
    stats = Stats()
    stats.learn(Sample(streamed=True, ttft_s=1, prompt_tokens=300, cached_tokens=45))
    stats.learn(Sample(streamed=True, ttft_s=1, prompt_tokens=300))
    assert stats.prefill_s_per_token is None
    stats.learn(Sample(streamed=True, ttft_s=1, prompt_tokens=300, cached_tokens=44))
    assert stats.prefill_s_per_token == 1 / 256


def learned_load_s(*samples: Sample) -> float | None:
    stats = Stats()
    for sample in samples:
        stats.learn(sample)
    return stats.load_s


def test_a_load_that_is_not_reported_is_how_long_a_cold_stream_was_silent() -> None:
    assert learned_load_s(Sample(streamed=True, cold=True, ttft_s=3, total_s=9)) == 3
    assert learned_load_s(Sample(streamed=True, cold=True, ttft_s=50, load_s=3, total_s=99)) == 3


def test_warm_streams_plain_replies_and_models_that_were_loaded_after_all_teach_no_load() -> None:
    warm = Sample(streamed=True, ttft_s=3, total_s=9)
    plain = Sample(cold=True, ttft_s=9, total_s=9)  # its first byte is its last
    loaded = Sample(streamed=True, cold=True, ttft_s=0.4, total_s=9)
    assert learned_load_s(warm, plain, loaded) is None


def test_what_a_prompt_had_in_tokens_corrects_the_next_estimate_at_all_targets_of_its_model() -> None:
    here, there = Stats(), Stats()
    assert scaled(1000, (here, there)) == 1000
    here.learn(Sample(prompt_tokens=800, estimated_tokens=1000))
    assert scaled(2000, (here, there)) == 1600
    there.learn(Sample(prompt_tokens=600, estimated_tokens=1000))
    assert scaled(2000, (here, there)) == 1400


def test_pictures_short_prompts_and_engines_that_count_new_tokens_only_do_not_correct_an_estimate() -> None:
    stats = Stats()
    stats.learn(Sample(prompt_tokens=3000, estimated_tokens=1000))
    stats.learn(Sample(prompt_tokens=80, estimated_tokens=1000))
    stats.learn(Sample(prompt_tokens=90, estimated_tokens=60))
    stats.learn(Sample(prompt_tokens=300))
    assert stats.token_scale is None
