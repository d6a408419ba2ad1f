"""A page, JSON or CSV: which of them is wanted, and a refusal in that form."""

from __future__ import annotations

from dataclasses import dataclass

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render

HTML, JSON, CSV = "text/html", "application/json", "text/csv"
FORMATS = {"html": HTML, "json": JSON, "csv": CSV}


@dataclass(frozen=True, slots=True)
class Refused:
    status: int
    code: str
    message: str  # for people
    retry_after_s: int | None = None


def wanted(request: HttpRequest, *offered: str) -> str | None:
    """Of what is offered; the first where anything will do. None: a `format` that there is not."""
    if (named := request.GET.get("format")) is not None:
        return kind if (kind := FORMATS.get(named)) in offered else None
    return request.get_preferred_type(offered) or offered[0]


def refused(request: HttpRequest, why: Refused) -> HttpResponse:
    response: HttpResponse
    if wanted(request, JSON, HTML) == HTML:
        response = render(request, "pharos/refused.html", {"why": why}, status=why.status)
    else:
        kind = "server_error" if why.status >= 500 else "invalid_request_error"
        error = {"message": why.message, "type": kind, "param": None, "code": why.code}
        response = JsonResponse({"error": error}, status=why.status)
    if why.status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    if why.retry_after_s is not None:
        response.headers["Retry-After"] = str(why.retry_after_s)
    return response
