"""What the docs say is held against the code, where that is cheap."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import msgspec

from engines.detect import detect
from engines.fetch import Answer
from engines.plan import resolve
from engines.recipes import RECIPES
from engines.recipes.base import Recipe
from engines.signals import Signal
from gateway.config import Config, parse

ROOT = Path(__file__).parents[1]


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


ENV = {"VLLM_KEY": "k", "OPS_KEY_SHA256": "0" * 64}


def example() -> Config:
    return parse(read("pharos.example.yaml"), "pharos.example.yaml", ENV)


def test_the_example_config_is_accepted() -> None:
    assert (len(example().backends), len(example().keys)) == (3, 2)


def test_the_example_config_shows_the_defaults() -> None:
    assert msgspec.structs.replace(example(), backends=[], keys=[]) == Config()


def test_the_example_config_shows_every_setting() -> None:
    def names(struct: Any) -> set[str]:
        return set(struct.__struct_encode_fields__)

    shown = set(re.findall(r"^[\s#-]*(\w+):", read("pharos.example.yaml"), re.M))
    config = example()
    wanted = names(Config) | names(config.limits) | names(config.drain) | names(config.backends[0])
    wanted |= names(config.keys[0]) | names(config.usage)
    assert wanted - shown - {"api_key_file"} == set()
    assert "api_key_file:" in read("pharos.example.yaml")


def test_every_make_target_that_is_named_exists() -> None:
    named = set(re.findall(r"\bmake ([a-z]+)\b", read("README.md") + read("CONTRIBUTING.md")))
    assert named - set(re.findall(r"^([a-z]+):", read("Makefile"), re.M)) == set()


def test_the_support_table_names_every_probe_and_no_other() -> None:
    library = {p.name for recipe in RECIPES.values() for p in recipe.probes}
    text = read("docs/SUPPORT.md")
    prefixes = "|".join({name.split("-")[0] for name in library})
    named = set(re.findall(rf"`((?:{prefixes})-[a-z0-9-]+)`", text))
    assert (library - named, named - library) == (set(), set(RECIPES) & named)


def test_relative_links_lead_somewhere() -> None:
    for name in (
        "README.md",
        "CONTRIBUTING.md",
        "docs/ARCHITECTURE.md",
        "docs/SUPPORT.md",
        "docs/METRICS.md",
    ):
        for link in re.findall(r"\]\(([^)#]+)\)", read(name)):
            assert "://" in link or (ROOT / name).parent.joinpath(link).exists(), f"{name}: {link}"


async def test_the_worked_example_of_a_new_engine_works() -> None:
    code = re.search(r"```python\n(.*?)```", read("CONTRIBUTING.md"), re.S)
    assert code is not None
    names: dict[str, Any] = {}
    exec(re.sub(r"(?m)^   ", "", code[1]), names)  # the list item's indent
    recipe: Recipe = names["RECIPE"]

    async def get(path: str) -> Answer:
        bodies = {
            "/about": b'{"lanternd": "1.4", "slots": 3}',
            "/metrics": b"lanternd_requests_running 2\n",
            "/v1/models": b'{"object":"list","data":[{"id":"m"}]}',
        }
        return Answer(200, bodies[path]) if path in bodies else Answer(404, b"")

    found = await detect(get, {recipe.kind: recipe, **RECIPES})
    assert found.kind == "lanternd"
    plan, snapshot = await resolve(get, recipe)
    assert (snapshot.version, list(snapshot.models or ())) == ("1.4", ["m"])
    assert (snapshot.load[""].running, snapshot.load[""].capacity) == (2, 3)
    assert Signal.WAITING in snapshot.unknown
    assert plan.dropped == {}


def test_the_project_speaks_of_itself_alone() -> None:
    """No path of a machine and no package index in what the project writes itself."""
    files = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    own = [f for f in files if not f.startswith("fixtures/captures/")]
    forbidden = re.compile("|".join(("/wo" + "rk/", "pypi" + r"\.org", "files\\.pythonhosted" + r"\.org")))
    assert [
        f for f in own if (ROOT / f).is_file() and forbidden.search((ROOT / f).read_text("utf-8", "replace"))
    ] == []
