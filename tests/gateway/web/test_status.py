"""What /status tells, as a page and as JSON."""

from __future__ import annotations

import time

import pytest

from engines.signals import Load, Residency, Signal
from gateway.proxy.done import Done
from gateway.routing.lease import Ask
from gateway.routing.policy import Candidate, Route, cost
from gateway.web import plans, snapshot, status, words
from gateway.web.filters import length
from tests.gateway.web.house import URL, Visitor, gateway, keys, known


def test_what_the_engine_does_not_tell_is_said_to_be_unknown() -> None:
    made = gateway()
    known(made)
    (target,) = status.as_json(snapshot.take(made))["backends"][0]["targets"]
    for field in (
        "residency",
        "running",
        "waiting_in_engine",
        "capacity",
        "kv_usage",
        "vram_bytes",
        "load_s",
    ):
        assert target[field] is None
    assert target["in_flight"] == 0  # our own count, which is known


async def test_unknown_is_a_word_on_the_page_and_never_a_blank() -> None:
    made = gateway()
    known(made)
    page = (await Visitor(made).get("/status")).text
    row = page.partition('<th scope="row">m')[2].partition("</tr>")[0]
    assert row.count("unknown</span>") == 10
    assert "None" not in page
    assert "<td></td>" not in row


async def test_a_known_zero_is_a_zero() -> None:
    made = gateway()
    known(made, Load(0, 0, 4, 0.0), Residency.LOADED)
    page = (await Visitor(made).get("/status")).text
    row = page.partition('<th scope="row">m')[2].partition("</tr>")[0]
    assert "loaded" in row
    assert row.count('<td class="num">0</td>') == 4  # running, queued there, from here, waiting here
    assert "0%" in row


def test_the_plan_is_told_with_what_was_dropped_and_why() -> None:
    made = gateway()
    known(made, Load(2, 1, None, 0.5))
    (backend,) = status.as_json(snapshot.take(made))["backends"]
    assert backend["kind"] == "vllm"
    assert backend["version"] == "0.32.0"
    assert backend["dropped"] == {"vllm-waiting": "it is <not> shown"}
    assert {p["signal"]: p["value"] for p in backend["probes"]}["version"] == "0.32.0"
    assert backend["round_age_s"] >= 0


async def test_what_engines_and_clients_say_is_text_and_no_markup() -> None:
    made = gateway()
    known(made)
    made.recent.append(Done("<b>", "POST", "/v1/chat/completions", made.now(), key="a<b", model="<script>x"))
    page = (await Visitor(made).get("/status")).text
    assert "it is &lt;not&gt; shown" in page
    assert "&lt;script&gt;x" in page
    assert "<script>x" not in page


def test_one_value_stands_for_all_models_that_share_it_and_others_are_named() -> None:
    made = gateway()
    known(made, Load(2, 0, 4, None))
    (backend,) = snapshot.take(made).backends
    assert plans.value(Signal.RUNNING, backend) == "2"
    assert plans.value(Signal.KV_USAGE, backend) is None
    assert plans._of_models([("a", "1"), ("b", None), ("c", "2")]) == "a: 1, c: 2"
    assert plans._of_models([(str(i), str(i)) for i in range(9)]).endswith("and 3 more")  # type: ignore[union-attr]


def test_who_waits_and_what_is_in_flight_is_told() -> None:
    made = gateway()
    known(made, Load(0, 0, 1, None), Residency.LOADED)
    tickets = [made.scheduler.enter(Ask("alice", "m")) for _ in range(3)]
    done = Done("r1", "POST", "/v1/chat/completions", made.now() - 5, key="alice", model="m")
    made.consumer.live[id(done)] = done
    told = status.as_json(snapshot.take(made))
    assert told["queue"] == {"waiting": 2, "by_key": {"alice": 2}}
    assert told["backends"][0]["targets"][0]["in_flight"] == 1
    assert told["backends"][0]["targets"][0]["waiting"] == 2
    assert told["live"][0]["phase"] == "waiting"
    assert 5 <= told["live"][0]["age_s"] < 60
    assert tickets[0].lease is not None


def test_a_snapshot_stays_what_it_was() -> None:
    made = gateway()
    known(made)
    done = Done("r1", "POST", "/v1/chat/completions", made.now(), model="m")
    made.consumer.live[id(done)] = done
    shot = snapshot.take(made)
    done.backend = URL
    made.recent.append(done)
    assert shot.live[0].backend is None
    assert shot.recent == ()


