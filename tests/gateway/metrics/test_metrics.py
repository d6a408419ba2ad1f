"""What one finished request or background round adds to the page."""

from __future__ import annotations

import asyncio
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest

from gateway.accounts.admission import UNUSED, Spending
from gateway.config import BackendConfig, FoundBackend
from gateway.fleet import rounds
from gateway.fleet.backend import Backend
from gateway.fleet.fleet import Fleet
from gateway.fleet.target import Target
from gateway.metrics import metrics as module
from gateway.metrics.metrics import Metrics
from gateway.metrics.page import texts
from gateway.proxy import decisions
from gateway.proxy.done import Done
from gateway.routing.policy import least_load
from gateway.routing.prefix import Outcome, Source
from gateway.routing.scheduler import Scheduler
from tests.gateway.metrics.read import Page, read
from tests.gateway.proxy.bench import OLLAMA, PLAIN, Client, listing


def metrics(*backends: Backend) -> Metrics:
    fleet = Fleet(backends)
    scheduler: Scheduler[Target] = Scheduler(fleet, least_load, time.monotonic)
    return Metrics(fleet, scheduler, time.monotonic)


def backend(*models: str, native: bool = False, url: str = "http://a:1") -> Backend:
    b = Backend(BackendConfig(url=url))
    listing(b, OLLAMA if native else PLAIN, models, "1.2.3")
    return b


def page(m: Metrics) -> Page:
    return read(b"".join(texts(m.registry.collect())))


def done(**known: Any) -> Done:
    return Done("id", "POST", "/v1/chat/completions", 0.0, **known)


def counted(*requests: Done, fleet: tuple[Backend, ...] = ()) -> Page:
    m = metrics(*(fleet or (backend("m"),)))
    for request in requests:
        m.finished(request)
    return page(m)


def statuses(p: Page) -> dict[tuple[str, ...], float]:
    return p.table("pharos_requests_total", "key", "model", "status")


def test_every_decision_is_there_from_the_start_and_0() -> None:
    table = page(metrics()).table("pharos_decisions_total", "stage", "outcome")
    wanted = {(s, str(d)) for s, kinds in decisions.STAGES.items() for kind in kinds for d in kind}
    wanted |= {(s, str(d)) for s, kind in rounds.STAGES.items() for d in kind}
    assert table == dict.fromkeys(wanted, 0)


def test_a_client_that_left_counts_as_499_however_far_it_came() -> None:
    left = [done(key="k", model="m", outcome="client_left", status=s) for s in (None, 200)]
    assert statuses(counted(*left)) == {("k", "m", "499"): 2}


def test_an_end_that_nobody_foresaw_counts_as_500() -> None:
    assert statuses(counted(done(key="k", model="m"))) == {("k", "m", "500"): 1}


def test_a_status_that_is_none_makes_no_series_of_its_own() -> None:
    odd = [done(key="k", model="m", status=s) for s in (0, 99, 600, 999)]
    assert statuses(counted(*odd)) == {("k", "m", "other"): 4}


def test_models_that_nobody_lists_are_one_series() -> None:
    guesses = [done(key="k", model=f"guess-{i}", status=404) for i in range(50)]
    assert statuses(counted(*guesses)) == {("k", "other", "404"): 50}


def test_a_model_asked_for_by_ollamas_other_name_counts_as_the_one_that_is_listed() -> None:
    twin = done(key="k", model="m", status=429)
    assert statuses(counted(twin, fleet=(backend("m:latest", native=True),))) == {("k", "m:latest", "429"): 1}
    assert statuses(counted(twin, fleet=(backend("m:latest"),))) == {("k", "other", "429"): 1}


def test_an_engine_that_lists_ever_new_models_cannot_fill_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MODELS", 3)
    names = [f"m{i}" for i in range(10)]
    p = counted(*(done(key="k", model=n, status=200) for n in names), fleet=(backend(*names),))
    assert {model for _, model, _ in statuses(p)} == {"m0", "m1", "m2", "other"}


def test_a_model_that_is_gone_for_a_while_keeps_its_series() -> None:
    b = backend("m")
    m = metrics(b)
    m.finished(done(key="k", model="m", status=200))
    m.fleet.set_backends([])
    m.finished(done(key="k", model="m", status=404))
    assert statuses(page(m)) == {("k", "m", "200"): 1, ("k", "m", "404"): 1}


def test_tokens_that_no_engine_told_are_not_0() -> None:
    p = counted(done(key="k", model="m", status=200, spending=Spending(10, 3, None)))
    assert p.table("pharos_tokens_total", "type") == {("prompt",): 10, ("completion",): 3}
    assert p("pharos_unmetered_requests_total", key="k", model="m") == 0


def test_a_request_that_used_nothing_is_not_unmetered() -> None:
    assert counted(done(key="k", model="m", status=400, spending=UNUSED))(
        "pharos_unmetered_requests_total", key="k", model="m"
    ) == 0  # fmt: skip


