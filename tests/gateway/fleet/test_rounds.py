"""Which way background rounds say that they went."""

from __future__ import annotations

from pathlib import Path

from engines.fetch import Answer, Fault
from engines.plan import Round
from engines.signals import ModelInfo, Residency, Signal, Snapshot
from gateway.config import BackendConfig
from gateway.fleet.backend import Backend
from gateway.fleet.fleet import Fleet
from gateway.fleet.log_follower import LogFollower
from gateway.fleet.rounds import Decision, Generation, LogFeed, Resolve, Scrape
from gateway.fleet.scraper import Scraper, came_of
from tests.gateway.fleet import test_log_follower as log
from tests.gateway.fleet.test_fleet import PLAN, snapshot
from tests.gateway.fleet.test_scraper import Clock, Engine, visited


def watched() -> tuple[Engine, Clock, Backend, Scraper, list[Decision]]:
    engine, clock, backend, scraper = visited()
    said: list[Decision] = []
    backend.decided = said.append
    return engine, clock, backend, scraper, said


async def test_the_first_round_finds_a_plan_and_the_next_full_one_reads_it() -> None:
    _, clock, _, scraper, said = watched()
    await scraper.round()
    clock.now = 5
    await scraper.round()
    assert said == [Resolve.NEW_PLAN, Scrape.OK]


async def test_a_plan_looked_for_again_is_mostly_the_same() -> None:
    _, clock, _, scraper, said = watched()
    await scraper.round()
    clock.now = 700
    await scraper.round()
    assert said[1:] == [Scrape.OK, Resolve.SAME_PLAN]


async def test_an_engine_that_is_not_there_fails_first_and_is_unreachable_later() -> None:
    engine, clock, _, scraper, said = watched()
    engine.fault = Fault.REFUSED
    await scraper.round()
    engine.fault = None
    await scraper.round()
    engine.fault, clock.now = Fault.REFUSED, 10
    await scraper.round()
    assert said == [Resolve.FAILED, Resolve.NEW_PLAN, Scrape.UNREACHABLE]


async def test_a_timeout_is_a_busy_engine() -> None:
    engine, clock, _, scraper, said = watched()
    await scraper.round()
    engine.fault, clock.now = Fault.TIMEOUT, 10
    await scraper.round()
    assert said[1:] == [Scrape.BUSY]


async def test_a_probe_that_fails_has_the_plan_made_anew() -> None:
    class Other(Engine):
        async def __call__(self, path: str) -> Answer:
            answer = await super().__call__(path)
            return Answer(200, b"[]") if broken and path == "/v1/models" else answer

    broken = False
    clock, backend, said = Clock(), Backend(BackendConfig(url="http://a:1", kind="openai")), list[Decision]()
    backend.decided = said.append
    scraper = Scraper(backend, Other(), clock)
    await scraper.round()
    broken, clock.now = True, 10
    await scraper.round()
    assert said == [Resolve.NEW_PLAN, Scrape.PROBE_FAILED, Generation.UNLISTED, Resolve.NEW_PLAN]


def test_an_engine_that_was_upgraded_has_its_plan_made_anew() -> None:
    upgraded = Round(Snapshot(version="2"), failed={"x": "gone"})
    assert (PLAN.version, came_of(upgraded, PLAN)) == ("1", Scrape.NEW_VERSION)


def listed(state: Residency) -> Snapshot:
    return Snapshot(models={"m": ModelInfo(state)}, source={Signal.MODELS: "x", Signal.RESIDENCY: "y"})


def test_what_was_cached_is_gone_for_a_reason() -> None:
    backend, said = Backend(BackendConfig(url="http://a:1")), list[Decision]()
    backend.decided = said.append
    backend.resolved(PLAN, listed(Residency.LOADED), 0)
    backend.resolved(PLAN, listed(Residency.COLD), 5)
    backend.resolved(PLAN, snapshot("other"), 10)
    newer = type(PLAN)(PLAN.recipe, "2", (), {})
    backend.resolved(newer, snapshot("other"), 15)
    assert said == [Generation.UNLOADED, Generation.UNLISTED, Generation.NEW_VERSION, Generation.NEW_VERSION]


def test_an_engine_that_was_lost_and_is_back_has_lost_what_it_had_cached() -> None:
    backend, said = Backend(BackendConfig(url="http://a:1")), list[Decision]()
    backend.resolved(PLAN, snapshot("m"), 0)
    backend.decided = said.append
    backend.lost("it died")
    backend.resolved(PLAN, snapshot("m"), 5)
    assert said == [Generation.RETURNED]


async def test_a_log_is_connected_once_and_ends_once(tmp_path: Path) -> None:
    path = tmp_path / "log"
    backend, said = log.backend(path), list[Decision]()
    backend.decided = said.append
    follower = LogFollower(backend, path, lambda: 1.0)
    up = [backend.log_up]
    await log.follow(follower)
    path.write_bytes(b"slots=4\n")
    await log.follow(follower)
    up.append(backend.log_up)
    path.unlink()
    await log.follow(follower)
    await log.follow(follower)
    up.append(backend.log_up)
    assert up == [False, True, False]
    assert said == [LogFeed.OPEN_FAILED, LogFeed.CONNECTED, LogFeed.ENDED, LogFeed.OPEN_FAILED]


def test_a_fleet_passes_on_what_its_backends_say_and_not_what_removed_ones_do() -> None:
    backend, said = Backend(BackendConfig(url="http://a:1")), list[Decision]()
    fleet = Fleet([backend])
    fleet.on_decision.append(said.append)
    backend.decided(Scrape.OK)
    fleet.set_backends([])
    backend.decided(Scrape.OK)
    assert said == [Scrape.OK]
