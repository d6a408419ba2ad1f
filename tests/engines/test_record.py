"""A recording: what is asked for it, how it is laid out, and that it answers as the engine did."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from engines.examine import examine
from engines.fetch import Answer, Fault, FetchError
from engines.plan import resolve
from engines.probes import Path as ProbePath
from engines.recipes import RECIPES
from engines.recipes.base import Kind
from engines.record import (
    COLUMNS,
    Entry,
    Meta,
    RecordError,
    Tape,
    ask_further,
    file_name,
    file_names,
    files,
    folder_name,
    further_paths,
    meta_yaml,
    paths_tsv,
    version_folder,
    write,
)
from tests.engines.replay import CAPTURES, Capture, captures

META = Meta("ollama", "0.32.15", "2026-11-30", "idle", "ollama", "Ollama server", 0.5)


@pytest.mark.parametrize("capture", [pytest.param(c, id=c.key) for c in captures() if c.replayable])
def test_files_are_named_as_in_every_recording(capture: Capture) -> None:
    recorded = {key: row.file for key, row in capture.rows().items() if row.file not in ("", "-")}
    there = {k: f for k, f in recorded.items() if (capture.folder / f).is_file()}
    assert {k: file_name(*k) for k in there} == there


def test_columns_are_those_of_the_recordings() -> None:
    first = (CAPTURES / "ollama/v0.32.15/idle/paths.tsv").read_text().splitlines()[0]
    assert tuple(first.split("\t")[: len(COLUMNS)]) == COLUMNS


def test_paths_of_a_like_name_get_two_files() -> None:
    entries = [Entry("GET", path, 0, Answer(200, b"")) for path in ("/a/b", "/a_b", "/meta.yaml", "/a?b")]
    assert file_names(entries) == ["a_b", "a_b-2", "meta.yaml-2", "a@b"]


def test_path_without_an_answer_is_a_line_with_its_error() -> None:
    entry = Entry("GET", "/metrics", 3000.04, error=FetchError(Fault.TIMEOUT, "late"))
    assert paths_tsv([entry]).splitlines()[1] == "GET\t/metrics\tTimeoutError\t\t0\t3000.0\t-"


def test_header_cannot_break_the_table() -> None:
    entry = Entry("GET", "/x", 1, Answer(200, b"a", {"content-type": "text/plain\t1\n2"}))
    assert paths_tsv([entry]).splitlines()[1] == "GET\t/x\t200\ttext/plain 1 2\t1\t1.0\tx"


def test_meta_says_what_is_known_and_leaves_the_truth_to_a_person() -> None:
    meta = yaml.safe_load(meta_yaml(META))
    assert meta["engine"] == "ollama"
    assert meta["version"] == "0.32.15"
    assert meta["date"] == "2026-11-30"
    assert (meta["truth"], meta["command"]) == ({}, "")


@pytest.mark.parametrize(
    ("version", "folder"),
    [
        ("0.32.15", "v0.32.15"),
        ("b11434-1a2b3c4", "b11434-1a2b3c4"),
        ("v250", "v250"),
        (None, "unknown-version"),
        ("../../etc", "_.._etc"),
        ("a/b\x00c", "a_b_c"),
        ("..", "unknown-version"),
    ],
)
def test_version_of_an_engine_is_one_folder(version: str | None, folder: str) -> None:
    assert version_folder(version) == folder


def test_state_leads_nowhere_else() -> None:
    assert folder_name("../idle", "x") == "_idle"


def test_folder_that_holds_anything_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("mine")
    with pytest.raises(RecordError, match="holds something already"):
        write(tmp_path, {"old": b"yours"})
    assert (tmp_path / "old").read_text() == "mine"


def test_folder_that_cannot_be_made_is_an_error_in_words(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match="cannot be"):
        write(tmp_path / "file" / "state", {})


async def test_key_that_an_engine_repeats_is_masked() -> None:
    async def get(_path: str) -> Answer:
        return Answer(200, b'{"args":["--api-key","s3cret"]}')

    tape = Tape(get, get, lambda: 0.0, 1.0)
    await tape.get("/props")
    laid_out = files(tape, META, "s3cret")
    assert laid_out["props"] == b'{"args":["--api-key","******"]}'
    assert b"s3cret" not in b"".join(laid_out.values())


@pytest.mark.parametrize("kind", list(RECIPES))
def test_recording_asks_nothing_that_harms(kind: Kind) -> None:
    asked = {p.url for p in further_paths(RECIPES[kind], RECIPES, awake=True)}
    assert not asked & {"/unload", "/api/events", "/server_info", "/slots"}
    assert not any("upstream" in url or "model=" in url for url in asked)
    assert "/health" not in asked or kind == "llamacpp"  # SGLang's generates a token
    assert "/metrics" not in asked or kind == "llama-swap"  # TensorRT-LLM's empties a queue


@pytest.mark.parametrize("awake", [True, False])
def test_path_that_wakes_is_asked_for_a_recording_of_an_engine_that_is_awake(awake: bool) -> None:
    wakes = ProbePath("/work", "made up", wakes=True)
    recipe = replace(RECIPES["llamacpp"], record_paths=(wakes,))
    assert (wakes in further_paths(recipe, RECIPES, awake=awake)) is awake


async def test_recording_stops_asking_an_engine_that_does_not_answer() -> None:
    asked = []

    async def get(path: str) -> Answer:
        asked.append(path)
        raise FetchError(Fault.TIMEOUT, f"{path} late")

    await ask_further(Tape(get, get, lambda: 0.0, 1.0), further_paths(RECIPES["vllm"], RECIPES, awake=True))
    assert len(asked) == 1


REPLAYED = [
    "llamacpp/b11434/busy",
    "llamacpp/b10092/no-metrics",
    "llamacpp/b11434/router-loaded",
    "llamacpp/b10434/sleeping",
    "ollama/v0.32.15/two-loaded",
    "llama-swap/v250/busy",
    "vllm/v0.32.0/saturated",
    "sglang/v0.5.23/busy",
    "mlx-lm/v0.32.2/idle",
]


@pytest.mark.parametrize("key", REPLAYED)
async def test_recording_replays_to_the_plan_of_the_engine(key: str, tmp_path: Path) -> None:
    engine = Capture(CAPTURES / key).replay()
    tape = Tape(engine, engine.post, lambda: 0.0, 1.0)
    live = await examine(tape, None)
    assert live.kind is not None
    recipe = RECIPES[live.kind]
    await ask_further(tape, further_paths(recipe, RECIPES, awake=True))
    write(tmp_path / key, files(tape, Meta("x", None, "2026-11-30", "s", "x", tape.server)))

    again = Capture(tmp_path / key).replay()
    replayed = await examine(Tape(again, again.post, lambda: 0.0, 1.0), None)
    assert replayed == live
    plan, snapshot = await resolve(Capture(tmp_path / key).replay(), recipe)
    assert (plan, snapshot) == (live.plan, live.snapshot)
