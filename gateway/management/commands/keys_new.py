"""`manage.py keys_new --name alice`: a new key, shown once, and the entry of the config that lets it in."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Mapping
from typing import Any

import yaml
from django.core.management.base import BaseCommand, CommandError

from gateway.accounts.keys import digest_of, new_key
from gateway.config import config_path, load
from gateway.config_keys import wrong_key_name
from gateway.config_source import ConfigError

MOST = 10**12


class Command(BaseCommand):
    help = (
        "Make a key. It is shown once, on the error stream, and kept nowhere; the entry for the config goes "
        "to the output and holds only the key's SHA-256."
    )
    requires_system_checks = ()  # a config that lacks its keys must not stand in the way of making them

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--name", required=True, help="whose key it is; usage is counted under it")
        parser.add_argument("--rpm", type=int, metavar="N", help="requests a minute (default: no limit)")
        parser.add_argument(
            "--tokens-per-day", type=int, metavar="N", help="of prompts and answers (default: no limit)"
        )
        parser.add_argument(
            "--weight", type=int, metavar="N", help="its share where requests wait, 1 to 1000 (default: 1)"
        )
        parser.add_argument(
            "--models", nargs="+", metavar="NAME", help="the only models it may use (default: all)"
        )
        parser.add_argument("--admin", action="store_true", help="it may read the pages")

    def handle(self, *_args: Any, **options: Any) -> None:  # noqa: ANN401 (Django's signature)
        _check(options)
        key = new_key()
        self.stderr.write(
            f"The key of {options['name']}, shown this once:\n\n    {key}\n\n"
            f"Put this under `keys:` in {config_path()}:\n",
            self.style.NOTICE if self.stderr.isatty() else None,
        )
        self.stderr.flush()
        self.stdout.write(entry(options, key))


def entry(options: Mapping[str, Any], key: str) -> str:
    """The item of `keys:`, indented as it stands there."""
    fields: dict[str, Any] = {"name": options["name"], "sha256": digest_of(key)}
    for name in ("rpm", "tokens_per_day", "weight", "models", "admin"):
        if options.get(name) not in (None, False, []):
            fields[name] = options[name]
    text = yaml.safe_dump([fields], sort_keys=False, allow_unicode=True, width=1000, default_flow_style=False)
    return "".join(f"  {line}\n" for line in text.splitlines())


def _check(options: Mapping[str, Any]) -> None:
    """Raises CommandError."""
    if wrong := wrong_key_name(options["name"]):
        raise CommandError(f"--name: {wrong}")
    for name, most in (("rpm", MOST), ("tokens_per_day", MOST), ("weight", 1000)):
        given = options.get(name)
        if given is not None and not 1 <= given <= most:
            raise CommandError(f"--{name.replace('_', '-')} is {given}; it must be 1 to {most}")
    if "" in (options.get("models") or ()):
        raise CommandError("--models: a model needs a name")
    try:
        taken = any(k.name == options["name"] for k in load().keys)
    except ConfigError:  # whoever starts Pharos is told
        taken = False
    if taken:
        raise CommandError(f"--name: {config_path()} has a key {options['name']} already")
