"""What a key gets of its quota: in a burst, across minutes and midnights, and when clocks are set."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from random import Random
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.accounts.admission import UNUSED, Accounts, Admission, Refused, Spending, Why
from gateway.accounts.keys import Key
from gateway.accounts.quota import Standing, duration
from gateway.accounts.window import MinuteCell, Windows
from tests.gateway.accounts.clocks import NOON, Clocks, admit, entry, let_in, refused

DAY = 86400.0

# -- requests a minute -------------------------------------------------------------------------


def test_a_key_gets_its_requests_and_then_is_told_when_to_come_back() -> None:
    clocks = Clocks(now=0)
    accounts = clocks.accounts(entry("alice", rpm=5))
    assert [admit(accounts).__class__ for _ in range(6)] == [Admission] * 5 + [Refused]
    over = refused(accounts)
    assert (over.why, over.key and over.key.name) == (Why.REQUESTS, "alice")
    assert over.retry_after_s == pytest.approx(60)


def test_who_comes_back_when_told_is_let_in() -> None:
    clocks = Clocks()
    accounts = clocks.accounts(entry("alice", rpm=7))
    for _ in range(30):
        while not isinstance(found := admit(accounts), Refused):
            pass
        assert found.retry_after_s is not None
        clocks.passes(found.retry_after_s - 0.01)
        assert isinstance(admit(accounts), Refused), "it was told to wait too long"
        clocks.passes(0.01)
        let_in(accounts)


def test_a_refused_request_does_not_use_up_the_quota() -> None:
    clocks = Clocks(now=0)
    accounts = clocks.accounts(entry("alice", rpm=2))
    for _ in range(2):
        let_in(accounts)
    for _ in range(500):
        refused(accounts)
    clocks.passes(120)
    for _ in range(2):
        let_in(accounts)


def test_a_request_that_the_gateway_turned_away_is_given_back() -> None:
    accounts = Clocks().accounts(entry("alice", rpm=1, tokens_per_day=100))
    for _ in range(50):
        admission = let_in(accounts, most=90)
        admission.refund()
        admission.refund()
        admission.settle(Spending(50, 50))
    assert accounts.usage.export() == []
    assert let_in(accounts, most=90).standing.requests_left == 0


def test_a_request_given_back_after_its_minute_has_passed_breaks_nothing() -> None:
    clocks = Clocks()
    accounts = clocks.accounts(entry("alice", rpm=1))
    old = let_in(accounts)
    clocks.passes(600)
    let_in(accounts)
    old.refund()
    refused(accounts)


def test_keys_have_quotas_of_their_own() -> None:
    accounts = Clocks().accounts(entry("alice", rpm=1), entry("bob", rpm=1), entry("carol"))
    let_in(accounts, "alice")
    let_in(accounts, "bob")
    refused(accounts, "alice")
    for _ in range(100):
        let_in(accounts, "carol")


@settings(deadline=None)
@given(st.integers(1, 20), st.lists(st.tuples(st.floats(0, 40), st.booleans()), max_size=200))
def test_in_no_minute_are_there_more_requests_than_the_quota(
    rpm: int, comes: list[tuple[float, bool]]
) -> None:
    clocks = Clocks()
    accounts = clocks.accounts(entry("alice", rpm=rpm))
    let: list[float] = []
    for pause, given_back in comes:
        clocks.passes(pause)
        found = admit(accounts)
        if isinstance(found, Refused):
            assert found.retry_after_s is not None
            assert 0 < found.retry_after_s <= 60
        elif given_back:
            found.refund()
        else:
            let.append(clocks.now)
    assert all(sum(t - 60 + 1e-3 < u <= t for u in let) <= rpm for t in let)


@settings(deadline=None)
@given(
    st.integers(1, 20),
    st.integers(0, 30),
    st.integers(0, 30),
    st.integers(0, 30),
    st.floats(0, 59),
    st.floats(0, 59),
)
def test_who_waits_as_told_is_let_in_whatever_others_did(
    rpm: int, before: int, this: int, mine: int, first: float, second: float
) -> None:
    clocks = Clocks(now=0, wall=NOON)
    accounts = clocks.accounts(entry("alice", rpm=rpm))
    windows = accounts.quota.windows
    minute = int(NOON // 60)
    windows.merge([MinuteCell(2, minute, "alice", before, 0)])
    clocks.passes(first)
    for _ in range(mine):
        admit(accounts)
    clocks.passes(60 - first + second)
    windows.merge([MinuteCell(2, minute + 1, "alice", this, 0)])
    if (wait := windows.wait_s("alice", rpm)) > 0:
        refused(accounts)
        clocks.passes(wait - 0.01)
        assert wait <= 0.01 or windows.wait_s("alice", rpm) > 0, "it was told to wait too long"
        clocks.passes(0.01)
    let_in(accounts)
    clocks.passes(windows.reset_s("alice"))
    assert windows.used("alice") == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("step", [-DAY, -3600.0, -61.0, 61.0, 3600.0, DAY])
def test_a_clock_that_is_set_does_not_open_the_window_again(step: float) -> None:
    clocks = Clocks()
    accounts = clocks.accounts(entry("alice", rpm=3))
    for _ in range(3):
        let_in(accounts)
    for _ in range(4):
        clocks.set_wall(clocks.wall + step)
        refused(accounts)
        clocks.set_wall(clocks.wall - step)
        refused(accounts)


def test_requests_that_another_process_let_in_count_too() -> None:
    clocks = Clocks()
    here, there = clocks.accounts(entry("alice", rpm=4)), clocks.accounts(entry("alice", rpm=4), origin=2)
    for _ in range(3):
        let_in(there)
    here.quota.windows.merge(there.quota.windows.export())
    here.quota.windows.merge(there.quota.windows.export())
    let_in(here)
    refused(here)


minute_cells = st.lists(
    st.builds(
        lambda o, m, k, a, r: MinuteCell(o, m, k, a + r, r),
        st.integers(1, 3), st.integers(9, 10), st.sampled_from("ab"), st.integers(0, 9), st.integers(0, 9),
    ),
    max_size=10,
)  # fmt: skip


@settings(deadline=None, max_examples=50)
@given(minute_cells, minute_cells)
def test_windows_merge_in_any_order_and_any_number_of_times(a: list[MinuteCell], b: list[MinuteCell]) -> None:
    def after(*deliveries: list[MinuteCell]) -> set[tuple[int, int, str, int, int]]:
        windows = Windows(0, lambda: 600.0)
        for cells in deliveries:
            windows.merge(cells)
        return {(c.origin, c.minute, c.key, c.admitted, c.refunded) for c in windows.export()}

    assert after(a, b) == after(b, a) == after(b, a, a, b) == after([*b, *a])


def test_minutes_that_have_passed_are_dropped() -> None:
    clocks = Clocks()
    accounts = clocks.accounts(*(entry(f"k{i}") for i in range(100)))
    for i in range(100):
        let_in(accounts, f"k{i}")
    clocks.passes(180)
    assert accounts.quota.windows.export() == []


# -- tokens a day ------------------------------------------------------------------------------


def test_tokens_that_were_used_are_gone_for_the_day() -> None:
    accounts = Clocks().accounts(entry("alice", tokens_per_day=100))
    let_in(accounts, prompt=10, most=10).settle(Spending(50, 45))
    assert let_in(accounts, prompt=5, most=90).standing.tokens_left == 0
    over = refused(accounts, prompt=6)
    assert over.why is Why.TOKENS
    assert over.retry_after_s == 12 * 3600


def test_what_an_answer_did_not_use_is_given_back_when_it_ends() -> None:
    accounts = Clocks().accounts(entry("alice", tokens_per_day=1000))
    first = let_in(accounts, prompt=10, most=5000)
    held = refused(accounts)
    assert (held.why, held.retry_after_s) == (Why.HELD, 2)
    first.settle(Spending(12, 30))
    assert let_in(accounts, prompt=8, most=100).standing.tokens_left == 1000 - 42 - 108


def test_a_long_limit_is_no_reason_to_turn_a_request_away() -> None:
    accounts = Clocks().accounts(entry("alice", tokens_per_day=1000))
    for _ in range(10):
        let_in(accounts, prompt=10, most=64_000).settle(Spending(10, 20))


def test_an_answer_without_a_limit_is_held_for_as_well() -> None:
    accounts = Clocks().accounts(entry("alice", tokens_per_day=100_000))
    assert let_in(accounts, prompt=100, most=None).standing.tokens_left == 100_000 - 100 - 1024


def test_a_request_that_uses_no_tokens_needs_none() -> None:
    accounts = Clocks().accounts(entry("alice", tokens_per_day=1))
    let_in(accounts, prompt=1, most=1).settle(Spending(100, 100))
    refused(accounts, prompt=1, most=1)
    let_in(accounts, prompt=0, most=0).settle(UNUSED)


def test_what_no_engine_told_uses_nothing_up_and_is_counted_apart() -> None:
    accounts = Clocks().accounts(entry("alice", tokens_per_day=100))
    for _ in range(20):
        let_in(accounts, prompt=10, most=80).settle(Spending())
    total = accounts.usage.history().total(accounts.today, accounts.today)
    assert (total.requests, total.unmetered, total.tokens) == (20, 20, 0)


def test_at_midnight_a_new_day_begins() -> None:
    clocks = Clocks(wall=datetime(2026, 9, 28, 23, 59, 59, tzinfo=ZoneInfo("Asia/Bangkok")).timestamp())
    accounts = clocks.accounts(entry("alice", tokens_per_day=100), zone=ZoneInfo("Asia/Bangkok"))
    late = let_in(accounts, prompt=10, most=90)
    assert refused(accounts).why is Why.HELD
    clocks.passes(1)
    let_in(accounts, prompt=50, most=50)
    late.settle(Spending(10, 90))
    today = accounts.today
    assert accounts.usage.tokens(today - 1, "alice") == 100, "a request counts on the day it was let in"
    assert accounts.usage.tokens(today, "alice") == 0


def test_a_day_on_which_the_clock_changes_has_one_quota() -> None:
    zone = ZoneInfo("Europe/Berlin")
    clocks = Clocks(wall=datetime(2026, 10, 25, 0, 30, tzinfo=zone).timestamp())
    accounts = clocks.accounts(entry("alice", tokens_per_day=100), zone=zone)
    let_in(accounts).settle(Spending(50, 50))
    for _ in range(24):
        assert refused(accounts).why is Why.TOKENS
        clocks.passes(3600)
    assert refused(accounts).retry_after_s == 1800, "that day has 25 hours"
    clocks.passes(1800)
    let_in(accounts)


@settings(deadline=None)
@given(st.lists(st.sampled_from([-2 * DAY, -DAY, -3600.0, 3600.0, DAY, 2 * DAY]), max_size=30))
def test_setting_the_clock_back_and_forth_gives_no_day_twice(steps: list[float]) -> None:
    clocks = Clocks()
    accounts = clocks.accounts(entry("alice", tokens_per_day=100))
    running: list[Admission] = []
    for step in steps:
        while isinstance(found := admit(accounts, prompt=10, most=10), Admission):
            running.append(found)
        clocks.set_wall(clocks.wall + step)
        for admission in running[::2]:
            admission.settle(Spending(10, 10))
    for admission in running:
        admission.settle(Spending(10, 10))
    assert all(day.by_key["alice"].tokens <= 100 for day in accounts.usage.history().days.values())


def test_tokens_that_another_process_counted_count_too() -> None:
    clocks = Clocks()
    here = clocks.accounts(entry("alice", tokens_per_day=100))
    there = clocks.accounts(entry("alice", tokens_per_day=100), origin=2)
    let_in(there).settle(Spending(50, 45))
    here.usage.merge(there.usage.export())
    here.usage.merge(there.usage.export())
    assert refused(here, prompt=6).why is Why.TOKENS


# -- a burst -----------------------------------------------------------------------------------


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 200), st.integers(1, 8000), st.integers(0, 2**32))
def test_200_at_once_get_no_more_than_one_after_the_other_would(rpm: int, quota: int, seed: int) -> None:
    """Each request waits some turns of the loop before it asks and before it ends."""
    random = Random(seed)
    clocks = Clocks()
    accounts = clocks.accounts(entry("alice", rpm=rpm, tokens_per_day=quota))
    day, served, held = accounts.today, 0, 0

    async def one() -> None:
        nonlocal served, held
        prompt, most = random.randint(1, 200), random.choice([None, random.randint(0, 200)])
        how, before, during = random.randint(0, 2), random.randint(0, 4), random.randint(0, 8)
        for _ in range(before):
            await asyncio.sleep(0)
        admission = admit(accounts, prompt=prompt, most=most)
        if isinstance(admission, Refused):
            return
        held = max(held, accounts.quota.held(day, "alice") + accounts.usage.tokens(day, "alice"))
        for _ in range(during):
            await asyncio.sleep(0)
        if how == 0:
            admission.refund()
        else:
            served += 1
            admission.settle(Spending(prompt, min(most or 0, max(0, quota - prompt)) if how == 1 else 0))

    async def burst() -> None:
        await asyncio.gather(*(one() for _ in range(200)))

    asyncio.run(burst())
    assert served <= rpm
    assert held <= quota
    assert accounts.quota.held(day, "alice") == 0
    assert accounts.usage.history().total(day, day).requests == served


def test_a_burst_uses_the_whole_quota_and_no_more() -> None:
    accounts = Clocks().accounts(entry("alice", rpm=1000, tokens_per_day=1000))
    let = [a for _ in range(200) if isinstance(a := admit(accounts, prompt=10, most=40), Admission)]
    assert len(let) == 20
    for admission in let:
        admission.settle(Spending(10, 40))
    assert accounts.usage.tokens(accounts.today, "alice") == 1000


# -- what clients are told ---------------------------------------------------------------------


def test_a_key_sees_what_it_has_left_as_openais_clients_read_it() -> None:
    clocks = Clocks(now=0)
    accounts = clocks.accounts(entry("alice", rpm=60, tokens_per_day=5000))
    standing = let_in(accounts, prompt=100, most=400).standing
    assert dict(standing.headers()) == {
        b"x-ratelimit-limit-requests": b"60",
        b"x-ratelimit-remaining-requests": b"59",
        b"x-ratelimit-reset-requests": b"1m0s",
        b"x-ratelimit-limit-tokens": b"5000",
        b"x-ratelimit-remaining-tokens": b"4500",
        b"x-ratelimit-reset-tokens": b"12h0m0s",
    }


def test_a_key_without_limits_is_told_of_none() -> None:
    assert Clocks().accounts(entry("alice")).quota.standing(Key("alice")) == Standing()
    assert Standing().headers() == []


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "0s"), (-1, "0s"), (59.4, "59s"), (60, "1m0s"), (47_110, "13h5m10s"), (7200, "2h0m0s")],
)
def test_a_duration_is_written_as_clients_parse_it(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def test_the_wait_for_tomorrow_is_right_on_a_short_day() -> None:
    zone = ZoneInfo("Europe/Berlin")
    clocks = Clocks(wall=datetime(2026, 3, 28, 23, 0, tzinfo=UTC).timestamp())  # midnight there
    accounts: Accounts = clocks.accounts(entry("alice", tokens_per_day=1), zone=zone)
    assert refused(accounts).retry_after_s == 23 * 3600
