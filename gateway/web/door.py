"""Who may see the pages, and the headers that all of them carry.

With keys: whoever presents an admin key, in a header or at the login form. Each request looks its key up
anew, so one that was taken away opens nothing from then on. Without keys: whoever sits at this machine, and
asks for it by a name of its own: the page of a stranger whose name was pointed at 127.0.0.1 gets nothing out
of a browser here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from hmac import compare_digest
from urllib.parse import quote, urlsplit

from django.conf import settings
from django.http import HttpRequest, HttpResponseBase, HttpResponseRedirect
from django.middleware.csrf import CsrfViewMiddleware

from gateway.proxy.ask import credentials
from gateway.web.brake import is_loopback
from gateway.web.desk import DESK, Desk
from gateway.web.replies import Refused, refused

Next = Callable[[HttpRequest], HttpResponseBase]

LOGIN = "/admin/login/"
KEY, PROOF, SESSION = "key", "proof", "id"
"""What a session keeps: the name of a key, that it was had, and a number of its own."""

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self';"
    " connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # "no-referrer" would make browsers send `Origin: null` with our forms
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
FORWARDED = ("HTTP_X_FORWARDED_FOR", "HTTP_X_REAL_IP", "HTTP_FORWARDED", "HTTP_X_FORWARDED_HOST", "HTTP_VIA")
"""Sent by proxies: a request that came over one did not begin where its connection does."""


@dataclass(frozen=True, slots=True)
class Operator:
    """Who looks at the pages. It has what Django's admin wants of a user, and no table behind it."""

    name: str = ""
    by: str = "nobody"  # session, header, this machine

    is_active = True
    is_staff = property(lambda self: self.is_authenticated)
    is_anonymous = property(lambda self: not self.is_authenticated)

    @property
    def is_authenticated(self) -> bool:
        return self.by != "nobody"

    def get_username(self) -> str:
        return self.name

    def has_usable_password(self) -> bool:
        return False


NOBODY = Operator()


def operator_of(request: HttpRequest) -> Operator:
    return getattr(request, "user", NOBODY)  # the door put it there


def desk_of(request: HttpRequest) -> Desk:
    desk: Desk = request.scope[DESK]  # type: ignore[attr-defined]  # Django's ASGI handler has put it there
    return desk


def client_of(request: HttpRequest) -> str | None:
    client = request.scope.get("client")  # type: ignore[attr-defined]
    return client[0] if client else None


def who(request: HttpRequest) -> dict[str, object]:
    """For templates."""
    return {"user": operator_of(request)}


class Headers:
    """Outermost, so that errors carry them too."""

    def __init__(self, get_response: Next) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        response = self.get_response(request)
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        response.headers.setdefault("Cache-Control", "no-store")
        if request.is_secure():
            for cookie in response.cookies.values():
                cookie["secure"] = True
        return response


class Csrf(CsrfViewMiddleware):
    """Pharos has no list of its own names: where a form came from is held against where it was sent."""

    def _origin_verified(self, request: HttpRequest) -> bool:
        origin, host = urlsplit(request.META["HTTP_ORIGIN"]), request.META.get("HTTP_HOST", "")
        return origin.scheme in ("http", "https") and origin.netloc.lower() == host.lower() != ""


class Door:
    def __init__(self, get_response: Next) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        if request.path.startswith(settings.STATIC_URL):
            return self.get_response(request)
        if DESK not in request.scope:  # type: ignore[attr-defined]
            return refused(request, Refused(404, "no_gateway", "There is no gateway behind these pages."))
        found = at_this_machine(request) if not desk_of(request).keys else by_key(request)
        if isinstance(found, Refused):
            if found.status == 401 and request.path == LOGIN:
                found = NOBODY
            elif found.status == 401 and found.code == "no_key" and _in_browser(request):
                return HttpResponseRedirect(f"{LOGIN}?next={quote(request.get_full_path())}")
            else:
                return refused(request, found)
        request.user = found  # type: ignore[assignment]
        return self.get_response(request)


def by_key(request: HttpRequest) -> Operator | Refused:
    desk = desk_of(request)
    if not any(key.admin for key in desk.keys):
        return Refused(
            403, "no_admin_key",
            "No key may read the pages: give one of them `admin: true` in the config file.",
        )  # fmt: skip
    if given := credentials(request.scope["headers"]):  # type: ignore[attr-defined]
        key = desk.keys.present(given)
        if key is None:
            return Refused(401, "invalid_api_key", "Pharos does not know the key of this request.")
        return Operator(key.name, "header") if key.admin else not_admin(key.name)
    name, proof = request.session.get(KEY), request.session.get(PROOF)
    key = desk.keys.named(name) if isinstance(name, str) else None
    had = key is not None and compare_digest(str(proof), desk.keys.proof(key.name, _secret()) or "")
    if key is None or not had:
        return Refused(401, "no_key", "The pages ask for an admin key: send `Authorization: Bearer …`.")
    if not key.admin or desk.ended(str(request.session.get(SESSION))):
        return Refused(401, "no_key", "This login is over: the pages ask for an admin key.")
    return Operator(key.name, "session")


def not_admin(name: str) -> Refused:
    return Refused(
        403, "not_admin",
        f"The key {name} may not read the pages: whoever runs Pharos can give it `admin: true`.",
    )  # fmt: skip


def at_this_machine(request: HttpRequest) -> Operator | Refused:
    how = (
        "Pharos has no keys, so its pages are open on the machine it runs on and nowhere else."
        " Make an admin key there with `manage.py keys_new --name ops --admin`."
    )
    if any(name in request.META for name in FORWARDED):
        return Refused(403, "only_here", f"{how} (This request came over a proxy.)")
    if not is_loopback(client_of(request)):
        return Refused(403, "only_here", how)
    if not own_name(request.META.get("HTTP_HOST", "")):
        return Refused(
            403, "foreign_name", f"{how} Ask for it as http://localhost or http://127.0.0.1, with its port."
        )
    return Operator("this machine", "this machine")


def own_name(host: str) -> bool:
    name = re.sub(r":\d{0,5}$", "", host.lower()).strip("[]")
    return name == "localhost" or name.endswith(".localhost") or is_loopback(name)


def proof_of(desk: Desk, name: str) -> str | None:
    return desk.keys.proof(name, _secret())


def _secret() -> bytes:
    return settings.SECRET_KEY.encode()


def _in_browser(request: HttpRequest) -> bool:
    """Somebody looks at it, and can be shown a form."""
    asked = "format" in request.GET or request.method not in ("GET", "HEAD")
    return not asked and request.accepts("text/html") and "text/html" in request.headers.get("Accept", "")
