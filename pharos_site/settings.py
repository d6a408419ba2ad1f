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

INSTALLED_APPS = ["daphne", "gateway"]
MIDDLEWARE: list[str] = []
ROOT_URLCONF = "pharos_site.urls"
ASGI_APPLICATION = "pharos_site.asgi.application"
DATABASES: dict[str, dict[str, str]] = {}
USE_TZ = True
HOST_TZ = os.environ.get("TZ", "")  # Django is about to put TIME_ZONE there
TIME_ZONE = "UTC"  # Django puts its own default, Chicago, into the process's TZ otherwise
try:
    LOGGING = logs.config(env.str("PHAROS_LOG_LEVEL", default="INFO"))
except ValueError as e:
    sys.exit(str(e))
