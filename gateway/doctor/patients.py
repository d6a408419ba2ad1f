"""Whom the doctor visits: the backends of the config, or one address given by hand."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from engines.recipes.base import Kind
from gateway.config import BackendConfig, Config, FoundBackend, Secret


class UsageError(Exception):
    """The command was used wrongly. The message says how to use it."""


@dataclass(frozen=True, slots=True)
class Patient:
    """One address, with what the operator says of it."""

    url: str  # http://host:port
    kind: Kind | None  # None: to be detected
    config: BackendConfig
    key: Secret | None = None
    notes: tuple[str, ...] = ()  # about the address as it was given

    @property
    def searched(self) -> bool:
        """Looked for on this host, not configured."""
        return isinstance(self.config, FoundBackend)

    @property
    def log_path(self) -> str | None:
        return self.config.log_path


def configured(config: Config) -> list[Patient]:
    """Raises ConfigError when a key's file cannot be read, UsageError when there is nobody to visit."""
    if not config.backends:
        raise UsageError("the config lists no backends: add one there, or name an address with --url")
    return [Patient(b.url.rstrip("/"), b.engine_kind, b, _sendable(b.key(), b.url)) for b in config.backends]


def by_hand(url: str, kind: Kind | None, key: Secret | None, config: Config | None) -> Patient:
    """The address of --url. What the config says of the same address counts, and the options before it.

    Raises UsageError, and ConfigError when the key's file of that backend cannot be read.
    """
    address, notes = cleaned(url)
    for backend in config.backends if config else []:
        if backend.url.rstrip("/") == address and not isinstance(backend, FoundBackend):
            own_key = _sendable(backend.key(), backend.url) if key is None else key
            return Patient(address, kind or backend.engine_kind, backend, own_key, notes)
    return Patient(address, kind, BackendConfig(url=address), key, notes)


def key_from(name: str | None, environ: Mapping[str, str]) -> Secret | None:
    """Raises UsageError when the variable is not there: a key that is meant and missing helps nobody."""
    if name is None:
        return None
    if not environ.get(name):
        raise UsageError(f"--key-env {name}: that variable of the environment is not set")
    return _sendable(Secret(environ[name]), f"--key-env {name}")


def _sendable(key: Secret | None, where: str) -> Secret | None:
    """The key without the line end that variables pick up. Raises UsageError, which does not show it."""
    if key is None:
        return None
    bare = key.strip()
    if not bare or not bare.isascii() or not bare.isprintable():
        raise UsageError(f"{where}: the API key is empty or holds a character that a header cannot carry")
    return Secret(bare)


def cleaned(text: str) -> tuple[str, tuple[str, ...]]:
    """`http://host:port` of what was typed, and what was changed. Raises UsageError."""
    notes = []
    text = text.strip()
    if "://" not in text:
        notes.append(f"--url {text}: taken as http://{text}")
        text = f"http://{text}"
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
    except ValueError as e:
        raise UsageError(f"--url {text!r} is not http://host:port ({e})") from None
    if parts.scheme.lower() not in ("http", "https") or not _is_host(host) or port == 0:
        raise UsageError(f"--url {text!r} is not http://host:port")
    if "@" in parts.netloc:
        raise UsageError(
            "--url: a key does not belong into the address: put it into an environment variable, "
            "and name that with --key-env"
        )
    address = f"{parts.scheme.lower()}://{parts.netloc}"
    if rest := text[text.index(parts.netloc) + len(parts.netloc) :].rstrip("/"):
        notes.append(f"--url: {rest} is left off, as the address alone is wanted: {address}")
    return address, tuple(notes)


def _is_host(host: str) -> bool:
    if ":" in host:  # urlsplit has looked at what stood in brackets
        return True
    return bool(re.fullmatch(r"[\w-]{1,63}(\.[\w-]{1,63})*\.?", host))
