"""The config file: YAML into typed values, strictly.

An unknown field, a value of the wrong type or a repeated key is a `ConfigError` that names the file,
the line and the field: a typo never drops a setting silently. `${NAME}` in a value is that variable of
the environment. Durations are written `5s`, `10m`, `1h`; sizes `512KiB`, `32MiB`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated
from urllib.parse import unquote, urlsplit

import msgspec
import yaml

from engines.probes import Path as ProbePath
from engines.probes import Probe, ProbeDefinitionError, log_line, prom
from engines.recipes import RECIPES
from engines.recipes.base import Kind
from engines.signals import Signal
from gateway.config_keys import check_keys, wrong_zone
from gateway.config_source import ConfigError, Source, Step

DEFAULT_FILE = "pharos.yaml"
MAX_FILE_BYTES = 1024 * 1024  # YAML takes a second for each MiB


class Seconds(float):
    """A duration of the config in seconds, written `5s`."""


class Bytes(int):
    """A size of the config in bytes, written `32MiB`."""


class Secret(str):
    """A string that shows itself to nobody by accident."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"


class Digest(Secret):
    """The SHA-256 of a key as 64 lower-case hexadecimal digits."""

    __slots__ = ()


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    pass


class PromSpec(_Strict, frozen=True):
    path: str
    metric: str
    per_model: str | None = None
    only: dict[str, str] = {}
    scale: float = 1.0


class LogSpec(_Strict, frozen=True):
    match: str
    value: str | None = None


class OwnProbe(_Strict, frozen=True):
    """A probe of the operator's: it goes ahead of the recipe for its signal."""

    name: Annotated[str, msgspec.Meta(min_length=1)]
    signal: Signal
    prom: PromSpec | None = None
    log: LogSpec | None = None

    def build(self) -> Probe:
        """Raises ProbeDefinitionError."""
        if (self.prom is None) == (self.log is None):
            raise ProbeDefinitionError(f"{self.name}: give either prom or log, not both or neither")
        if self.prom is not None:
            if not self.prom.path.startswith("/"):
                raise ProbeDefinitionError(f"{self.name}: path {self.prom.path!r} must start with /")
            path = ProbePath(self.prom.path, "the operator chose it", wakes=True)
            spec = self.prom
            return prom(
                self.name, path, self.signal, spec.metric,
                per_model=spec.per_model, only=spec.only, scale=spec.scale, own=True,
            )  # fmt: skip
        assert self.log is not None
        return log_line(self.name, self.signal, self.log.match, self.log.value, own=True)


class BackendConfig(_Strict, frozen=True):
    """One engine: where it is, and what it does not tell by itself."""

    url: str
    kind: str = "auto"  # or an engine kind
    capacity: Annotated[int, msgspec.Meta(ge=1)] | None = (
        None  # requests at a time, where the engine does not say
    )
    memory_gb: Annotated[float, msgspec.Meta(gt=0)] | None = (
        None  # GiB that its models may take together; without it only models seen side by side share it
    )
    aliases: dict[str, str] = {}  # the engine's model name: the name clients use
    api_key: Secret | None = None  # sent to the engine
    api_key_file: str | None = None
    logs: str | None = None  # file:///path/to/engine.log
    own_probes: list[OwnProbe] = msgspec.field(default_factory=list, name="probes")

    @property
    def probes(self) -> tuple[Probe, ...]:
        return tuple(p.build() for p in self.own_probes)

    @property
    def log_path(self) -> str | None:
        return unquote(urlsplit(self.logs).path) if self.logs else None

    @property
    def engine_kind(self) -> Kind | None:
        return None if self.kind == "auto" else self.kind

    def key(self) -> Secret | None:
        """The key the engine asks for. Raises ConfigError when it cannot be read or cannot be one."""
        text: str | None = self.api_key
        if self.api_key_file is not None:
            try:
                text = Path(self.api_key_file).read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as e:
                raise ConfigError(f"api_key_file: {self.api_key_file} cannot be read ({e})") from None
        if text is None:
            return None
        if not re.fullmatch(r"[\x21-\x7e]+", text.strip()):
            raise ConfigError("api_key: it is empty or has characters that no HTTP header can carry")
        return Secret(text.strip())


class FoundBackend(BackendConfig, frozen=True):
    """An address where an engine may be listening: looked for, not configured, so its absence is no fault."""


class Limits(_Strict, frozen=True):
    body: Bytes = Bytes(32 * 1024 * 1024)  # images come as base64 in JSON
    queue: Annotated[int, msgspec.Meta(ge=0)] = 1000  # requests that wait for a place
    first_byte: Seconds = Seconds(600)  # a cold model of tens of GB, then a long prompt
    idle: Seconds = Seconds(300)  # between two pieces of a reply
    write_stall: Seconds = Seconds(60)  # a client that does not read
    wait_comment: Seconds = Seconds(10)  # clients in Node give up after 300 s without a byte


