"""The config file: what it accepts, and what it says when it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from engines.signals import Signal
from gateway.config import FoundBackend, load, parse, split_address
from gateway.config_source import ConfigError

ENV = {"ENGINE_KEY": "sk-secret"}
A, B = "a" * 64, "b" * 64


def refused(text: str) -> str:
    with pytest.raises(ConfigError) as e:
        parse(text, "pharos.yaml", ENV)
    return str(e.value)


def test_every_setting_is_read() -> None:
    config = parse(
        """
listen: 0.0.0.0:9000
backends:
  - url: http://gpu-box:8080
    kind: llamacpp
    capacity: 4
    aliases: {qwen2.5:3b-q4: qwen}
    api_key: ${ENGINE_KEY}
    logs: file:///var/log/engine.log
    probes:
      - {name: mine, signal: running, prom: {path: /metrics, metric: x_running, per_model: model}}
      - {name: loaded, signal: residency, log: {match: 'model (?P<model>\\S+) loaded', value: loaded}}
limits: {body: 1MiB, first_byte: 90s, idle: 1.5m, write_stall: 500ms}
drain: {grace: 1s, timeout: 1h}
keys:
  - name: alice
    sha256: AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA
    rpm: 60
    tokens_per_day: 2000000
    weight: 3
    models: [qwen]
    admin: true
