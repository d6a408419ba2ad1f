"""Finding the key that was presented, and making one."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from gateway.accounts.keys import Keys, digest_of, new_key
from gateway.config import Digest, KeyConfig, parse
from gateway.config_source import ConfigError


def entry(name: str, key: str, **more: Any) -> KeyConfig:
    return KeyConfig(name=name, sha256=Digest(digest_of(key)), **more)


KEYS = Keys([entry("alice", "sk-a", rpm=5, models=["m"]), entry("bob", "sk-b", admin=True)])


def test_a_key_is_found_by_what_its_holder_sends() -> None:
    found = KEYS.find(b"sk-a")
    assert found is not None
    assert (found.name, found.rpm, found.tokens_per_day, found.admin) == ("alice", 5, None, False)


@pytest.mark.parametrize("sent", [b"", b"sk-c", b"sk-a ", b"SK-A", digest_of("sk-a").encode(), b"\xff" * 9])
def test_nothing_else_is_a_key(sent: bytes) -> None:
    assert KEYS.find(sent) is None


def test_a_made_up_credential_beside_the_real_one_does_no_harm() -> None:
    found = KEYS.present([b"dummy", b"sk-b"])
    assert found is not None
    assert found.name == "bob"
    assert KEYS.present([]) is None


def test_without_an_allow_list_every_model_exists() -> None:
    alice, bob = KEYS.named("alice"), KEYS.named("bob")
    assert alice is not None
    assert bob is not None
    assert (alice.may_use("m"), alice.may_use("n"), alice.may_use("n", "m")) == (True, False, True)
    assert bob.may_use("n")


def test_neither_keys_nor_hashes_are_shown() -> None:
    shown = f"{KEYS!r} {list(KEYS)!r} {entry('x', 'sk-a')!r}"
    assert "sk-a" not in shown
    assert digest_of("sk-a")[:8] not in shown
    assert "alice" in shown


def test_new_keys_differ() -> None:
    assert len({new_key() for _ in range(100)}) == 100


# -- manage.py keys_new ------------------------------------------------------------------------


def make(*arguments: str) -> tuple[str, str]:
    out, err = io.StringIO(), io.StringIO()
    call_command("keys_new", *arguments, stdout=out, stderr=err)
    return out.getvalue(), err.getvalue()


def test_the_entry_can_be_pasted_and_lets_the_key_in() -> None:
    out, err = make(
        "--name", "alice", "--rpm", "60", "--tokens-per-day", "1000", "--weight", "2",
        "--models", "a:7b", "org/b", "--admin",
    )  # fmt: skip
    keys = Keys(parse("keys:\n" + out, "pharos.yaml", {}).keys)
    key = next(line.strip() for line in err.splitlines() if line.strip().startswith("sk-"))
    found = keys.find(key.encode())
    assert found is not None
    assert (found.name, found.rpm, found.tokens_per_day) == ("alice", 60, 1000)
    assert (found.weight, sorted(found.models), found.admin) == (2, ["a:7b", "org/b"], True)
    assert key not in out


def test_the_shortest_entry_is_a_name_and_a_hash() -> None:
    out, _ = make("--name", "1.5")  # a name that YAML would take for a number
    assert [line.split(":")[0].strip(" -") for line in out.splitlines()] == ["name", "sha256"]
    assert parse("keys:\n" + out, "pharos.yaml", {}).keys[0].name == "1.5"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--name", ""], "--name: '' must be 1 to 64"),
        (["--name", "anonymous"], "choose another name"),
        (["--name", "a", "--rpm", "0"], "--rpm is 0; it must be 1 to"),
        (["--name", "a", "--tokens-per-day", "-1"], "--tokens-per-day is -1"),
        (["--name", "a", "--weight", "1001"], "--weight is 1001; it must be 1 to 1000"),
        (["--name", "a", "--models", ""], "a model needs a name"),
        (["--name", "a", "--rpm", "many"], "invalid int value: 'many'"),
        ([], "required: --name"),
    ],
)
def test_a_bad_option_is_explained(arguments: list[str], said: str) -> None:
    with pytest.raises(CommandError) as e:
        make(*arguments)
    assert said in str(e.value)


def test_a_name_that_the_config_has_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "p.yaml"
    file.write_text("keys:\n" + make("--name", "alice")[0])
    monkeypatch.setenv("PHAROS_CONFIG", str(file))
    with pytest.raises(CommandError, match=r"p\.yaml has a key alice already"):
        make("--name", "alice")
    assert make("--name", "bob")[0]
    with pytest.raises(ConfigError, match="has the key of alice"):
        parse(file.read_text() + file.read_text()[6:].replace("alice", "carol"), "p.yaml", {})
