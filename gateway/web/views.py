"""/status and /usage, what they are made of, and how errors look."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import mimetypes
from collections.abc import AsyncIterator, Iterator
from functools import lru_cache
from typing import Any

import msgspec
from django.contrib.staticfiles import finders
from django.http import (
    Http404,
    HttpRequest,
    HttpResponse,
    HttpResponseBase,
    JsonResponse,
    StreamingHttpResponse,
)
from django.shortcuts import render
from django.views.decorators.http import require_safe

from gateway.accounts.days import Days
from gateway.accounts.usage import Counts
from gateway.web import snapshot, sums
from gateway.web import status as status_page
from gateway.web.chart import chart
from gateway.web.door import desk_of
from gateway.web.replies import CSV, HTML, JSON, Refused, refused, wanted
from gateway.web.snapshot import UsageShot
from gateway.web.sums import By, Span

MOST_ROWS = 200
"""Of each table on the usage page. The CSV has all."""
ROWS_A_STEP = 100
"""Written in one go, in C, and nobody else has the interpreter meanwhile."""


@require_safe
def status(request: HttpRequest) -> HttpResponse:
    kind = wanted(request, HTML, JSON)
    if kind is None:
        return refused(request, Refused(400, "bad_format", "format is html or json here."))
    shot = desk_of(request).ask(snapshot.take)
    if kind == JSON:
        return JsonResponse(status_page.as_json(shot))
    return render(request, "pharos/status.html", {"page": "status", **status_page.context(shot)})


@require_safe
def usage(request: HttpRequest) -> HttpResponseBase:
    kind = wanted(request, JSON, HTML, CSV)
    asked = request.GET
    shot = desk_of(request).ask(snapshot.usage)
    days = Days(shot.zone)
    try:
        if kind is None:
            raise ValueError("format is html, json or csv here")
        by = By(asked.get("by") or By.KEY)
        of = sums.span(days, days.day(shot.wall), asked.get("from"), asked.get("to"))
    except ValueError as e:
        said = f"by={asked.get('by')!r} is not key or model" if "is not a valid By" in str(e) else str(e)
        return refused(request, Refused(400, "bad_query", f"{said[:200]}."))
    if kind == HTML:
        return render(
            request, "pharos/usage.html", {"page": "usage", **_usage_context(request, shot, days, of)}
        )
    name = f"usage-{days.date(of.first)}-{days.date(of.last)}-by-{by}"
    return _download(shot, days, of, by, name) if kind == CSV else _usage_json(shot, days, of, by)


def _usage_context(request: HttpRequest, shot: UsageShot, days: Days, of: Span) -> dict[str, Any]:
    key, model = request.GET.get("key") or None, request.GET.get("model") or None
    keys, models = (sums.totals(shot.history, of, by) for by in (By.KEY, By.MODEL))
    found = sums.by_day(shot.history, of, key, None if key else model)
    total = Counts()
    for counts in found.values():
        total = total.plus(counts)
    seen = {name for name, _ in keys}
    return {
        "chart": chart(found, of, days),
        "total": total,
        "of_what": f"key {key}" if key else f"model {model}" if model else "",
        "key": key, "model": None if key else model,
        "keys": keys[:MOST_ROWS], "models": models[:MOST_ROWS],
        "keys_left_out": max(0, len(keys) - MOST_ROWS),
        "models_left_out": max(0, len(models) - MOST_ROWS),
        "idle": sum(name not in seen for name in shot.names),
        "by_day": [(days.date(n), c) for n, c in sorted(found.items(), reverse=True) if c.requests],
        "first": days.date(of.first), "last": days.date(of.last), "days": len(of),
        "zone_name": getattr(shot.zone, "key", None) or str(shot.zone),
    }  # fmt: skip


# -- usage for programs ------------------------------------------------------------------------
# Pieces of a few days each: neither the loop nor the memory has all of it at once.


def _usage_json(shot: UsageShot, days: Days, of: Span, by: By) -> HttpResponseBase:
    head = {
        "from": days.date(of.first).isoformat(),
        "to": days.date(of.last).isoformat(),
        "timezone": getattr(shot.zone, "key", None) or str(shot.zone),
        "by": str(by),
    }

    def pieces() -> Iterator[bytes]:
        yield json.dumps(head)[:-1].encode() + b', "rows": ['
        comma = b""
        for rows in sums.rows(shot.history, of, by):
            day = days.begins(rows[0][0]).isoformat() if rows else ""
            for _, name, counts in rows:
                row = {"day": day, str(by): name, **status_page.counts_json(counts)}
                yield comma + msgspec.json.encode(row)
                comma = b", "
        yield b"]}"

    return StreamingHttpResponse(_in_thread(pieces()), content_type=JSON)


def _download(shot: UsageShot, days: Days, of: Span, by: By, name: str) -> HttpResponseBase:
    def pieces() -> Iterator[bytes]:
        yield _csv([["day", str(by), *Counts.__struct_fields__]])
        for rows in sums.rows(shot.history, of, by):
            day = days.begins(rows[0][0]).isoformat() if rows else ""
            for first in range(0, len(rows), ROWS_A_STEP):
                some = rows[first : first + ROWS_A_STEP]
                yield _csv([[day, _inert(who), *counts.each()] for _, who, counts in some])

    return StreamingHttpResponse(
        _in_thread(pieces()),
        content_type="text/csv; charset=utf-8",
        headers={"Content-Disposition": f'attachment; filename="{name}.csv"'},
    )


def _csv(rows: list[list[Any]]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    return text.getvalue().encode()


def _inert(name: str) -> str:
    """Spreadsheets run what begins like a formula, and clients choose the names of models."""
    return "'" + name if name[:1] in tuple("=+-@\t\r") else name


async def _in_thread(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    while piece := await asyncio.to_thread(_some, pieces):
        yield piece


def _some(pieces: Iterator[bytes]) -> bytes:
    """About 64 KiB, or what there is."""
    found, size = [], 0
    for piece in pieces:
        found.append(piece)
        size += len(piece)
        if size >= 65536:
            break
    return b"".join(found)


# -- styles, the script, pictures --------------------------------------------------------------


@require_safe
def static(_request: HttpRequest, path: str) -> HttpResponse:
    found = _file(path)
    if found is None:
        raise Http404(path)
    body, kind = found
    response = HttpResponse(body, content_type=kind)
    response.headers["Cache-Control"] = "max-age=300"
    return response


@lru_cache(128)
def _file(path: str) -> tuple[bytes, str] | None:
    where = finders.find(path) if path.startswith(("admin/", "pharos/")) else None
    if not isinstance(where, str):
        return None
    with open(where, "rb") as file:
        return file.read(), mimetypes.guess_type(where)[0] or "application/octet-stream"


# -- errors ------------------------------------------------------------------------------------


def csrf_refused(request: HttpRequest, reason: str = "") -> HttpResponse:
    why = "This form was not sent from a page of Pharos, or that page is too old: reload it and try again."
    return refused(request, Refused(403, "csrf", why))


def bad_request(request: HttpRequest, exception: object) -> HttpResponse:
    return refused(request, Refused(400, "bad_request", "Pharos does not understand this request."))


def forbidden(request: HttpRequest, exception: object) -> HttpResponse:
    return refused(request, Refused(403, "forbidden", "This is not for you."))


def not_found(request: HttpRequest, exception: object) -> HttpResponse:
    return refused(
        request, Refused(404, "not_found", "There is no such page. Pages: /status, /usage, /admin/.")
    )


def failed(request: HttpRequest) -> HttpResponse:
    return refused(request, Refused(500, "internal_error", "This page failed; the log of Pharos says why."))