def _chosen() -> Done:
    near = Candidate(1, "http://near:1", True, False, 2, 1, 0, prefill_s_per_token=0.01, matched_tokens=50)
    far = Candidate(2, "http://far:1", False, False, 2, 2, 0, prefill_s_per_token=0.01, load_s=8.0)
    full = Candidate(3, "http://full:1", False, False, 2, 2, 0, fits=False)
    decision = cost(Route(100), [far, full, near])
    assert decision is not None
    return Done(
        "r", "POST", "/v1/chat/completions", 0.0, key="a", model="m", backend="http://near:1", decision=decision,
        reason=decision.reason, granted_s=1.5, predicted_s=decision.ttft_s, first_token_s=2.25, streamed=True, status=200,
    )  # fmt: skip


def test_a_choice_is_told_with_the_sums_of_all_candidates_the_chosen_first() -> None:
    found = words.candidates(_chosen())
    assert [(c.name, c.chosen, c.feasible) for c in found] == [
        ("http://near:1", True, True), ("http://far:1", False, True), ("http://full:1", False, False),
    ]  # fmt: skip
    assert found[0].ttft_s == pytest.approx(0.5)
    assert (found[1].load_s, found[1].residency) == (8.0, "not loaded")


def test_the_story_of_a_request_says_how_long_it_waited_and_why_it_went_there() -> None:
    done = _chosen()
    told = " ".join(words.why(done))
    assert "waited 1.5 s" in told
    assert str(done.reason) in told


def test_the_time_to_first_token_counts_from_the_end_of_the_wait() -> None:
    made = gateway()
    made.recent.append(_chosen())
    (told,) = status.as_json(snapshot.take(made))["requests"]
    assert (told["ttft_s"], told["predicted_ttft_s"], told["waited_s"]) == (0.75, pytest.approx(0.5), 1.5)


@pytest.mark.parametrize("code", words.MEND)
def test_every_refusal_is_explained(code: str) -> None:
    done = Done("r", "POST", "/v1/chat/completions", 0.0, model="m", status=429, outcome=code, said="No.")
    assert words.MEND[code] in words.why(done)


def test_what_an_engine_said_in_its_error_is_not_repeated() -> None:
    done = Done("r", "POST", "/x", 0.0, model="m", status=502, outcome="engine_error", said="secret prompt")
    assert "secret prompt" not in " ".join(words.why(done))


def test_config_errors_and_what_needs_a_restart_are_told() -> None:
    made = gateway()
    made.needs_restart = ("listen",)
    told = status.as_json(snapshot.take(made))["config"]
    assert told == {"file": None, "error": None, "needs_restart": ["listen"]}


async def test_usage_is_told_by_key_for_today_and_for_thirty_days() -> None:
    from gateway.accounts.usage import Counts

    made = gateway(*keys())
    today = made.accounts.today
    made.accounts.usage.add(today, "alice", "m", Counts(2, 100, 20, 0, 1))
    made.accounts.usage.add(today - 29, "alice", "m", Counts(1, 1000, 1))
    made.accounts.usage.add(today - 30, "alice", "m", Counts(1, 5, 5))
    (told,) = status.as_json(snapshot.take(made))["usage"]
    assert told["today"]["requests"] == 2
    assert told["today"]["unmetered"] == 1
    assert told["last_30_days"]["prompt_tokens"] == 1100


async def test_the_page_and_its_json_twin_are_chosen_by_what_is_asked_for() -> None:
    visitor = Visitor(gateway())
    assert (await visitor.get("/status")).header("content-type") == "text/html; charset=utf-8"
    for path, accept in (("/status?format=json", "text/html"), ("/status", "application/json")):
        came = await visitor.get(path, ("accept", accept))
        assert came.json["status"] == "starting"
    assert (await visitor.get("/status?format=xml")).status == 400


async def test_addresses_that_were_looked_at_in_vain_are_not_shown() -> None:
    from gateway.config import Config, FoundBackend
    from gateway.runtime import Gateway

    made = Gateway(Config(backends=[FoundBackend(url="http://127.0.0.1:1")]))
    page = (await Visitor(made).get("/status")).text
    assert "No engine was found" in page


@pytest.mark.parametrize(
    ("s", "text"),
    [(0.0, "0 ms"), (0.0124, "12 ms"), (0.9996, "1.0 s"), (59.96, "1 min 0 s"), (3599.7, "1 h 0 min"), (7500, "2 h 5 min")],
)  # fmt: skip
def test_durations(s: float, text: str) -> None:
    assert length(s) == text


def test_a_request_of_each_moment_says_what_it_does_now() -> None:
    done = Done("r", "POST", "/v1/chat/completions", time.monotonic(), model="m")
    assert words.phase(done) == "waiting"
    done.backend, done.cold = URL, True
    assert words.phase(done) == "loading and prefill"
    done.first_byte_s = 0.1
    assert words.phase(done) == "answering"
