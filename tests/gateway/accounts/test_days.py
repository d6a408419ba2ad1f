"""Days by the date on the wall, through midnight, changes of the clock and odd zones."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.accounts.days import Days, host_zone, zone_of

ZONES = [
    "UTC", "Europe/Berlin", "America/New_York", "Asia/Bangkok", "Australia/Lord_Howe", "America/Havana",
    "America/Sao_Paulo", "Pacific/Apia", "Asia/Kathmandu", "America/St_Johns", "Asia/Beirut",
]  # fmt: skip


def at(text: str, zone: str = "UTC", fold: int = 0) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold).timestamp()


def test_the_day_turns_at_midnight_of_its_zone() -> None:
    days = Days(ZoneInfo("Asia/Bangkok"))
    before = days.day(at("2026-09-28T16:59:59"))
    assert days.day(at("2026-09-28T17:00:00")) == before + 1
    assert days.date(before) == date(2026, 9, 28)
    assert days.begins(before).isoformat() == "2026-09-28T00:00:00+07:00"


@pytest.mark.parametrize(
    ("zone", "day", "hours"),
    [
        ("Europe/Berlin", "2026-03-29", 23),
        ("Europe/Berlin", "2026-10-25", 25),
        ("America/Sao_Paulo", "2018-11-04", 23),  # there was no midnight
        ("America/Havana", "2026-11-01", 25),  # there are two
        ("Asia/Bangkok", "2026-03-29", 24),
    ],
)
def test_a_day_on_which_the_clock_changes_is_one_day(zone: str, day: str, hours: int) -> None:
    days = Days(ZoneInfo(zone))
    number = days.number(date.fromisoformat(day))
    start = days.begins(number).timestamp()
    assert days.left(start) == hours * 3600
    assert {days.day(start + h * 1800) for h in range(hours * 2)} == {number}
    assert (days.day(start - 1), days.day(start + hours * 3600)) == (number - 1, number + 1)


def test_where_the_clock_goes_back_over_midnight_the_day_before_comes_back() -> None:
    days = Days(ZoneInfo("America/St_Johns"))
    first = at("2006-10-28T23:59:59", "America/St_Johns")
    number = days.day(first)
    assert [days.day(first + s) for s in (0, 1, 61, 3600, 3661)] == [
        number, number + 1, number, number, number + 1,
    ]  # fmt: skip


def test_a_date_that_a_zone_left_out_takes_no_time() -> None:
    days = Days(ZoneInfo("Pacific/Apia"))
    last = at("2011-12-29T23:59:59", "Pacific/Apia")
    assert (days.day(last + 1), days.left(last)) == (days.day(last) + 2, 1)


@settings(deadline=None, max_examples=50)
@given(st.sampled_from(ZONES), st.lists(st.floats(0, 4e9), min_size=1, max_size=5))
def test_the_day_is_the_date_on_the_wall_whatever_was_asked_before(zone: str, times: list[float]) -> None:
    days = Days(ZoneInfo(zone))
    for t in times:
        when = datetime.fromtimestamp(t, ZoneInfo(zone))
        assert days.date(days.day(t)) == when.date()
        assert 0 <= days.left(t) <= 25.5 * 3600


def test_the_machines_zone_is_its_variable_then_its_file_then_utc(tmp_path: Path) -> None:
    file = Path("/usr/share/zoneinfo/Asia/Tokyo")
    assert str(host_zone("Asia/Bangkok")) == "Asia/Bangkok"
    assert str(host_zone(":Asia/Bangkok")) == "Asia/Bangkok"
    if file.exists():
        assert host_zone("no/zone", file).utcoffset(datetime(2026, 1, 1)) == ZoneInfo("Asia/Tokyo").utcoffset(  # noqa: DTZ001
            datetime(2026, 1, 1)  # noqa: DTZ001
        )
    assert host_zone("", tmp_path / "none") is UTC
    assert str(zone_of("Europe/Paris", "Asia/Tokyo")) == "Europe/Paris"
