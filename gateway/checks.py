"""What `manage.py check` finds: a config that Pharos would not start with."""

from __future__ import annotations

from typing import Any

from django.core.checks import CheckMessage, Error

from gateway.config import load
from gateway.config_source import ConfigError

HINT = "pharos.example.yaml shows every setting; PHAROS_CONFIG names another file than pharos.yaml."


def config_loads(**_kwargs: Any) -> list[CheckMessage]:  # noqa: ANN401 (Django's signature)
    try:
        for backend in load().backends:
            backend.key()
    except ConfigError as e:
        return [Error(str(e), hint=HINT, id="pharos.E001")]
    return []
