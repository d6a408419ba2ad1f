"""How values are written on the pages. Unknown is said, and is never a 0 or a blank."""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo

from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString

from gateway.accounts.usage import Counts

register = template.Library()
UNKNOWN = format_html('<span class="unknown">{}</span>', "unknown")


@register.filter
def known(value: object) -> object:
    return UNKNOWN if value is None or value == "" else value


@register.filter
def number(value: float | None) -> str | SafeString:
    return UNKNOWN if value is None else f"{value:,.0f}"


@register.filter
def share(value: float | None) -> str | SafeString:
    return UNKNOWN if value is None else f"{value:.0%}"


@register.filter
def seconds(value: float | None) -> str | SafeString:
    return UNKNOWN if value is None else length(value)


@register.filter
def per_second(s_per_token: float | None) -> str | SafeString:
    """Seconds a token as tokens a second."""
    return UNKNOWN if not s_per_token else f"{1 / s_per_token:,.0f} tokens/s"


@register.filter
def size(value: float | None) -> str | SafeString:
    if value is None:
        return UNKNOWN
    return f"{value / 2**30:.1f} GiB" if value >= 2**30 else f"{value / 2**20:.0f} MiB"


@register.filter
def short(url: str | None) -> str:
    """An address without what all of them begin with."""
    return (url or "").removeprefix("http://")


@register.filter
def tokens(counts: Counts, field: str) -> str | SafeString:
    """A count of tokens, unless no request told any."""
    value: int = getattr(counts, field)
    return UNKNOWN if not value and counts.requests and counts.unmetered >= counts.requests else f"{value:,}"


def length(s: float) -> str:
    """A duration: 12 ms, 1.4 s, 3 min 20 s, 2 h 5 min."""
    if s < 0.9995:
        return f"{s * 1000:.0f} ms"
    if s < 59.95:
        return f"{s:.1f} s"
    whole = round(s)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


@register.filter
def moment(at: float | None, zone: tzinfo) -> SafeString:
    """A time as an element that a script can put into the reader's zone; without one, it is in `zone`."""
    if at is None:
        return UNKNOWN
    when = datetime.fromtimestamp(at, zone)
    iso = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return format_html(
        '<time datetime="{}" title="{}">{}</time>', iso, f"{when:%Y-%m-%d %H:%M:%S %Z}", f"{when:%H:%M:%S}"
    )


@register.filter
def date_moment(at: float | None, zone: tzinfo) -> SafeString:
    if at is None:
        return UNKNOWN
    when = datetime.fromtimestamp(at, zone)
    iso = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return format_html(
        '<time datetime="{}" data-date title="{}">{}</time>',
        iso, f"{when:%Y-%m-%d %H:%M:%S %Z}", f"{when:%Y-%m-%d %H:%M}",
    )  # fmt: skip
