"""A comparison as one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from gateway.simulate.compare import Summary, routers_of, summaries
from gateway.simulate.measure import Result
from gateway.simulate.plot import bars, colour, distribution
from gateway.simulate.report import COLUMNS, Column, detail_columns, number, seconds, share
from gateway.simulate.scenario import Scenario

STYLE = """
:root { color-scheme: light dark; --ink: #1c1c1a; --quiet: #6b6a66; --line: #e4e3df; --ground: #fcfcfb;
  --series-1: #2a78d6; --series-2: #eb6834; --series-3: #1baf7a; --series-4: #c98a00; --series-5: #8a5bd1;
  --series-6: #8c8b86; }
@media (prefers-color-scheme: dark) { :root { --ink: #eceae5; --quiet: #a3a19b; --line: #3a3936;
  --ground: #1a1a19; --series-1: #5b9bea; --series-2: #ef8a60; --series-3: #35c893; --series-4: #e3ac33;
  --series-5: #a986e3; --series-6: #a3a19b; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--ground);
  max-width: 68rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin-top: 3rem } p { max-width: 44rem }
.wide { overflow-x: auto } table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { text-align: right; padding: .2rem .7rem; border-bottom: 1px solid var(--line); white-space: nowrap }
th { color: var(--quiet); font-weight: 500 } th:first-child, td:first-child { text-align: left }
svg { width: 100%; height: auto; display: block } svg text { font-size: 12px; fill: var(--quiet) }
.grid { stroke: var(--line) } .plots { display: flex; flex-wrap: wrap; gap: 1.5rem; margin: 1rem 0 }
figure { margin: 0; flex: 1 1 300px } figure.big { flex: 2 1 560px } figcaption { color: var(--quiet) }
.key { display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin-right: .4em }
"""

INTRO = (
    "The gateway's own scheduler, policies and prefix index, on virtual time, over models of engines. "
    "The engines' numbers are the scenario's; so this compares routers, and foretells no machine's speed."
)


def page(compared: Sequence[tuple[Scenario, Sequence[Result]]]) -> str:
    sections = "".join(_section(scenario, results) for scenario, results in compared)
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"><title>Pharos: routers compared</title>'
        f"<style>{STYLE}</style><h1>Routers compared</h1><p>{INTRO}</p>{sections}</html>\n"
    )


def _section(scenario: Scenario, results: Sequence[Result]) -> str:
    found = summaries(results)
    ttfts = {
        name: sorted(v for r in results if r.router == name for v in r.ttfts) for name in routers_of(results)
    }
    plots = (
        _figure(distribution(ttfts, "s"), "Requests whose first token came within so long", "big"),
        _bars(found, "TTFT p95", lambda s: s.p95, seconds),
        _bars(found, "Prompt tokens found in a cache", lambda s: s.cached_share, share),
        _bars(found, "Model loads", lambda s: s.loads, number),
    )
    seeds = f"{scenario.minutes:g} minutes, {found[0].seeds} seed(s); means over the seeds."
    return (
        f"<h2>{escape(scenario.name)}</h2><p>{escape(scenario.about)}. {seeds}</p>"
        f'<div class="plots">{"".join(plots)}</div>'
        f"{_table(COLUMNS, found)}<p></p>{_table(detail_columns(found), found)}"
        "<p>Waits are mean and p95 in seconds, until an engine begins to work.</p>"
    )


def _bars(
    found: Sequence[Summary],
    label: str,
    value: Callable[[Summary], float | None],
    shown: Callable[[float | None], str],
) -> str:
    values = {s.router: value(s) for s in found}
    return _figure(bars(values, {name: shown(v) for name, v in values.items()}, label), label)


def _figure(svg: str, caption: str, kind: str = "") -> str:
    return f'<figure class="{kind}"><figcaption>{escape(caption)}</figcaption>{svg}</figure>'


def _table(columns: Sequence[Column], found: Sequence[Summary]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name, _ in columns)
    rows = []
    for at, summary in enumerate(found):
        cells = [escape(cell(summary)) for _, cell in columns]
        cells[0] = f'<span class="key" style="background:{colour(at)}"></span>{cells[0]}'
        rows.append("<tr>" + "".join(f"<td>{c}</td>" for c in cells) + "</tr>")
    return f'<div class="wide"><table><tr>{head}</tr>{"".join(rows)}</table></div>'
