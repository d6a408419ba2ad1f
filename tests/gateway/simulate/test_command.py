"""`pharos_simulate` as one calls it."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from tests.gateway.simulate.small import TEXT


@pytest.fixture
def scenario(tmp_path: Path) -> str:
    path = tmp_path / "tiny.yaml"
    path.write_text(TEXT.replace("minutes: 2", "minutes: 1"))
    return str(path)


def simulate(*args: str) -> str:
    out = StringIO()
    call_command("pharos_simulate", *args, "--jobs", "1", stdout=out)
    return out.getvalue()


def test_a_table_compares_the_routers(scenario: str) -> None:
    said = simulate(scenario, "--seeds", "1", "--router", "cost", "oracle")
    assert "Two engines and a few people" in said
    for word in ("cost", "oracle", "1.00×", "TTFT p50", "cached", "loads", "wait team", "Jain"):
        assert word in said
    assert "round-robin" not in said


def test_all_numbers_go_to_a_file_for_programs(scenario: str, tmp_path: Path) -> None:
    simulate(scenario, "--seeds", "2", "--router", "cost", "sticky", "--json", str(tmp_path / "a.json"))
    (found,) = json.loads((tmp_path / "a.json").read_text())
    assert [(r["router"], r["seed"]) for r in found["runs"]] == [
        ("cost", 1), ("sticky", 1), ("cost", 2), ("sticky", 2),
    ]  # fmt: skip
    assert [s["router"] for s in found["summary"]] == ["cost", "sticky"]


class _Page(HTMLParser):
    VOID = ("meta", "line", "rect", "polyline")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.links += [v or "" for k, v in attrs if k in ("src", "href")]
        if tag not in self.VOID or tag == "polyline":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_has_plots_and_needs_nothing_from_elsewhere(scenario: str, tmp_path: Path) -> None:
    simulate(scenario, "--seeds", "1", "--router", "cost", "oracle", "--html", str(tmp_path / "a.html"))
    page = _Page()
    page.feed((tmp_path / "a.html").read_text())
    assert page.open == []
    assert page.seen.count("svg") == 4
    assert page.seen.count("polyline") == 2
    assert "script" not in page.seen
    assert page.links == []


def test_the_list_names_scenarios_and_variants() -> None:
    said = simulate("--list")
    assert "mixed" in said
    assert "replicas:users-48" in said


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("nothing",), "no scenario nothing"),
        (("mixed", "--seeds", "0"), "1 or more"),
        (("mixed", "--router", "best"), "invalid choice"),
    ],
)
def test_wrong_use_is_said_in_one_sentence(args: tuple[str, ...], said: str) -> None:
    with pytest.raises(CommandError, match=said):
        simulate(*args)


def test_a_file_that_cannot_be_written_is_an_error_and_not_a_traceback(scenario: str, tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="cannot write"):
        simulate(scenario, "--seeds", "1", "--router", "random", "--json", str(tmp_path / "no" / "a.json"))