usage: {timezone: Asia/Bangkok, retention_days: 30}
""",
        "pharos.yaml",
        ENV,
    )
    key = config.keys[0]
    assert (key.name, key.sha256, key.rpm, key.tokens_per_day) == ("alice", A, 60, 2_000_000)
    assert (key.weight, key.models, key.admin) == (3, ["qwen"], True)
    assert (config.usage.timezone, config.usage.retention_days) == ("Asia/Bangkok", 30)
    backend = config.backends[0]
    assert config.address == ("0.0.0.0", 9000)
    assert (backend.engine_kind, backend.capacity, backend.aliases) == (
        "llamacpp",
        4,
        {"qwen2.5:3b-q4": "qwen"},
    )
    assert backend.key() == "sk-secret"
    assert [(p.name, p.signal, p.own) for p in backend.probes] == [
        ("mine", Signal.RUNNING, True),
        ("loaded", Signal.RESIDENCY, True),
    ]
    assert [config.limits.body, config.limits.first_byte, config.limits.idle] == [1048576, 90, 90]
    assert [config.limits.write_stall, config.drain.grace, config.drain.timeout] == [0.5, 1, 3600]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("backends:\n  - url: http://a:1\n    capcity: 4\n",
         "pharos.yaml line 3: backends[0].capcity: unknown field, did you mean capacity?"),
        ("listn: :80\n", "pharos.yaml line 1: listn: unknown field, did you mean listen?"),
        ("listen: :80\nlimits:\n  body: lots\n", "pharos.yaml line 3: limits.body: 'lots' is not a size such as"),
        ("limits: {idle: 5}\n", "pharos.yaml line 1: limits.idle: 5 is not a duration such as 5s"),
        ("limits: {idle: 0s}\n", "is not a duration"),
        ("backends:\n  - url: http://a:1\n  - url: http://a:1/\n", "line 3: backends[1]: http://a:1/ is backends[0]"),
        ("backends:\n  - {url: gpu-box:80}\n", "line 2: backends[0]: url: 'gpu-box:80' is not http://host:port"),
        ("backends: [{url: 'http://a b:1'}]\n", "is not http://host:port"),
        ("backends: [{url: 'http://a:99999'}]\n", "is not http://host:port"),
        ("backends: [{url: 'http://a:1/v1'}]\n", "give the address alone, http://a:1, without /v1"),
        ("backends: [{url: 'http://u:p@a:1'}]\n", "use api_key"),
        ("backends: [{url: 'http://a:1', kind: olama}]\n", "kind: 'olama' is not one of auto,"),
        ("backends: [{url: 'http://a:1', capacity: 0}]\n", "line 1: backends[0].capacity: expected `int` >= 1"),
        ("backends: [{url: 'http://a:1', capacity: '4'}]\n", "backends[0].capacity: expected `int | null`, got `str`"),
        ("backends: [{url: 'http://a:1', api_key: '${NOPE}'}]\n", "backends[0].api_key: the environment has no NOPE"),
        ("backends: [{url: 'http://a:1', api_key: a, api_key_file: b}]\n", "not both"),
        ("backends: [{url: 'http://a:1', aliases: {a: x, b: x}}]\n", "two models have one name"),
        ("backends: [{url: 'http://a:1', logs: engine.log}]\n", "is not file:///path/to/engine.log"),
        ("backends: [{url: 'http://a:1', probes: [{name: p, signal: running}]}]\n", "either prom or log"),
        ("backends: [{url: 'http://a:1', probes: [{name: p, signal: models, prom: {path: /m, metric: x}}]}]\n",
         "p: a metric can be one of"),
        ("backends: [{url: 'http://a:1', probes: [{name: p, signal: speed, prom: {path: /m, metric: x}}]}]\n",
         "backends[0].probes[0].signal: invalid enum value 'speed'"),
        ("backends: [{url: 'http://a:1', probes: [{name: p, signal: running, log: {match: '('}}]}]\n",
         "does not compile"),
        ("backends: [{url: 'http://a:1', probes: [{name: openai-models, signal: running, log: "
         "{match: '(?P<value>1)'}}]}]\n", "the name 'openai-models' is taken"),
        ("listen: :80\nlisten: :81\n", "pharos.yaml line 2: listen is given twice"),
        ("listen: [\n", "pharos.yaml line 2: not YAML:"),
        ("- a\n", "expected `object`"),
        ("listen: nowhere\n", "pharos.yaml line 1: listen: 'nowhere' is not host:port"),
        ("policy: fastest\n", "policy: 'fastest' is not one of"),
        ("kyes: []\n", "pharos.yaml line 1: kyes: unknown field, did you mean keys?"),
        (f"keys:\n  - name: a\n    sha256: {A}\n    token_per_day: 5\n",
         "pharos.yaml line 4: keys[0].token_per_day: unknown field, did you mean tokens_per_day?"),
        ("keys:\n  - name: a\n    key: sk-1\n", "line 3: keys[0].key: unknown field (known: name, sha256,"),
        ("keys:\n  - name: a\n    sha256: sk-1\n", "line 3: keys[0].sha256: must be the SHA-256 of the key"),
        ("keys: [{name: a}]\n", "line 1: keys[0]: object missing required field `sha256`"),
        (f"keys:\n  - {{name: a, sha256: {A}}}\n  - {{name: a, sha256: {B}}}\n",
         "line 3: keys[1].name: a is keys[0] already"),
        (f"keys:\n  - {{name: a, sha256: {A}}}\n  - name: b\n    sha256: {A.upper()}\n",
         "line 4: keys[1].sha256: b has the key of a (keys[0])"),
        (f"keys: [{{name: '=1+1', sha256: {A}}}]\n", "keys[0].name: '=1+1' must be 1 to 64 letters"),
        (f"keys: [{{name: '', sha256: {A}}}]\n", "keys[0].name: '' must be 1 to 64 letters"),
        (f"keys: [{{name: anonymous, sha256: {A}}}]\n", "choose another name"),
        (f"keys: [{{name: a, sha256: {A}, rpm: 0}}]\n", "keys[0].rpm: expected `int` >= 1"),
        (f"keys: [{{name: a, sha256: {A}, weight: 0}}]\n", "keys[0].weight: expected `int` >= 1"),
        ("usage:\n  timezone: Europe/Pari\n",
         "line 2: usage.timezone: 'Europe/Pari' is no time zone, did you mean Europe/Paris?"),
        ("usage: {timezone: ../etc/passwd}\n", "is no time zone"),
        ("usage: {retention: 4}\n", "usage.retention: unknown field, did you mean retention_days?"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_its_line(text: str, said: str) -> None:
    assert said in refused(text)


def test_a_key_is_never_shown() -> None:
    config = parse("backends: [{url: 'http://a:1', api_key: sk-hidden}]", "pharos.yaml", {})
    assert "sk-hidden" not in repr(config)


def test_neither_a_keys_hash_nor_a_key_put_in_its_place_is_shown() -> None:
    config = parse(f"keys: [{{name: a, sha256: {A}}}]", "pharos.yaml", {})
    assert A not in repr(config)
    assert "sk-mistake" not in refused("keys: [{name: a, sha256: sk-mistake}]")


def test_a_key_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"line 1: backends\[0\]: api_key_file: .*none cannot be read"):
        parse(f"backends: [{{url: 'http://a:1', api_key_file: '{tmp_path}/none'}}]", "pharos.yaml", {})


@pytest.mark.parametrize("key", ["", "  ", "a\nb", "ключ"])
def test_a_key_that_no_header_can_carry_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(ConfigError, match="no HTTP header can carry") as e:
        parse("backends: [{url: 'http://a:1', api_key: '${K}'}]", "pharos.yaml", {"K": key})
    assert not key.strip() or key not in str(e.value)


def test_a_key_out_of_the_environment_is_taken_without_its_newline() -> None:
    config = parse("backends: [{url: 'http://a:1', api_key: '${K}'}]", "pharos.yaml", {"K": "sk-1\n"})
    assert config.backends[0].key() == "sk-1"


def test_a_key_file_is_read_without_its_newline(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("sk-file\n")
    config = parse(f"backends: [{{url: 'http://a:1', api_key_file: '{tmp_path}/key'}}]", "pharos.yaml", {})
    assert config.backends[0].key() == "sk-file"


def test_without_a_file_engines_are_looked_for_on_this_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    backends = load(environ={}).backends
    assert all(isinstance(b, FoundBackend) for b in backends)
    assert "http://127.0.0.1:8080" in [b.url for b in backends]


def test_a_file_that_is_named_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load(environ={"PHAROS_CONFIG": str(tmp_path / "none.yaml")})


def test_the_environment_overrides_the_address(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("listen: :1\nbackends: []\n")
    config = load(environ={"PHAROS_CONFIG": str(tmp_path / "c.yaml"), "PHAROS_LISTEN": "127.0.0.1:2"})
    assert config.address == ("127.0.0.1", 2)


def test_a_file_with_an_empty_list_of_backends_looks_for_none() -> None:
    assert parse("backends: []\n", "pharos.yaml", {}).backends == []


@pytest.mark.parametrize(
    ("listen", "address"),
    [(":80", ("0.0.0.0", 80)), ("127.0.0.1:1", ("127.0.0.1", 1)), ("[::1]:8090", ("::1", 8090))],
)
def test_an_address_is_read(listen: str, address: tuple[str, int]) -> None:
    assert split_address(listen) == address


def test_an_anchor_shares_a_probe() -> None:
    text = """
