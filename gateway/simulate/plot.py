"""Plots as inline SVG: lines of a distribution, and bars. No scripts, no fonts from elsewhere."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape

WIDTH, HEIGHT = 640, 300
LEFT, RIGHT, TOP, BOTTOM = 46, 28, 10, 34
POINTS = 200  # of a line at most

Series = Mapping[str, Sequence[float]]


def colour(at: int) -> str:
    """The page's style sheet says which, for light and for dark."""
    return f"var(--series-{at % 6 + 1})"


def distribution(series: Series, unit: str) -> str:
    """For each series the share of values up to x, on a logarithmic x. Values sorted."""
    known = [v for values in series.values() if values for v in (values[0], values[-1])]
    if not known:
        return ""
    low = 10 ** math.floor(math.log10(max(min(known), 0.01)))
    high = 10 ** math.ceil(math.log10(max(*known, 10 * low)))
    scale = (WIDTH - LEFT - RIGHT) / math.log10(high / low)

    def x(value: float) -> float:
        return LEFT + math.log10(max(value, low) / low) * scale

    parts = [
        _text(LEFT - 6, y(s) + 4, f"{s:.0%}", "end") + _rule(y(s)) for s in (0, 0.25, 0.5, 0.75, 0.95, 1)
    ]
    parts += [_tick(x(v), v, unit) for v in _decades(low, high)]
    for at, (name, values) in enumerate(series.items()):
        line = " ".join(f"{x(v):.1f},{y(s):.1f}" for v, s in _thinned(values))
        parts.append(
            f'<polyline points="{line}" fill="none" stroke="{colour(at)}" stroke-width="2">'
            f"<title>{escape(name)}</title></polyline>"
        )
    return _svg(parts, "Share of requests whose first token came within so many seconds, by router")


def y(share: float) -> float:
    return TOP + (1 - share) * (HEIGHT - TOP - BOTTOM)


def _thinned(values: Sequence[float]) -> Iterator[tuple[float, float]]:
    n = len(values)
    step = max(1, n // POINTS)
    for at in [*range(0, n - 1, step), n - 1] if n else []:
        yield values[at], (at + 1) / n


def _decades(low: float, high: float) -> Iterator[float]:
    value = low
    while value <= high * 1.001:
        yield value
        value *= 10


def _tick(at: float, value: float, unit: str) -> str:
    line = f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
    return line + _text(at, HEIGHT - BOTTOM + 18, f"{value:g} {unit}", "middle")


def _rule(at: float) -> str:
    return f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'


def _text(x: float, at: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{at:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def bars(values: Mapping[str, float | None], shown: Mapping[str, str], label: str) -> str:
    """One horizontal bar each, in their order; what is unknown has none."""
    row, name_width = 26, 110
    most = max((v for v in values.values() if v is not None), default=0) or 1
    room = 320 - name_width - 60
    parts = []
    for at, (name, value) in enumerate(values.items()):
        middle = at * row + row / 2
        length = 0 if not value else max(1.0, value / most * room)
        parts.append(_text(name_width - 8, middle + 4, name, "end"))
        parts.append(
            f'<rect x="{name_width}" y="{middle - 8}" width="{length:.1f}" height="16" rx="2" '
            f'fill="{colour(at)}"/>'
        )
        parts.append(_text(name_width + length + 6, middle + 4, shown[name], "start"))
    return _svg(parts, label, 320, row * len(values))


def _svg(parts: Sequence[str], label: str, width: int = WIDTH, height: int = HEIGHT) -> str:
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(label)}" '
        f'style="max-width:{width}px">{"".join(parts)}</svg>'
    )
