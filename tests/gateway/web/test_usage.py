"""/usage: sums, days, the chart, CSV and JSON."""

from __future__ import annotations

import csv
import io
from datetime import date
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.accounts.days import Days
from gateway.accounts.usage import Counts, Usage
from gateway.config import UsageConfig
from gateway.web import sums
from gateway.web.chart import MOST_BARS, bars, chart
from gateway.web.filters import tokens
from gateway.web.sums import By, Span
from tests.gateway.web.house import Visitor, gateway

COUNTS = st.builds(Counts, *[st.integers(0, 10**9)] * 6)
CELLS = st.lists(
    st.tuples(st.integers(100, 140), st.sampled_from("abc"), st.sampled_from("mn"), COUNTS), max_size=30
)


def usage_of(cells: list[tuple[int, str, str, Counts]]) -> Usage:
    usage = Usage(1)
    for day, key, model, counts in cells:
        usage.add(day, key, model, counts)
    return usage


@given(CELLS, st.integers(95, 145), st.integers(0, 40), st.sampled_from(By))
def test_days_names_and_rows_add_up_to_the_same(
    cells: list[tuple[int, str, str, Counts]], first: int, more: int, by: By
) -> None:
    history, of = usage_of(cells).history(), Span(first, first + more)
    expected = history.total(of.first, of.last)
    adds = [
        [c for _, c in sums.totals(history, of, by)],
        list(sums.by_day(history, of).values()),
        [c for rows in sums.rows(history, of, by) for _, _, c in rows],
    ]
    for counts in adds:
        total = Counts()
        for c in counts:
            total = total.plus(c)
        assert total == expected


@given(CELLS, st.integers(95, 120), st.integers(0, 600))
def test_no_day_is_lost_in_the_chart(
    cells: list[tuple[int, str, str, Counts]], first: int, more: int
) -> None:
    history, of = usage_of(cells).history(), Span(first, first + more)
    shown = bars(sums.by_day(history, of), of)
    assert len(shown) <= MOST_BARS
    assert [b.first for b in shown[1:]] == [b.last + 1 for b in shown[:-1]]
    assert (shown[0].first, shown[-1].last) == (of.first, of.last)
    assert sum(b.counts.tokens for b in shown) == history.total(of.first, of.last).tokens


def test_the_chart_says_in_words_what_it_shows() -> None:
    history = usage_of([(100, "a", "m", Counts(3, 500, 20)), (102, "a", "m", Counts(1, 5, 2))]).history()
    of = Span(100, 102)
    made = chart(sums.by_day(history, of), of, Days())
    assert "527 in all" in made.words
    assert "1970-04-11 with 520" in made.words
    assert made.svg.count("<g>") == 3
    assert "style=" not in made.svg


def test_a_small_day_beside_a_large_one_still_shows() -> None:
    history = usage_of([(100, "a", "m", Counts(1, 10**9)), (101, "a", "m", Counts(1, 1))]).history()
    of = Span(100, 101)
    assert 'height="1.50"' in chart(sums.by_day(history, of), of, Days()).svg


def test_one_key_or_one_model_can_be_looked_at() -> None:
    history = usage_of([(100, "a", "m", Counts(1, 1)), (100, "b", "n", Counts(1, 20))]).history()
    of = Span(100, 100)
    assert sums.by_day(history, of, key="a")[100].tokens == 1
    assert sums.by_day(history, of, model="n")[100].tokens == 20


def test_tokens_of_requests_that_told_none_are_unknown_and_not_zero() -> None:
    assert "unknown" in tokens(Counts(2, unmetered=2), "tokens")
    assert tokens(Counts(2, 5, unmetered=1), "tokens") == "5"
    assert tokens(Counts(), "tokens") == "0"


def test_the_range_is_thirty_days_unless_told_otherwise() -> None:
    days = Days(ZoneInfo("Asia/Tokyo"))
    today = days.number(date(2026, 3, 1))
    assert sums.span(days, today, None, None) == Span(today - 29, today)
    assert sums.span(days, today, "2026-02-01", "2026-02-03") == Span(today - 28, today - 26)


@pytest.mark.parametrize(
    "query",
    ["from=yesterday", "to=2026-13-01", "from=2026-02-02&to=2026-02-01", "by=colour", "format=xml", "from=%00", "from=2026-02-30"],
)  # fmt: skip
async def test_what_cannot_be_is_a_400_in_words(query: str) -> None:
    came = await Visitor(gateway(), accept="application/json").get(f"/usage?{query}")
    assert came.status == 400
    assert came.json["error"]["code"] == "bad_query"


async def test_days_are_told_with_the_offset_of_their_zone() -> None:
    made = gateway(usage=UsageConfig(timezone="Asia/Bangkok"))
    made.accounts.usage.add(made.accounts.days.number(date(2026, 9, 28)), "alice", "m", Counts(1, 10, 2))
    visitor = Visitor(made, accept="*/*")
    came = await visitor.get("/usage?from=2026-09-01&to=2026-09-30")
    assert came.json["timezone"] == "Asia/Bangkok"
    assert came.json["rows"] == [
        {
            "day": "2026-09-28T00:00:00+07:00", "key": "alice", "requests": 1, "prompt_tokens": 10,
            "completion_tokens": 2, "cached_tokens": 0, "unmetered": 0, "abandoned": 0,
        }
    ]  # fmt: skip
    came = await visitor.get("/usage?from=2026-09-01&to=2026-09-30&by=model&format=csv")
    rows = list(csv.reader(io.StringIO(came.text)))
    assert rows[1] == ["2026-09-28T00:00:00+07:00", "m", "1", "10", "2", "0", "0", "0"]
    assert "usage-2026-09-01-2026-09-30-by-model.csv" in (came.header("content-disposition") or "")


async def test_nothing_used_is_an_empty_list() -> None:
    assert (await Visitor(gateway(), accept="application/json").get("/usage")).json["rows"] == []


async def test_a_name_that_a_spreadsheet_would_run_is_text_in_the_csv() -> None:
    made = gateway()
    made.accounts.usage.add(made.accounts.today, "anonymous", '=HYPERLINK("x")', Counts(1, 1, 1))
    rows = list(csv.reader(io.StringIO((await Visitor(made).get("/usage?by=model&format=csv")).text)))
    assert rows[1][1] == '\'=HYPERLINK("x")'


async def test_the_page_shows_keys_and_models_with_the_most_tokens_first() -> None:
    made = gateway()
    for key, model, n in (("small", "m", 1), ("large", "n", 10**6)):
        made.accounts.usage.add(made.accounts.today, key, model, Counts(1, n, 0))
    page = (await Visitor(made).get("/usage")).text
    assert page.index("/usage?key=large") < page.index("/usage?key=small")
    assert "1,000,000" in page
    assert "<svg" in page
    one = (await Visitor(made).get("/usage?key=small")).text
    assert "of key small" in one
