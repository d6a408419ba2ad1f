"""What the prefix index predicts of real llama.cpp servers is what they report."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.demo import install
from gateway.demo.engines import MODEL_NAME, NEWEST, LlamaServer
from gateway.proxy.ask import decode
from gateway.routing.links import Chain
from gateway.routing.prefix import Outcome, PrefixIndex
from gateway.routing.prompt import chain_of

pytestmark = pytest.mark.live

PATH = "/v1/chat/completions"
WORDS = "the keeper lit a lamp and saw old ships pass by in fog while waves broke over dark cold rocks"


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[LlamaServer]]:
    install.install(install.LLAMA_SERVERS[NEWEST])
    install.install(install.SMOLLM2)
    folder: Path = tmp_path_factory.mktemp("engines")
    with ExitStack() as stack:
        started = [stack.enter_context(LlamaServer(folder, slots=n, context=4096)) for n in (1, 2, 4)]
        for server in started:
            server.wait_ready()
        yield started


class Asked:
    """Requests that go where they are told, and what the index said of each beforehand."""

    def __init__(self) -> None:
        self.index = PrefixIndex()
        self.outcomes: list[Outcome] = []
        self.told: list[tuple[float, float]] = []  # tokens predicted, and reported
        self.now = 0.0

    def ask(self, url: str, messages: list[dict[str, str]]) -> str:
        self.now += 1
        body: dict[str, Any] = {"model": MODEL_NAME, "messages": messages, "max_tokens": 12, "temperature": 0}
        chain = self._chain(body)
        found = self.index.lookup(chain, {url: 0}).get(url)
        reply = httpx.post(url + PATH, json=body, timeout=120, trust_env=False).raise_for_status().json()
        usage = reply["usage"]
        cached, prompt = usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"]
        self.outcomes.append(self.index.correct(url, 0, chain, found, cached, prompt, self.now))
        self.index.record(url, 0, chain, self.now)
        self.told.append(((found.bytes if found else 0) / chain.size * prompt, cached))
        return str(reply["choices"][0]["message"]["content"])

    def _chain(self, body: dict[str, Any]) -> Chain:
        return chain_of(PATH, decode(json.dumps(body).encode()), MODEL_NAME)


def text(rnd: random.Random, words: int) -> str:
    return " ".join(rnd.choices(WORDS.split(), k=words))


def test_of_a_long_prompt_sent_twice_as_much_is_cached_as_predicted(servers: list[LlamaServer]) -> None:
    asked, rnd = Asked(), random.Random(1)
    document = text(rnd, 700)
    for question in ("Who kept it?", "Who kept it?", "What did he see?"):
        asked.ask(servers[1].url, [{"role": "user", "content": f"{document}\n\n{question}"}])
    for predicted, cached in asked.told[1:]:
        assert predicted == pytest.approx(cached, rel=0.15)


def test_of_fifty_turns_over_three_engines_nine_in_ten_are_predicted_right(
    servers: list[LlamaServer],
) -> None:
    asked, rnd = Asked(), random.Random(2)
    systems = [{"role": "system", "content": text(rnd, 130)} for _ in range(2)]
    chats = [[rnd.choice(systems)] for _ in range(10)]
    homes = [rnd.choice(servers).url for _ in chats]
    for _ in range(50):
        number = rnd.randrange(len(chats))
        if rnd.random() < 0.15:  # a busier engine elsewhere
            homes[number] = rnd.choice(servers).url
        chat = chats[number]
        chat.append({"role": "user", "content": text(rnd, rnd.randint(10, 60))})
        chat.append({"role": "assistant", "content": asked.ask(homes[number], chat)})
    right = sum(o in (Outcome.HIT, Outcome.MISS) for o in asked.outcomes)
    assert right >= 42, Counter(asked.outcomes)