class Drain(_Strict, frozen=True):
    grace: Seconds = Seconds(5)  # new requests are still taken, so that a balancer can notice
    timeout: Seconds = Seconds(600)  # longer than the longest generation


Count = Annotated[int, msgspec.Meta(ge=1, le=10**12)]


class KeyConfig(_Strict, frozen=True):
    """A key that clients may use. The key itself is nowhere in the file, and cannot be had from it."""

    name: str  # usage is counted under it
    sha256: Digest
    rpm: Count | None = None  # requests a minute; None: as many as come
    tokens_per_day: Count | None = None  # prompt and answer; the day is that of usage.timezone
    weight: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 1  # its share where requests wait
    models: list[str] = []  # the only ones that exist for it; empty: all
    admin: bool = False  # may read the pages


class UsageConfig(_Strict, frozen=True):
    timezone: str | None = None  # as Europe/Paris; None: this host's
    retention_days: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 400


class Config(_Strict, frozen=True):
    listen: str = "127.0.0.1:8090"
    policy: str = "cost"  # the soonest first token; or least_load, which looks at free places alone
    show_backend: bool = True  # x-pharos-backend and x-pharos-reason on replies
    backends: list[BackendConfig] = []
    keys: list[KeyConfig] = []  # none: everybody may do everything
    usage: UsageConfig = UsageConfig()
    limits: Limits = Limits()
    drain: Drain = Drain()

    @property
    def address(self) -> tuple[str, int]:
        return split_address(self.listen)


def split_address(listen: str) -> tuple[str, int]:
    """`:8090`, `127.0.0.1:8090` and `[::1]:8090`. Raises ConfigError."""
    host, colon, port = listen.rpartition(":")
    good = re.fullmatch(r"[0-9]{1,5}", port) and not re.search(r"[\s/*@]", host)
    if not colon or not good or int(port) > 65535:
        raise ConfigError(f"listen: {listen!r} is not host:port (for all addresses write 0.0.0.0:8090)")
    return host.strip("[]") or "0.0.0.0", int(port)


# -- loading -----------------------------------------------------------------------------------


def config_path(environ: Mapping[str, str] = os.environ) -> Path:
    return Path(environ.get("PHAROS_CONFIG") or DEFAULT_FILE)


def load(path: Path | None = None, environ: Mapping[str, str] = os.environ) -> Config:
    """The config of `path`, else of `PHAROS_CONFIG`, else of ./pharos.yaml; without that file, `local()`.

    Raises ConfigError.
    """
    named = path is not None or bool(environ.get("PHAROS_CONFIG"))
    path = path or config_path(environ)
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
        text = content.decode("utf-8")
    except FileNotFoundError:
        if named:
            raise ConfigError(f"{path}: no such file (PHAROS_CONFIG names it)") from None
        return override(local(), environ)
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"{path}: cannot be read ({e})") from None
    if len(content) > MAX_FILE_BYTES:
        raise ConfigError(f"{path}: is over {MAX_FILE_BYTES} bytes: is that the config?")
    return override(parse(text, str(path), environ), environ)


def override(config: Config, environ: Mapping[str, str]) -> Config:
    if listen := environ.get("PHAROS_LISTEN"):
        split_address(listen)
        return msgspec.structs.replace(config, listen=listen)
    return config


def local() -> Config:
    """Engines that may be running on this host, each on the port it uses unless told otherwise."""
    return Config(backends=local_backends())


def local_backends() -> list[BackendConfig]:
    ports = sorted({port for recipe in RECIPES.values() for port in recipe.ports})
    return [FoundBackend(url=f"http://127.0.0.1:{port}") for port in ports]


