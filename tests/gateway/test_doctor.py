"""`pharos_doctor` as people and programs meet it: what it prints, where, and how it exits."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.core.management import call_command
from django.core.management.base import CommandError
from rich.console import Console

from engines.examine import Examination, examine
from engines.fetch import Fault
from engines.recipes import RECIPES
from engines.recipes.base import Kind
from engines.record import Tape
from engines.routes import ROUTES
from engines.signals import Signal
from gateway.config import BackendConfig, Config, FoundBackend, Secret
from gateway.doctor.notes import notes
from gateway.doctor.patients import Patient, UsageError, by_hand, cleaned
from gateway.doctor.report import report
from gateway.doctor.show import screen
from gateway.doctor.visit import HEAD_BYTES, TAIL_BYTES, Visit, read_log_file
from gateway.doctor.words import plain, size
from tests.engines.replay import CAPTURES, Capture, captures
from tests.gateway.replay_server import serving
from tests.stub import Peer, Request, stub

REPLAYED = [c for c in captures() if c.replayable]
KEYS = [
    "url", "kind", "kind_from", "version", "models", "load", "from", "dropped", "unknown", "routes",
    "notes", "error",
]  # fmt: skip


async def visited(capture: Capture, config: BackendConfig | None = None, kind: Kind | None = None) -> Visit:
    engine = capture.replay()
    config = config or BackendConfig(url="http://engine:1")
    patient = Patient(config.url, kind, config)
    tape = Tape(engine, engine.post, lambda: 0.0, 1.0)
    found = await examine(tape, kind, config.probes, None, config.capacity)
    return Visit(patient, found, tape, notes(patient, found))


# -- what programs read ------------------------------------------------------------------------


def is_count(value: object) -> bool:
    return value is None or (type(value) is int and value >= 0)


def is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def check_shape(said: dict[str, Any]) -> None:
    """Exactly the promised keys, and values of the promised types."""
    assert list(said) == KEYS
    assert is_text(said["url"])
    assert said["kind"] in {None, *RECIPES}
    assert said["kind_from"] in ({None} if said["kind"] is None else {"detected", "config"})
    assert said["version"] is None or is_text(said["version"])
    for info in said["models"].values():
        assert list(info) == ["state", "vram_bytes", "size_bytes"]
        assert info["state"] in ("loaded", "loading", "cold", None)
        assert is_count(info["vram_bytes"])
        assert is_count(info["size_bytes"])
    for model, load in said["load"].items():
        assert isinstance(model, str)
        assert list(load) == ["running", "waiting", "capacity", "kv_usage"]
        assert all(is_count(load[name]) for name in ("running", "waiting", "capacity"))
        assert load["kv_usage"] is None or 0 <= load["kv_usage"] <= 1
    assert all(signal in list(Signal) and is_text(probe) for signal, probe in said["from"].items())
    assert all(is_text(probe) and is_text(why) for probe, why in said["dropped"].items())
    assert sorted([*said["from"], *said["unknown"]]) == sorted(map(str, Signal))
    assert list(said["routes"]) == list(ROUTES)
    assert all(served in (True, False, None) for served in said["routes"].values())
    assert all(is_text(note) for note in said["notes"])
    assert said["error"] is None or is_text(said["error"])


@pytest.mark.parametrize("capture", [pytest.param(c, id=c.key) for c in REPLAYED])
async def test_every_recorded_state_is_reported_in_the_promised_shape(capture: Capture) -> None:
    said = report(await visited(capture))
    assert json.loads(json.dumps(said, allow_nan=False)) == said
    check_shape(said)


@pytest.mark.parametrize("capture", [pytest.param(c, id=c.key) for c in REPLAYED])
async def test_every_recorded_state_can_be_shown(capture: Capture) -> None:
    visit = await visited(capture)
    assert visit.patient.url in plain([visit])
    for width in (80, 120):
        assert max(map(len, drawn([visit], width).splitlines())) <= width


def drawn(visits: list[Visit], width: int) -> str:
    console = Console(width=width, file=io.StringIO(), force_terminal=False)
    with console.capture() as captured:
        console.print(screen(visits))
    return captured.get()


# -- what people read --------------------------------------------------------------------------


async def test_plain_text_names_value_probe_and_source_of_each_signal() -> None:
    text = plain([await visited(Capture(CAPTURES / "llamacpp/b11434/busy"))])
    assert "running = 3 (probe llamacpp-running, /metrics)" in text
    assert "unknown    vram_bytes, kv_usage" in text
    assert "llamacpp-slots-running: redundant" in text


async def test_name_that_would_steer_the_terminal_is_shown_harmless() -> None:
    visit = await visited(
        Capture(CAPTURES / "ollama/v0.32.15/idle"),
        BackendConfig(url="http://engine:1", aliases={"\x1b[2J[red]x": "\x07bell"}),
    )
    for text in (plain([visit]), drawn([visit], 120)):
        assert not re.search(r"[\x00-\x09\x0b-\x1f]", text)
        assert "[red]x" in text


async def test_alias_that_leads_nowhere_is_told_from_one_that_is_listed() -> None:
    config = BackendConfig(url="http://engine:1", aliases={"smollm2:135m": "small", "typo": "big"})
    said = (await visited(Capture(CAPTURES / "ollama/v0.32.15/idle"), config)).notes
    assert any(note.startswith("Alias small -> smollm2:135m: the engine lists it") for note in said)
    assert any("Alias big -> typo" in note and "leads nowhere" in note for note in said)


@pytest.mark.parametrize(
    ("key", "capacity", "words"),
    [
        ("ollama/v0.32.15/idle", 2, "capacity: 2 of the config is used"),
        ("llamacpp/b11434/idle", 9, "capacity: 9 of the config is not used, as the engine says 4"),
        ("llamacpp/b11434/idle", 4, "capacity: 4 of the config is not used, as the engine says 4 itself."),
    ],
)
async def test_capacity_of_the_config_is_told_used_or_not(key: str, capacity: int, words: str) -> None:
    config = BackendConfig(url="http://engine:1", capacity=capacity)
    assert any(words in note for note in (await visited(Capture(CAPTURES / key), config)).notes)


def test_bytes_are_shown_in_units_and_unknown_is_not_0() -> None:
    assert [size(n) for n in (None, 0, 999, 98_400_000, 4_700_000_000, 2_000_000_000_000)] == [
        "unknown", "0 B", "999 B", "98.4 MB", "4.7 GB", "2.0 TB",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("url", "fault", "error", "words"),
    [
        ("http://127.0.0.1:9", Fault.REFUSED, "nothing answers", "Is the engine running"),
        ("http://mac:11434", Fault.REFUSED, "nothing answers", "OLLAMA_HOST=0.0.0.0"),
        ("http://mac", Fault.REFUSED, "nothing answers", "80 (as none was given)"),
        ("http://macc:1", Fault.REFUSED, "[Errno -2] Name or service not known", "known by the name macc"),
        ("https://mac:1", Fault.REFUSED, "[SSL: WRONG_VERSION_NUMBER] wrong", "write http://mac:1"),
        ("https://mac:1", Fault.REFUSED, "[SSL: CERTIFICATE_VERIFY_FAILED]", "certificate"),
        ("http://mac:1", Fault.TIMEOUT, "late", "ask again when it is idle"),
        ("https://mac:1", Fault.TIMEOUT, "late", "try http://mac:1"),
        ("http://mac:1", Fault.LOADING, "503", "wait until it is ready"),
        ("http://mac:1", Fault.DENIED, "401", "--key-env"),
    ],
)
def test_each_failure_comes_with_a_mend(url: str, fault: Fault, error: str, words: str) -> None:
    patient = Patient(url, None, BackendConfig(url=url))
    said = notes(patient, Examination(error=error, fault=fault))
    assert any(words in note for note in said), said


def test_refused_key_is_not_asked_for_again() -> None:
    patient = Patient("http://mac:1", None, BackendConfig(url="http://mac:1"), Secret("k3y"))
    said = " ".join(notes(patient, Examination(error="401", fault=Fault.DENIED)))
    assert "refuses the key" in said
    assert "k3y" not in said


# -- the address -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "address", "notes_said"),
    [
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080", 0),
        ("http://127.0.0.1:8080/", "http://127.0.0.1:8080", 0),
        ("mac-mini:11434", "http://mac-mini:11434", 1),
        ("localhost:8080/v1", "http://localhost:8080", 2),
        ("HTTPS://gpu.example.org/v1/chat/completions?x=1", "https://gpu.example.org", 1),
        ("http://[::1]:8080/v1/", "http://[::1]:8080", 1),
    ],
)
def test_address_is_mended_and_the_change_told(typed: str, address: str, notes_said: int) -> None:
    found, said = cleaned(typed)
    assert (found, len(said)) == (address, notes_said)


@pytest.mark.parametrize(
    "typed", ["", "   ", "ftp://mac:1", "http://", "http://mac:0", "http://mac:99999", "http://mac:port",
              "http://ma c:1", "http://a..b:1", "http://[::1:1", "http://key@mac:1", "file:///etc/passwd"]
)  # fmt: skip
def test_what_is_no_address_is_wrong_use(typed: str) -> None:
    with pytest.raises(UsageError, match="--url"):
        cleaned(typed)


def test_config_of_the_same_address_counts_for_url() -> None:
    config = Config(
        backends=[BackendConfig(url="http://mac:1", kind="ollama", api_key=Secret("k"), capacity=3)]
    )
    patient = by_hand("mac:1/", None, None, config)
    assert (patient.kind, patient.key, patient.config.capacity) == ("ollama", "k", 3)
    assert by_hand("mac:1", "vllm", Secret("other"), config).kind == "vllm"
    assert by_hand("mac:2", None, None, config).key is None


# -- its log -----------------------------------------------------------------------------------


def test_long_log_is_read_at_both_ends(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    line = b"x" * 1023 + b"\n"
    log.write_bytes(b"first\n" + line * ((HEAD_BYTES + 2 * TAIL_BYTES) // 1024) + b"last\n")
    lines, said = read_log_file(str(log))
    assert lines is not None
    assert (lines[0], lines[-1], said) == (b"first", b"last", ())
    assert {len(each) for each in lines[1:-1]} == {1023}
    assert sum(map(len, lines)) < HEAD_BYTES + TAIL_BYTES


def test_short_log_is_read_whole(tmp_path: Path) -> None:
    (tmp_path / "engine.log").write_bytes(b"one\ntwo")
    assert read_log_file(str(tmp_path / "engine.log")) == ((b"one", b"two"), ())


def test_log_that_is_no_file_is_a_note_and_nothing_waits_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path / "nowhere", tmp_path, Path("/dev/zero")):
        lines, said = read_log_file(str(path))
        assert lines is None
        assert str(path) in said[0]


# -- the command -------------------------------------------------------------------------------


@dataclass
class Ran:
    code: int | str | None
    out: str
    err: str

    @property
    def said(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.out)
        return found


def run(*args: str) -> Ran:
    out, err = io.StringIO(), io.StringIO()
    code: int | str | None = 0
    try:
        call_command("pharos_doctor", *args, stdout=out, stderr=err)
    except SystemExit as e:
        code = e.code
    except CommandError as e:
        code = e.returncode if e.returncode != 1 else 2  # argparse's, outside a command line
        err.write(str(e))
    return Ran(code, out.getvalue(), err.getvalue())


async def doctor(*args: str) -> Ran:
    return await asyncio.to_thread(run, *args)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("PHAROS_CONFIG", "PHAROS_LISTEN"):
        monkeypatch.delenv(name, raising=False)


def config_file(text: str) -> None:
    Path("pharos.yaml").write_text(text)


async def test_engine_that_answers_exits_with_0() -> None:
    async with serving(Capture(CAPTURES / "ollama/v0.32.15/idle")) as engine:
        ran = await doctor("--url", engine.url, "--json")
    assert (ran.code, ran.err) == (0, "")
    [said] = ran.said
    check_shape(said)
    assert (said["url"], said["kind"], said["kind_from"]) == (engine.url, "ollama", "detected")
    assert said["routes"]["/api/chat"] is True


async def test_given_kind_comes_from_the_config() -> None:
    async with serving(Capture(CAPTURES / "vllm/v0.32.0/idle")) as engine:
        ran = await doctor("--url", engine.url, "--kind", "vllm", "--json")
    assert ran.said[0]["kind_from"] == "config"


async def test_posts_carry_no_model_and_no_prompt() -> None:
    async with serving(Capture(CAPTURES / "llamacpp/b11434/idle")) as engine:
        await doctor("--url", engine.url)
        posts = [r for r in engine.requests if r.line.startswith("POST")]
    assert len(posts) == len(ROUTES)
    assert {(p.body, *p.header("content-length")) for p in posts} == {(b"{}", "2")}


async def test_key_is_sent_and_shown_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE_KEY", "s3cret")
    async with serving(Capture(CAPTURES / "vllm/v0.32.0/idle")) as engine:
        ran = await doctor("--url", engine.url, "--key-env", "ENGINE_KEY")
        assert {h for r in engine.requests for h in r.header("authorization")} == {"Bearer s3cret"}
    assert "s3cret" not in ran.out + ran.err


@pytest.mark.parametrize("key", ["schl\u00fcssel", "k3y\nx", " \n"])
def test_key_that_no_header_can_carry_is_wrong_use_and_not_shown(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGINE_KEY", key)
    ran = run("--url", "http://127.0.0.1:9", "--key-env", "ENGINE_KEY")
    assert (ran.code, ran.out) == (2, "")
    assert "ENGINE_KEY" in ran.err
    assert not key.strip() or key not in ran.err


@pytest.mark.parametrize("url", ["http://a..b:81", "http://xn--:1", "http://256.256.256.256:1"])
def test_name_that_no_machine_can_have_is_an_error_in_words(url: str) -> None:
    config_file(f"backends: [{{url: '{url}'}}]")
    ran = run("--json")
    assert ran.code == 1
    assert ran.said[0]["error"]


async def test_backends_of_the_config_are_all_visited_and_one_that_is_down_exits_with_1() -> None:
    async with serving(Capture(CAPTURES / "ollama/v0.32.15/idle")) as engine:
        config_file(f"backends: [{{url: '{engine.url}'}}, {{url: 'http://127.0.0.1:9', kind: vllm}}]")
        ran = await doctor("--json")
    assert ran.code == 1
    assert [(s["kind"], s["error"] is None) for s in ran.said] == [("ollama", True), ("vllm", False)]


async def test_text_in_a_pipe_has_no_colours_and_no_boxes() -> None:
    async with serving(Capture(CAPTURES / "ollama/v0.32.15/idle")) as engine:
        ran = await doctor("--url", engine.url)
    assert "\x1b" not in ran.out
    assert not re.search(r"[─│┌╭]", ran.out)


def test_no_config_says_where_was_looked_and_exits_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = [FoundBackend(url="http://127.0.0.1:9")]
    monkeypatch.setattr("gateway.config.local_backends", lambda: nobody)
    ran = run("--json")
    assert (ran.code, ran.said) == (1, [])
    assert "There is no pharos.yaml here" in ran.err


@pytest.mark.parametrize(
    "args",
    [
        ["--kind", "ollama"],
        ["--url", "http://mac:1", "--kind", "olama"],
        ["--url", "ftp://mac"],
        ["--url", "http://mac:1", "--key-env", "NOT_SET_ANYWHERE"],
        ["--logs"],
        ["--state", "idle"],
        ["--url", "http://mac:1", "--record", "a-file"],
        ["--nonsense"],
    ],
    ids=" ".join,
)
def test_wrong_use_exits_with_2_and_says_why(args: list[str]) -> None:
    Path("a-file").write_text("")
    ran = run(*args)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err


def test_broken_config_exits_with_2_and_names_the_line() -> None:
    config_file("backends:\n  - url: http://mac:1\n    capcity: 2\n")
    ran = run("--json")
    assert (ran.code, ran.out) == (2, "")
    assert "line 3" in ran.err
    assert "did you mean capacity" in ran.err


async def test_broken_config_does_not_stand_in_the_way_of_an_address() -> None:
    config_file("nonsense: 1\n")
    async with serving(Capture(CAPTURES / "ollama/v0.32.15/idle")) as engine:
        ran = await doctor("--url", engine.url, "--json")
    assert ran.code == 0
    assert "left aside" in ran.err


# -- bad engines -------------------------------------------------------------------------------

BAD_ANSWERS = {
    "html": (b"<html><body>router login</body></html>", "text/html"),
    "3 MB": (b"a" * 3_000_000, "application/json"),
    "5 MB": (b"a" * 5_000_000, "application/json"),
    "garbage": (bytes(range(256)) * 10, "application/json"),
    "deep": (b"[" * 200_000, "application/json"),
}


@pytest.mark.parametrize("name", BAD_ANSWERS)
async def test_answer_that_is_no_engines_is_an_error_in_words(name: str) -> None:
    body, kind = BAD_ANSWERS[name]

    async def handler(_request: Request, peer: Peer) -> None:
        await peer.plain(body, kind=kind)

    async with stub(handler) as engine:
        ran = await doctor("--url", engine.url, "--json")
    assert ran.code == 1
    check_shape(ran.said[0])
    assert ran.said[0]["error"]
    assert ran.said[0]["kind"] is None


async def test_what_is_no_http_is_an_error_in_words() -> None:
    async def handler(_request: Request, peer: Peer) -> None:
        await peer.send(b"\x15\x03\x01\x00\x02\x02\x16\r\n\r\n")
        peer.close()

    async with stub(handler) as engine:
        ran = await doctor("--url", engine.url, "--json")
    assert ran.code == 1
    assert ran.said[0]["error"]
    assert any("It speaks TLS: write https://" in note for note in ran.said[0]["notes"])


async def test_tls_to_a_plain_port_is_told() -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(connected, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        ran = await doctor("--url", f"https://127.0.0.1:{port}", "--json")
    assert ran.code == 1
    assert any("does not speak TLS" in note for note in ran.said[0]["notes"])


async def test_answer_without_an_end_is_busy_and_the_visit_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.doctor.visit.ANSWER_S", 0.2)

    async def handler(request: Request, peer: Peer) -> None:
        await peer.stream_head()
        while not request.gone.is_set():
            await peer.chunk(b"data: more\n\n")
            await asyncio.sleep(0.02)

    async with stub(handler) as engine:
        ran = await doctor("--url", engine.url, "--json")
    assert ran.code == 1
    assert "did not answer" in ran.said[0]["error"]


# -- recording ---------------------------------------------------------------------------------


async def test_recording_over_a_socket_replays_to_the_same_report(tmp_path: Path) -> None:
    async with serving(Capture(CAPTURES / "llamacpp/b11434/busy")) as engine:
        ran = await doctor("--url", engine.url, "--json", "--record", "kept", "--state", "busy")
    assert ran.code == 0
    folder = tmp_path / "kept/llamacpp/b11434-unknown/busy"
    assert f"Recorded {folder.relative_to(tmp_path)}" in ran.err
    again = report(await visited(Capture(folder)))
    assert {**again, "url": engine.url} == ran.said[0]
    recorded = (folder / "slots").read_bytes() if (folder / "slots").exists() else b""
    assert recorded == (CAPTURES / "llamacpp/b11434/busy/slots").read_bytes()
    assert yaml.safe_load((folder / "meta.yaml").read_text())["state"] == "busy"


async def test_second_recording_of_a_state_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    async with serving(Capture(CAPTURES / "ollama/v0.32.15/idle")) as engine:
        await doctor("--url", engine.url, "--record", "kept")
        folder = tmp_path / "kept/ollama/v0.32.15/recorded"
        before = {f.name: f.read_bytes() for f in folder.iterdir()}
        ran = await doctor("--url", engine.url, "--record", "kept")
    assert ran.code == 2
    assert "holds something already" in ran.err
    assert {f.name: f.read_bytes() for f in folder.iterdir()} == before


async def test_two_engines_of_one_version_are_recorded_apart(tmp_path: Path) -> None:
    capture = Capture(CAPTURES / "ollama/v0.32.15/idle")
    async with serving(capture) as one, serving(capture) as two:
        config_file(f"backends: [{{url: '{one.url}'}}, {{url: '{two.url}'}}]")
        assert (await doctor("--record", "kept")).code == 0
    assert sorted(p.name for p in (tmp_path / "kept/ollama/v0.32.15").iterdir()) == ["recorded", "recorded-2"]


@pytest.mark.parametrize("logs", [True, False])
async def test_log_lines_are_recorded_only_when_asked_for_and_with_a_warning(
    tmp_path: Path, logs: bool
) -> None:
    log = CAPTURES / "ollama/v0.32.15/engine.log"
    async with serving(Capture(CAPTURES / "ollama/v0.32.15/idle")) as engine:
        config_file(f"backends: [{{url: '{engine.url}', logs: 'file://{log}'}}]")
        ran = await doctor("--record", "kept", "--json", *(["--logs"] if logs else []))
    assert ran.said[0]["from"]["capacity"] == "ollama-log-num-parallel"
    assert (tmp_path / "kept/ollama/v0.32.15/recorded/engine.log").exists() is logs
    assert ("prompts" in ran.err) is logs


async def test_nothing_is_recorded_of_what_does_not_answer(tmp_path: Path) -> None:
    ran = await doctor("--url", "http://127.0.0.1:9", "--record", "kept")
    assert ran.code == 1
    assert "Nothing was recorded" in ran.err
    assert not (tmp_path / "kept").exists()


# -- manage.py check ---------------------------------------------------------------------------


def test_check_reports_a_broken_config_with_a_hint() -> None:
    config_file("backends:\n  - url: http://mac:1\n    capcity: 2\n")
    with pytest.raises(Exception, match=r"pharos\.E001.*line 3.*capcity[\s\S]*HINT"):
        call_command("check")


def test_check_is_content_without_a_config() -> None:
    out = io.StringIO()
    call_command("check", stdout=out)
    assert "no issues" in out.getvalue()


def test_check_reports_a_key_file_that_is_not_there() -> None:
    config_file("backends: [{url: 'http://mac:1', api_key_file: /nowhere/key}]")
    with pytest.raises(Exception, match=r"pharos\.E001.*/nowhere/key"):
        call_command("check")
