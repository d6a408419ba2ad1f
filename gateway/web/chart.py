"""Days as bars: an SVG of plain shapes, which styles and words are given around it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from gateway.accounts.days import Days
from gateway.accounts.usage import NOTHING, Counts
from gateway.web.sums import Span

MOST_BARS = 120
WIDTH, HEIGHT = 960, 180
LEAST = 1.5
"""A day on which anything was used shows, however small it is beside the others."""


@dataclass(frozen=True, slots=True)
class Bar:
    first: int
    last: int
    counts: Counts


@dataclass(frozen=True, slots=True)
class Chart:
    svg: SafeString
    top: int  # tokens
    days_a_bar: int
    words: str  # what it shows, for those who do not see it


def bars(found: Mapping[int, Counts], of: Span) -> list[Bar]:
    """One for each day, or for several where there are too many."""
    step = -(-len(of) // MOST_BARS)
    out = []
    for first in range(of.first, of.last + 1, step):
        total = NOTHING
        for day in range(first, min(first + step, of.last + 1)):
            if day in found:
                total = total.plus(found[day])
        out.append(Bar(first, min(first + step - 1, of.last), total))
    return out


def chart(found: Mapping[int, Counts], of: Span, days: Days) -> Chart:
    shown = bars(found, of)
    top = max((b.counts.tokens for b in shown), default=0)
    pitch = WIDTH / max(len(shown), 1)
    parts = ((_bar(b, i, pitch, top), _title(b, days)) for i, b in enumerate(shown))
    body = format_html_join("\n", "<g>{}<title>{}</title></g>", parts)
    words = _words(shown, days)
    svg = format_html(
        '<svg class="bars" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img"'
        ' aria-label="{}">{}</svg>',
        WIDTH, HEIGHT, words, body,
    )  # fmt: skip
    return Chart(svg, top, -(-len(of) // MOST_BARS), words)


def _bar(bar: Bar, at: int, pitch: float, top: int) -> SafeString:
    width, x, c = max(pitch * 0.78, 0.5), at * pitch + pitch * 0.11, bar.counts
    prompt = c.prompt_tokens / top * HEIGHT if top else 0.0
    answer = c.completion_tokens / top * HEIGHT if top else 0.0
    if 0 < prompt + answer < LEAST:
        prompt, answer = LEAST, 0.0
    return format_html_join(
        "",
        '<rect class="{}" x="{}" y="{}" width="{}" height="{}"/>',
        (
            (name, f"{x:.2f}", f"{y:.2f}", f"{width:.2f}", f"{height:.2f}")
            for name, y, height in (
                ("day", 0.0, float(HEIGHT)),  # where the pointer finds the title of a day without any
                ("prompt", HEIGHT - prompt, prompt),
                ("answer", HEIGHT - prompt - answer, answer),
            )
        ),
    )


def _title(bar: Bar, days: Days) -> str:
    when, c = _when(bar, days), bar.counts
    if not c.requests:
        return f"{when}: nothing"
    more = f", {c.unmetered:,} unmetered" if c.unmetered else ""
    return (
        f"{when}: {c.prompt_tokens:,} prompt and {c.completion_tokens:,} answer tokens,"
        f" {c.requests:,} requests{more}"
    )


def _when(bar: Bar, days: Days) -> str:
    first = days.date(bar.first).isoformat()
    return first if bar.first == bar.last else f"{first} to {days.date(bar.last).isoformat()}"


def _words(shown: list[Bar], days: Days) -> str:
    if not shown or not any(b.counts.requests for b in shown):
        return "Tokens by day: nothing was used"
    most = max(shown, key=lambda b: b.counts.tokens)
    return (
        f"Tokens by day from {days.date(shown[0].first)} to {days.date(shown[-1].last)}:"
        f" {sum(b.counts.tokens for b in shown):,} in all, the most on {_when(most, days)}"
        f" with {most.counts.tokens:,}"
    )
