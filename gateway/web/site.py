"""/admin/: Django's admin as a window on the config file and on what lives now. It changes nothing."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from typing import Any

from django import forms
from django.contrib.admin import AdminSite
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import URLPattern, URLResolver, path, reverse
from django.utils.decorators import method_decorator
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_POST, require_safe

from gateway.web import snapshot
from gateway.web.door import (
    KEY,
    LOGIN,
    PROOF,
    SESSION,
    client_of,
    desk_of,
    not_admin,
    operator_of,
    proof_of,
)  # fmt: skip
from gateway.web.replies import Refused, refused
from gateway.web.sections import SECTIONS, Section

LONGEST_KEY = 4096


class LoginForm(forms.Form):
    key = forms.CharField(
        label="Admin key",
        max_length=LONGEST_KEY,
        strip=True,
        widget=forms.PasswordInput(
            attrs={"autocomplete": "current-password", "autofocus": True, "spellcheck": "false"}
        ),
    )


class Window(AdminSite):
    site_title = site_header = "Pharos"
    index_title = "What lives now, and the config as it is in use"
    site_url = "/status"

    def has_permission(self, request: HttpRequest) -> bool:
        return operator_of(request).is_authenticated

    def get_urls(self) -> list[URLPattern | URLResolver]:
        pages: list[URLPattern | URLResolver] = [
            path(f"{s.name}/", self.admin_view(_page(self, s)), name=s.name) for s in SECTIONS
        ]
        return [
            path("", self.admin_view(require_safe(self.index)), name="index"),
            path("login/", self.login, name="login"),
            path("logout/", require_POST(self.logout), name="logout"),
            *pages,
        ]

    def get_app_list(self, request: HttpRequest, app_label: str | None = None) -> list[Any]:
        models = [
            {
                "name": s.title, "object_name": s.name, "admin_url": reverse(f"admin:{s.name}"),
                "add_url": None, "view_only": True, "perms": {"view": True}, "model": None, "about": s.about,
            }
            for s in SECTIONS
        ]  # fmt: skip
        url = reverse("admin:index")
        return [
            {
                "name": "Pharos",
                "app_label": "pharos",
                "app_url": url,
                "has_module_perms": True,
                "models": models,
            }
        ]

    def get_log_entries(self, request: HttpRequest) -> Any:  # noqa: ANN401  (a query, in Django)
        return []

    @method_decorator(sensitive_post_parameters("key"))
    @method_decorator(never_cache)
    def login(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """With the right key a new session begins, and the browser is sent where it wanted to go."""
        if self.has_permission(request) and request.method == "GET":
            return HttpResponseRedirect(reverse("admin:index"))
        form, status = LoginForm(request.POST if request.method == "POST" else None), 200
        if request.method == "POST":
            if (wait_s := desk_of(request).wait_before_try(client_of(request))) > 0:
                seconds = math.ceil(wait_s)
                why = f"Too many keys were tried: wait {seconds} s, and try again."
                return refused(request, Refused(429, "too_many_tries", why, seconds))
            if form.is_valid():
                wrong = _begin(request, form.cleaned_data["key"])
                if wrong is None:
                    return HttpResponseRedirect(_next(request))
                form.add_error("key", wrong)
            status = 403
        context = {**self.each_context(request), "title": "Log in", "form": form, "next": _next(request)}
        return render(request, "admin/login.html", {**context, **(extra_context or {})}, status=status)

    def logout(  # type: ignore[override]  # no page says goodbye: it leads to the form
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        if (id_ := request.session.get(SESSION)) is not None:
            desk_of(request).end(str(id_))
        request.session.flush()
        return HttpResponseRedirect(LOGIN)


def _begin(request: HttpRequest, given: str) -> str | None:
    """Why no session begins with this key; None: one has begun."""
    desk = desk_of(request)
    key = desk.keys.find(given.encode("utf-8", "replace"))
    if key is None:
        return "Pharos does not know this key."
    if not key.admin:
        return not_admin(key.name).message
    desk.forgive(client_of(request))
    request.session.flush()
    request.session[KEY], request.session[PROOF] = key.name, proof_of(desk, key.name)
    request.session[SESSION] = secrets.token_hex(16)
    return None


def _next(request: HttpRequest) -> str:
    """A page of ours; never what could lead elsewhere."""
    asked = (request.POST if request.method == "POST" else request.GET).get("next", "")
    known = asked.partition("?")[0]
    fine = known in ("/status", "/usage") or (known.startswith("/admin/") and not known.startswith(LOGIN))
    plain = asked.isascii() and asked.isprintable() and "\\" not in asked and "//" not in known
    return asked if fine and plain else "/status"


def _page(site: Window, section: Section) -> Callable[[HttpRequest], HttpResponse]:
    @require_safe
    def page(request: HttpRequest) -> HttpResponse:
        ask = desk_of(request).ask
        shot = ask(snapshot.take)
        context = {
            **site.each_context(request), "title": section.title, "section": section, "shot": shot,
            "file": shot.config_file, **section.show(shot, ask),
        }  # fmt: skip
        return render(request, "admin/section.html", context)

    return page


window = Window()
