"""`kind: auto` asks little, believes little, and says why when it cannot tell."""

from __future__ import annotations

import pytest

from engines.detect import Undetected, detect
from engines.fetch import Answer, Fault, FetchError
from engines.recipes import RECIPES
from tests.engines.replay import CAPTURES, Capture


async def why_not(pages: dict[str, Answer | Fault], rest: Answer | Fault) -> tuple[Undetected, list[str]]:
    asked: list[str] = []

    async def get(path: str) -> Answer:
        asked.append(path)
        page = pages.get(path, rest)
        if isinstance(page, Fault):
            raise FetchError(page, f"{path}: {page}")
        return page

    with pytest.raises(Undetected) as e:
        await detect(get)
    return e.value, asked


MODELS = Answer(200, b'{"data":[{"id":"m"}]}')
NOT_FOUND = Answer(404, b"")


async def test_an_address_where_nothing_listens_is_asked_once() -> None:
    undetected, asked = await why_not({}, Fault.REFUSED)
    assert undetected.fault is Fault.REFUSED
    assert "is the engine running?" in str(undetected)
    assert len(asked) == 1


async def test_a_loading_engine_is_not_guessed() -> None:
    undetected, _ = await why_not({}, Answer(503, b""))
    assert undetected.fault is Fault.LOADING
    assert "still loading" in str(undetected)


async def test_an_engine_that_wants_a_key_is_not_guessed() -> None:
    undetected, _ = await why_not({"/v1/models": MODELS}, Answer(401, b""))
    assert undetected.fault is Fault.DENIED
    assert "api_key" in str(undetected)


async def test_a_busy_engine_is_left_alone_after_two_silences() -> None:
    undetected, asked = await why_not({"/v1/models": MODELS}, Fault.TIMEOUT)
    assert undetected.fault is Fault.TIMEOUT
    assert "busy" in str(undetected)
    assert len(asked) == 2


@pytest.mark.parametrize("path", ["/running", "/api/version", "/props", "/version"])
@pytest.mark.parametrize("answer", [Fault.TIMEOUT, Fault.BROKEN, Answer(503, b""), Answer(403, b"")])
async def test_one_question_without_an_answer_forbids_the_generic_guess(
    path: str, answer: Answer | Fault
) -> None:
    await why_not({path: answer, "/v1/models": MODELS}, NOT_FOUND)


async def test_an_unanswered_question_does_not_hide_a_clear_answer() -> None:
    replay = Capture(CAPTURES / "llamacpp/b10434/busy").replay(
        header=False, over={"/running": FetchError(Fault.TIMEOUT, "silence")}
    )
    assert (await detect(replay)).kind == "llamacpp"


async def test_llama_cpp_is_known_by_its_header_while_it_loads() -> None:
    loading = Capture(CAPTURES / "llamacpp/b11434/loading").replay()
    found = await detect(loading)
    assert found.kind == "llamacpp"
    assert "Server: llama.cpp" in found.evidence
    assert sum(loading.asked.values()) == 1


async def test_the_evidence_names_the_paths_that_answered() -> None:
    found = await detect(Capture(CAPTURES / "mlx-lm/v0.32.2/idle").replay())
    assert found.evidence == "/v1/models answered as OpenAI-compatible engine does"


@pytest.mark.parametrize("body", [b"", b"{}", b"null", b"[]", b'{"running":3}', b'{"build_info":"v2"}'])
async def test_a_foreign_body_on_every_path_matches_no_kind(body: bytes) -> None:
    await why_not({}, Answer(200, body))


def test_the_generic_kind_is_asked_last() -> None:
    assert list(RECIPES)[-1] == "openai"
