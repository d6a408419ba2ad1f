from django.urls import URLPattern, URLResolver, path
from django.views.generic import RedirectView

from gateway.web import views
from gateway.web.site import window

urlpatterns: list[URLPattern | URLResolver] = [
    path("status", views.status, name="status"),
    path("usage", views.usage, name="usage"),
    path("status/", RedirectView.as_view(url="/status", query_string=True)),
    path("usage/", RedirectView.as_view(url="/usage", query_string=True)),
    path("admin", RedirectView.as_view(url="/admin/")),
    path("admin/", window.urls),
    path("static/<path:path>", views.static, name="static"),
]

handler400 = "gateway.web.views.bad_request"
handler403 = "gateway.web.views.forbidden"
handler404 = "gateway.web.views.not_found"
handler500 = "gateway.web.views.failed"
