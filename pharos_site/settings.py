"""Django settings. There is no database: a query anywhere is an error, not a habit."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import environ
from django.core.management.utils import get_random_secret_key

from pharos_site import logs

env = environ.Env()

BASE_DIR = Path(__file__).resolve().parent.parent
DEBUG = False
ALLOWED_HOSTS = ["*"]  # people reach it by any name their network gives the machine
SECRET_KEY = env.str("PHAROS_SECRET_KEY", default="") or get_random_secret_key()

INSTALLED_APPS = [
    "daphne",
    "gateway",
    "django.contrib.contenttypes",  # this and the next: the admin's code names their models, without a table
    "django.contrib.auth",
    "django.contrib.sessions",
    "django.contrib.admin.apps.SimpleAdminConfig",
    "django.contrib.staticfiles",
]
MIDDLEWARE = [
    "gateway.web.door.Headers",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "gateway.web.door.Door",
    "gateway.web.door.Csrf",
]
AUTHENTICATION_BACKENDS: list[str] = []  # Django's own would look for users in a table
# The door puts an operator into request.user, where the admin expects a user of a database; and nothing is
# ever changed that there could be a message about.
SILENCED_SYSTEM_CHECKS = ["admin.E404", "admin.E406", "admin.E408", "admin.E409"]
ROOT_URLCONF = "pharos_site.urls"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": ["django.template.context_processors.request", "gateway.web.door.who"],
            "libraries": {"pharos": "gateway.web.filters"},
        },
    }
]
STATIC_URL = "/static/"
STATICFILES_DIRS = [BASE_DIR / "static"]

# A login is a signed cookie: there is nowhere to keep a session. Its name is our own: cookies know no ports.
SESSION_ENGINE = "django.contrib.sessions.backends.signed_cookies"
SESSION_COOKIE_NAME = "pharos_session"
SESSION_COOKIE_AGE = 12 * 3600
SESSION_COOKIE_SAMESITE = "Lax"
CSRF_COOKIE_NAME = "pharos_csrf"
CSRF_COOKIE_HTTPONLY = True
CSRF_COOKIE_SAMESITE = "Strict"
CSRF_FAILURE_VIEW = "gateway.web.views.csrf_refused"

ASGI_APPLICATION = "pharos_site.asgi.application"
DATABASES: dict[str, dict[str, str]] = {}
USE_TZ = True
HOST_TZ = os.environ.get("TZ", "")  # Django is about to put TIME_ZONE there
TIME_ZONE = "UTC"  # Django puts its own default, Chicago, into the process's TZ otherwise
try:
    LOGGING = logs.config(env.str("PHAROS_LOG_LEVEL", default="INFO"))
except ValueError as e:
    sys.exit(str(e))