backends:
  - {url: 'http://a:1', probes: &mine [{name: p, signal: running, prom: {path: /m, metric: x}}]}
  - {url: 'http://b:1', probes: *mine}
"""
    assert [b.probes[0].name for b in parse(text, "pharos.yaml", {}).backends] == ["p", "p"]


@pytest.mark.parametrize(
    "url", ["http://[::1", "http://a\u2100b:1", '"http://a\\nb:1"', "http://mac mini:11434"]
)
def test_an_address_that_is_none_is_refused_with_its_line(url: str) -> None:
    said = refused(f"backends:\n  - url: {url}\n")
    assert said.startswith("pharos.yaml line 2: backends[0]: url: ")


@pytest.mark.parametrize(
    "text",
    [
        f"limits: {{body: {'9' * 400}GiB}}",
        f"limits: {{idle: {'9' * 400}d}}",
        f"listen: 127.0.0.1:{'9' * 5000}",
        "listen: http://127.0.0.1:8090",
        'listen: "*:8090"',
    ],
)
def test_a_value_out_of_this_world_is_refused_with_its_line(text: str) -> None:
    assert refused(text).startswith("pharos.yaml line 1: ")


def test_anchors_that_multiply_cost_nothing() -> None:
    lines = ["x0: &x0 [a, a]"] + [f"x{n}: &x{n} [*x{n - 1}, *x{n - 1}]" for n in range(1, 64)]
    assert "unknown field" in refused("\n".join(lines))


def test_an_anchor_that_holds_itself_is_said_to() -> None:
    assert "an anchor holds itself" in refused("backends: &b [*b]")


def test_a_key_of_digits_alone_wants_quotes() -> None:
    said = refused("backends:\n  - url: http://a:1\n    api_key: 4711\n")
    assert "put it into quotes" in said
    assert "4711" not in said


def test_a_file_that_is_no_config_is_not_read_to_its_end() -> None:
    with pytest.raises(ConfigError, match="is that the config"):
        load(Path("/dev/zero"), {})
