"""What the prefix index costs: hashing a prompt, asking and teaching the index, and its memory."""

from __future__ import annotations

import gc
import json
import random
import time
import tracemalloc
from collections.abc import Callable, Iterator

from benchmarks.report import Figure, figure
from gateway.proxy.ask import decode
from gateway.routing.links import Chain
from gateway.routing.prefix import CAPACITY, PrefixIndex
from gateway.routing.prompt import chain_of

PROMPT_BYTES = 220_000
MESSAGES = 200
CHATS = 300
ROUNDS = 1000
TARGETS = tuple(f"http://127.0.0.1:{8000 + i} some-model" for i in range(5))
CHAT = "/v1/chat/completions"
MADE = random.Random(1)  # the same prompts in every run
WORDS = [*(f"{MADE.getrandbits(32):x}"[: MADE.randint(2, 8)] for _ in range(2000)), "naïve", "\n", '"quoted"']


def figures() -> list[Figure]:
    return [*hashing(), *asking(), *memory()]


def _text(size: int) -> str:
    return " ".join(MADE.choices(WORDS, k=size // 4))[:size]


def _chat(messages: int, size: int) -> bytes:
    """A body of so many messages of `size` characters each."""
    roles = ("user", "assistant")
    told = [{"role": roles[i % 2], "content": _text(size)} for i in range(messages - 1)]
    head = {"role": "system", "content": _text(size)}
    return json.dumps({"model": "some-model", "messages": [head, *told]}, ensure_ascii=False).encode()


def _times(work: Callable[[], object], rounds: int = ROUNDS) -> list[float]:
    """Milliseconds of this thread: nothing here waits, so what else the machine does need not count."""
    times = []
    for _ in range(rounds):
        began = time.thread_time()
        work()
        times.append((time.thread_time() - began) * 1000)
    return times


def hashing() -> list[Figure]:
    """From the raw values of a request, as they are when it has been understood."""
    chat, document = (decode(_chat(n, PROMPT_BYTES // n)) for n in (MESSAGES, 2))
    note = f"{PROMPT_BYTES // 1000} kB of prompt, decoding included; CPU time; budget 1.5 ms"
    return [
        figure(f"hashing a chat of {MESSAGES} messages", "ms", _hashed(chat), note=note),
        figure("hashing two long messages", "ms", _hashed(document), note=note),
    ]


def _hashed(fields: dict[str, bytes]) -> list[float]:
    return _times(lambda: chain_of(CHAT, fields, "some-model"))


def asking() -> list[Figure]:
    index = PrefixIndex()
    chains = [chain_of(CHAT, decode(_chat(MESSAGES, 60)), "some-model") for _ in range(CHATS)]
    for i, chain in enumerate(chains * 3):
        index.record(TARGETS[i % 4], 0, chain, float(i))
    turns = iter(range(2 * ROUNDS))
    generations = dict.fromkeys(TARGETS, 0)
    note = f"{MESSAGES} messages, {len(index):,} entries; CPU time; budget 0.3 ms"
    lookups = _times(lambda: index.lookup(MADE.choice(chains), generations))
    records = _times(lambda: index.record(MADE.choice(TARGETS), 0, MADE.choice(chains), 1e6 + next(turns)))
    return [
        figure("prefix lookup of a long chat", "ms", lookups, note=note),
        figure("prefix record of a long chat", "ms", records, note=note),
    ]


def memory() -> list[Figure]:
    usual = _megabytes(lambda: _chats(100))
    worst = _megabytes(lambda: _chats(1, targets=4))
    note = f"{CAPACITY:,} entries; budget 50 MB"
    return [
        Figure("prefix index of chats, 100 messages each", "MB", usual, note=note),
        Figure("the same where no two entries share, 4 targets each", "MB", worst, note=note),
    ]


def _chats(messages: int, targets: int = 1) -> PrefixIndex:
    index = PrefixIndex()
    for i, chain in enumerate(_chains(messages)):
        for target in TARGETS[:targets]:
            index.record(target, 0, chain, 1.7e9 + i)
    return index


def _chains(messages: int) -> Iterator[Chain]:
    for _ in range(CAPACITY // messages):
        links = tuple(MADE.getrandbits(64) for _ in range(messages))
        yield Chain(links, tuple(range(messages)), messages)


def _megabytes(build: Callable[[], PrefixIndex]) -> float:
    """What is still held once it is built."""
    gc.collect()
    tracemalloc.start()
    try:
        index = build()
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
        del index
    finally:
        tracemalloc.stop()
    return held / 1e6