def parse(text: str, name: str, environ: Mapping[str, str]) -> Config:
    """Raises ConfigError, with the line."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as e:
        mark = getattr(e, "problem_mark", None)
        where = f"{name} line {mark.line + 1}" if mark else name
        raise ConfigError(f"{where}: not YAML: {getattr(e, 'problem', None) or e}") from None
    except RecursionError:
        raise ConfigError(f"{name}: nested too deeply") from None
    if root is None:
        return local()
    source = Source(name, root, _fields_at)
    source.refuse_repeats()
    try:
        data = yaml.safe_load(text)
        config = msgspec.convert(source.with_env(data, environ), Config, dec_hook=_convert)
    except yaml.YAMLError as e:
        raise ConfigError(f"{name}: {e}") from None
    except RecursionError:
        raise ConfigError(f"{name}: nested too deeply, or an anchor holds itself") from None
    except msgspec.ValidationError as e:
        raise source.explain(str(e)) from None
    _check(config, source)
    return config


UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
SIZES = {"B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3, "KB": 1000, "MB": 1000**2, "GB": 1000**3}


def _convert(kind: type, value: object) -> object:
    if kind is Secret:
        if not isinstance(value, str):
            raise ValueError("a key is text: put it into quotes")
        return Secret(value)
    if kind is Digest:
        # The value is not shown: it may be the key itself, put there by mistake.
        if not isinstance(value, str) or not re.fullmatch(r"[0-9a-fA-F]{64}", value):
            raise ValueError("must be the SHA-256 of the key, 64 digits: `manage.py keys_new` makes both")
        return Digest(value.lower())
    if kind is Seconds:
        return Seconds(_quantity(value, UNITS, "a duration such as 5s, 10m or 1h"))
    if kind is Bytes:
        return Bytes(_quantity(value, SIZES, "a size such as 512KiB or 32MiB"))
    raise ValueError(f"cannot be {kind.__name__}")


def _quantity(value: object, units: Mapping[str, float], wanted: str) -> float:
    # 15 digits: more would be an error of typing, and then one of arithmetic.
    number = r"([0-9]{1,15}(?:\.[0-9]+)?)\s*([A-Za-z]+)"
    match = re.fullmatch(number, value) if isinstance(value, str) else None
    if match is None or match[2] not in units or float(match[1]) == 0:
        raise ValueError(f"{value!r} is not {wanted}")
    return float(match[1]) * units[match[2]]


def _check(config: Config, source: Source) -> None:
    """What types cannot say."""
    try:
        split_address(config.listen)
    except ConfigError as e:
        raise source.error(str(e), ["listen"]) from None
    if config.policy not in POLICIES:
        raise source.error(f"policy: {config.policy!r} is not one of {', '.join(POLICIES)}", ["policy"])
    seen: dict[str, int] = {}
    for i, backend in enumerate(config.backends):
        at = f"backends[{i}]"
        try:
            _check_backend(backend)
        except (ConfigError, ProbeDefinitionError) as e:
            raise source.error(f"{at}: {e}", ["backends", i]) from None
        if (first := seen.setdefault(backend.url.rstrip("/"), i)) != i:
            raise source.error(f"{at}: {backend.url} is backends[{first}] already", ["backends", i])
    check_keys(config.keys, source)
    zone = config.usage.timezone
    if zone is not None and (wrong := wrong_zone(zone)):
        raise source.error(f"usage.timezone: {wrong}", ["usage", "timezone"])


POLICIES = ("cost", "least_load")


def _check_backend(backend: BackendConfig) -> None:
    try:
        url = urlsplit(backend.url)
        good = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        good = False
    # urlsplit passes over line breaks, and takes a space for a part of the name.
    if not good or re.search(r"[\s\x00-\x20\x7f]", backend.url):
        raise ConfigError(f"url: {backend.url!r} is not http://host:port")
    if url.path not in ("", "/") or url.query or url.fragment:
        raise ConfigError(
            f"url: give the address alone, {url.scheme}://{url.netloc}, without {url.path or '?'}"
        )
    if url.username or url.password:
        raise ConfigError("url: a key does not belong into the address: use api_key")
    if backend.kind != "auto" and backend.kind not in RECIPES:
        raise ConfigError(f"kind: {backend.kind!r} is not one of auto, {', '.join(sorted(RECIPES))}")
    if backend.api_key is not None and backend.api_key_file is not None:
        raise ConfigError("give api_key or api_key_file, not both")
    backend.key()
    if backend.logs is not None and not backend.logs.startswith("file:///"):
        raise ConfigError(f"logs: {backend.logs!r} is not file:///path/to/engine.log")
    library = {p.name for recipe in RECIPES.values() for p in recipe.probes}
    names: set[str] = set()
    for probe in backend.probes:
        if probe.name in library or probe.name in names:
            raise ConfigError(f"probes: the name {probe.name!r} is taken")
        names.add(probe.name)
    clients = list(backend.aliases.values())
    if len(set(clients)) != len(clients):
        raise ConfigError("aliases: two models have one name")


_TABLES: dict[str, type[msgspec.Struct]] = {
    "": Config, "backends": BackendConfig, "limits": Limits, "drain": Drain,
    "keys": KeyConfig, "usage": UsageConfig,
    "probes": OwnProbe, "prom": PromSpec, "log": LogSpec,
}  # fmt: skip


def _fields_at(steps: Sequence[Step]) -> Sequence[str]:
    """The settings that exist at a place of the file, for the hint in an error."""
    table = next((s for s in reversed(steps) if isinstance(s, str)), "")
    return _TABLES[table].__struct_encode_fields__ if table in _TABLES else ()