def test_a_request_that_was_turned_away_spends_nothing() -> None:
    p = counted(done(key="k", model="m", status=429))
    assert p.of("pharos_tokens_total") == p.of("pharos_unmetered_requests_total") == {}


def test_predictions_are_counted_by_how_they_were_known() -> None:
    local = done(model="m", status=200, prefix_source=Source.LOCAL, decisions=[Outcome.HIT])
    wrong = done(model="m", status=200, prefix_source=Source.PEER, decisions=[Outcome.WRONG])
    none = done(model="m", status=200, decisions=[Outcome.UNPREDICTED])
    table = counted(local, wrong, none).table("pharos_prefix_predictions_total", "source", "outcome")
    assert table == {
        ("local", "predicted_hit"): 1, ("local", "wrong_prediction"): 0, ("local", "unknown"): 0,
        ("peer", "wrong_prediction"): 1,
    }  # fmt: skip


def test_a_round_counts_by_the_way_it_went() -> None:
    m = metrics()
    m.decided(rounds.Scrape.BUSY)
    assert page(m)("pharos_decisions_total", stage="scrape", outcome="busy") == 1


def test_a_late_timer_is_lag_and_an_early_one_is_none() -> None:
    m = metrics()
    m.lagged(0.03)
    m.lagged(-0.001)
    p = page(m)
    assert p("pharos_event_loop_lag_seconds_count") == 2
    assert p("pharos_event_loop_lag_seconds_sum") == 0.03


async def test_the_lag_is_what_a_timer_takes_beyond_its_time() -> None:
    m, clock = metrics(), [0.0]

    class Enough(Exception):
        pass

    async def sleep(seconds: float) -> None:
        if clock[0] > 1:
            raise Enough
        clock[0] += seconds + 2

    with pytest.raises(Enough):
        await m.watch_loop(lambda: clock[0], sleep)
    assert page(m)("pharos_event_loop_lag_seconds_sum") == pytest.approx(2)


# -- what is so now ----------------------------------------------------------------------------


def test_a_backend_says_what_it_is_and_whether_it_is_up() -> None:
    b = backend("m")
    m = metrics(b)
    up = {("http://a:1", "openai", "1.2.3"): 1}
    assert page(m).table("pharos_backend_up", "backend", "kind", "version") == up
    b.lost("it died")
    assert page(m).table("pharos_backend_up", "backend", "kind", "version") == dict.fromkeys(up, 0)
    assert page(m).of("pharos_target_inflight") == {}, "there is no such target now"
    assert page(m).of("pharos_backend_probes_active") == {}, "what it would answer is not known"


def test_a_backend_that_never_answered_is_down_and_its_version_is_empty() -> None:
    p = page(metrics(Backend(BackendConfig(url="http://a:1"))))
    assert p.table("pharos_backend_up", "backend", "kind", "version") == {("http://a:1", "", ""): 0}


def test_an_engine_that_was_looked_for_and_is_not_there_is_not_down() -> None:
    assert page(metrics(Backend(FoundBackend(url="http://a:1")))).of("pharos_backend_up") == {}


def test_a_backend_without_a_log_has_no_log_feed() -> None:
    assert page(metrics(backend("m"))).of("pharos_backend_log_feed_up") == {}


def test_a_name_with_quotes_and_line_breaks_stays_one_label() -> None:
    name = 'a"b\\c\nd}{ 1'
    p = counted(done(key="k", model=name, status=200), fleet=(backend(name),))
    assert statuses(p) == {("k", name, "200"): 1}


# -- the page ----------------------------------------------------------------------------------


async def asked(m: Metrics, method: str) -> Client:
    client = Client()
    await m(client.scope("/metrics", method, [], seam=True), client.send)
    return client


async def test_head_has_the_length_and_no_body() -> None:
    m = metrics()
    head = await asked(m, "HEAD")
    assert (head.status, head.body) == (200, b"")
    assert int(head.headers[b"content-length"]) > 1000


async def test_the_page_is_only_read() -> None:
    refused = await asked(metrics(), "POST")
    assert (refused.status, refused.headers[b"allow"]) == (405, b"GET, HEAD")


async def test_a_reader_that_gives_up_does_not_take_the_page_from_another() -> None:
    names = [f"m{i}" for i in range(300)]
    m = metrics(backend(*names))
    first, second = (asyncio.create_task(asked(m, "GET")) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    assert len(read((await second).body).of("pharos_target_inflight")) == 300
    assert first.cancelled()


async def test_it_has_its_build_and_the_process() -> None:
    p = read((await asked(metrics(), "GET")).body)
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8"))[
        "project"
    ]
    assert p.table("pharos_build_info", "version") == {(project["version"],): 1}
    assert p("process_resident_memory_bytes") is not None
