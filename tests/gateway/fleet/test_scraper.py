"""What a round of polling does to a backend, on a clock of the test's own."""

from __future__ import annotations

import pytest

from engines.fetch import Answer, Fault, FetchError
from gateway.config import BackendConfig, FoundBackend
from gateway.fleet.backend import Backend
from gateway.fleet.scraper import Scraper

MODELS = b'{"object":"list","data":[{"id":"m","object":"model"}]}'


class Engine:
    """A generic engine: one list of models and nothing of its load."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.fault: Fault | None = None

    async def __call__(self, path: str) -> Answer:
        self.asked.append(path)
        if self.fault is not None:
            raise FetchError(self.fault, f"{path}: {self.fault}")
        return Answer(200, MODELS) if path == "/v1/models" else Answer(404, b"")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def visited() -> tuple[Engine, Clock, Backend, Scraper]:
    engine, clock = Engine(), Clock()
    backend = Backend(BackendConfig(url="http://a:1", kind="openai"))
    return engine, clock, backend, Scraper(backend, engine, clock)


async def test_a_backend_that_was_put_aside_is_not_back_before_it_has_answered() -> None:
    engine, clock, backend, scraper = visited()
    await scraper.round()
    backend.lost("refused a request")
    engine.fault = Fault.REFUSED
    clock.now = 1.0  # a light round's time: this engine shows nothing that such a round could ask
    await scraper.round()
    assert not backend.up


async def test_a_backend_that_was_put_aside_is_back_with_the_first_round_it_answers() -> None:
    _, clock, backend, scraper = visited()
    await scraper.round()
    backend.lost("refused a request")
    clock.now = 1.0
    await scraper.round()
    assert backend.up


async def test_a_light_round_asks_an_engine_without_load_nothing() -> None:
    engine, clock, backend, scraper = visited()
    await scraper.round()
    engine.asked.clear()
    clock.now = 1.0
    await scraper.round()
    assert engine.asked == []
    assert backend.up


async def test_a_refused_round_takes_a_backend_out_and_an_answered_one_brings_it_back() -> None:
    engine, clock, backend, scraper = visited()
    await scraper.round()
    engine.fault = Fault.REFUSED
    clock.now = 6.0
    await scraper.round()
    assert not backend.up
    engine.fault = None
    await scraper.round()
    assert backend.up


async def test_a_timed_out_round_is_a_busy_engine_and_not_one_that_is_down() -> None:
    engine, clock, backend, scraper = visited()
    await scraper.round()
    engine.fault = Fault.TIMEOUT
    clock.now = 6.0
    await scraper.round()
    assert backend.up
    assert list(backend.models) == ["m"]


async def test_an_engine_silent_for_long_is_not_asked_but_its_models_are_still_known() -> None:
    engine, clock, backend, scraper = visited()
    await scraper.round()
    engine.fault = Fault.TIMEOUT
    for clock.now in (6.0, 12.0, 18.0):
        await scraper.round()
    assert not backend.up
    assert list(backend.models) == ["m"], "a known model that nobody serves now is a 503, never a 404"
    engine.fault = None
    clock.now = 24.0
    await scraper.round()
    assert backend.up


async def rounds(found: bool, faults: list[Fault | None]) -> None:
    config = (
        FoundBackend(url="http://a:1", kind="openai")
        if found
        else BackendConfig(url="http://a:1", kind="openai")
    )
    engine, clock = Engine(), Clock()
    scraper = Scraper(Backend(config), engine, clock)
    for engine.fault in faults:
        await scraper.round()
        clock.now += 6.0


@pytest.mark.parametrize("found", [False, True])
async def test_a_loss_and_a_return_are_logged_once_each(
    found: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    await rounds(found, [None, None, Fault.REFUSED, Fault.REFUSED, None, None, None])
    assert [caplog.text.count(words) for words in ("is not in use", "answers again")] == [1, 1]


async def test_an_engine_that_was_looked_for_and_never_there_is_not_mentioned(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    await rounds(True, [Fault.REFUSED, Fault.REFUSED])
    assert caplog.text == ""
