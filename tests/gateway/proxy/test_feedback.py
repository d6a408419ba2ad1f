"""What requests leave behind: where their prompts are cached, what they teach, and which way they went."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from engines.recipes.base import PromptCache, Recipe
from gateway.proxy.decisions import (
    REFUSED,
    STAGES,
    Admission,
    Load,
    Queue,
    Unrouted,
    Upstream,
    UsageAsked,
    stage_of,
)
from gateway.proxy.done import Done
from gateway.proxy.feedback import load_of, sample_of
from gateway.routing.policy import Why, cost
from gateway.routing.prefix import Outcome
from tests.gateway.proxy.bench import FINISH, OLLAMA, PLAIN, STREAM, Client, Setup, chat, gateway
from tests.stub import Handler, Peer, Request, stub

LONG = "Describe each harbour of this coast in turn. " * 200
TOKEN = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'
SHARED = replace(PLAIN, prompt_cache=PromptCache.SHARED)


def turn(*said: str, stream: bool = False) -> bytes:
    """A chat so far: the user's words, each answered."""
    messages = []
    for words in said:
        messages += [{"role": "user", "content": words}, {"role": "assistant", "content": "Yes."}]
    return json.dumps({"model": "m", "stream": stream, "messages": messages[:-1]}).encode()


def answering(cached: int | None = None) -> Handler:
    """An engine that reports how much of its prompt it had cached."""

    async def engine(_request: Request, peer: Peer) -> None:
        usage: dict[str, object] = {"prompt_tokens": 2500, "completion_tokens": 3}
        if cached is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        said = {"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}], "usage": usage}
        await peer.plain(json.dumps(said).encode())

    return engine


def by_cost(g: Setup) -> None:
    g.scheduler.policy = cost


# -- where prompts are cached ------------------------------------------------------------------


async def test_the_next_turn_of_a_chat_goes_where_the_last_one_was() -> None:
    async with stub(answering()) as a, stub(answering()) as b, gateway(a.url, b.url) as g:
        by_cost(g)
        first = await g.ask(turn(LONG))
        at = {s.url: s for s in (a, b)}[first.headers[b"x-pharos-backend"].decode()]
        for _ in range(4):
            await g.ask(turn(LONG, "And then?"))
        assert len(at.requests) == 5
    assert g.done[1].expected_cached is not None
    assert g.done[1].expected_cached > 1000
    assert "tokens cached" in str(g.done[1].reason)


async def test_another_prompt_expects_nothing() -> None:
    async with stub(answering()) as a, gateway(a.url) as g:
        await g.ask(turn(LONG))
        await g.ask(turn("Something else: " + LONG))
    assert g.done[1].expected_cached == 0


@pytest.mark.parametrize(
    ("cached", "outcome"),
    [(2400, Outcome.HIT), (0, Outcome.WRONG), (None, Outcome.UNKNOWN)],
)
async def test_what_the_reply_reports_is_held_against_what_was_expected(
    cached: int | None, outcome: Outcome
) -> None:
    async with stub(answering(cached)) as a, gateway(a.url) as g:
        await g.ask(turn(LONG))
        await g.ask(turn(LONG))
    assert g.done[1].decisions[-2:] == [outcome, Upstream.OK]


async def test_a_model_that_was_unloaded_has_nothing_cached() -> None:
    async with stub(answering()) as a, gateway(a.url) as g:
        await g.ask(turn(LONG))
        g.backends[0].targets["m"].generation += 1
        await g.ask(turn(LONG))
    assert g.done[1].expected_cached == 0


async def test_an_engine_that_refused_a_prompt_does_not_draw_it_again() -> None:
    async def refuses(_request: Request, peer: Peer) -> None:
        await peer.plain(b'{"error":{"message":"no"}}', "400 Bad Request")

    engines = [answering(), refuses]

    async def engine(request: Request, peer: Peer) -> None:
        await engines[0](request, peer)

    async with stub(engine) as a, gateway(a.url) as g:
        await g.ask(turn(LONG))
        engines.pop(0)
        await g.ask(turn(LONG))
        engines[0] = answering()
        await g.ask(turn(LONG))
    assert [bool(d.expected_cached) for d in g.done] == [False, True, False]


async def test_of_what_is_no_prompt_nothing_is_expected_and_that_is_no_zero() -> None:
    async with stub(answering()) as a, gateway(a.url) as g:
        await g.ask(b'{"model":"m","input":"x"}', "/v1/embeddings")
    assert g.done[0].expected_cached is None


async def test_a_short_answer_is_no_refusal_of_its_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    forgotten: list[str] = []
    async with stub(answering()) as a, gateway(a.url) as g:
        index = g.consumer.passages.index
        monkeypatch.setattr(index, "forget", lambda target, *_: forgotten.append(target))
        await g.ask(turn(LONG), "/v1/messages")
    assert (g.done[0].status, forgotten) == (200, [])


@pytest.mark.parametrize(("recipe", "known"), [(SHARED, True), (PLAIN, False)])
async def test_a_running_request_is_of_use_to_others_where_the_cache_is_shared(
    recipe: Recipe, known: bool
) -> None:
    hold, client = asyncio.Event(), Client()

    async def engine(request: Request, peer: Peer) -> None:
        if b'"stream": true' not in request.body and b'"stream":true' not in request.body:
            await answering()(request, peer)
            return
        await peer.stream_head()
        await peer.chunk(TOKEN)
        await hold.wait()
        await peer.chunk(FINISH)
        await peer.end()

    async with stub(engine) as s, gateway(s.url, recipe=recipe) as g:
        running = asyncio.create_task(g.ask(turn(LONG, stream=True), client=client))
        while TOKEN not in client.body:
            await asyncio.sleep(0.001)
        await g.ask(turn(LONG))
        hold.set()
        await running
    assert bool(g.done[0].expected_cached) is known


async def test_a_prompt_whose_client_left_after_the_first_token_is_cached() -> None:
    client = Client()

    async def engine(request: Request, peer: Peer) -> None:
        if b"stream" in request.body and TOKEN not in client.body:
            await peer.stream_head()
            await peer.chunk(TOKEN)
            await asyncio.sleep(60)
        else:
            await answering()(request, peer)

    async with stub(engine) as s, gateway(s.url) as g:
        running = asyncio.create_task(g.ask(turn(LONG, stream=True), client=client))
        while TOKEN not in client.body:
            await asyncio.sleep(0.001)
        client.leave()
        await running
        await g.ask(turn(LONG))
    assert g.done[0].decisions[-1] is Upstream.CLIENT_LEFT
    assert g.done[1].expected_cached


# -- which way it went -------------------------------------------------------------------------


async def test_a_request_writes_down_each_branch_it_took() -> None:
    async with stub(chat) as s, gateway(s.url) as g:
        await g.ask(STREAM)
    assert g.done[0].decisions[:-1] == [
        Admission.OK, UsageAsked.PHAROS, Why.ONLY_CHOICE, Queue.IMMEDIATE,
    ]  # fmt: skip
    assert g.done[0].decisions[-1] is Upstream.OK


async def test_each_attempt_is_written_down() -> None:
    async def full(_request: Request, peer: Peer) -> None:
        await peer.plain(b"{}", "503 Full")

    async with stub(full) as a, stub(chat) as b, gateway(a.url, b.url) as g:
        with g.busy(1):
            await g.ask()
    assert [d for d in g.done[0].decisions if isinstance(d, Upstream)] == [Upstream.BUSY_RETRIED, Upstream.OK]


async def test_a_refused_connection_is_written_down_and_then_that_nobody_is_left() -> None:
    async with stub(chat) as gone:
        pass
    async with gateway(gone.url) as g:
        await g.ask()
    assert g.done[0].decisions[-2:] == [Upstream.CONNECT_FAILED, Unrouted.UNAVAILABLE]


@pytest.mark.parametrize(
    ("body", "decision"),
    [
        (b"{", Admission.BAD_REQUEST),
        (b'{"messages":[]}', Admission.BAD_REQUEST),
        (b'{"model":"nobody-has-it"}', Unrouted.UNKNOWN_MODEL),
    ],
)
async def test_a_refusal_is_written_down(body: bytes, decision: object) -> None:
    async with stub(chat) as s, gateway(s.url) as g:
        await g.ask(body)
    assert g.done[0].decisions == [decision]


async def test_a_client_that_leaves_the_queue_is_written_down() -> None:
    client = Client()
    async with stub(chat) as s, gateway(s.url, capacity=1) as g:
        with g.busy(0):
            waiting = asyncio.create_task(g.ask(client=client))
            while not g.scheduler.waiting:
                await asyncio.sleep(0.001)
            client.leave()
            await waiting
    assert g.done[0].decisions == [Admission.OK, Unrouted.CLIENT_LEFT]


def test_every_decision_has_a_stage() -> None:
    for stage, kinds in STAGES.items():
        for kind in kinds:
            assert {stage_of(d) for d in kind} == {stage}
    assert {stage_of(d) for d in REFUSED.values()} == {"admission", "route"}


# -- what it teaches ---------------------------------------------------------------------------


def done(**known: object) -> Done:
    d = Done("id", "POST", "/v1/chat/completions", 100.0, status=200, total_s=9.0, granted_s=2.0)
    for name, value in known.items():
        setattr(d, name, value)
    return d


async def test_only_a_whole_answer_teaches() -> None:
    async with gateway("http://127.0.0.1:1") as g:
        target = g.backends[0].targets["m"]
    assert sample_of(done()) is None, "it reached nobody"
    assert sample_of(done(target=target, status=500)) is None
    assert sample_of(done(target=target, outcome="died")) is None
    sample = sample_of(done(target=target, streamed=True, first_token_s=3.5, predicted_s=1.0))
    assert sample is not None
    assert (sample.total_s, sample.ttft_s, sample.predicted_s) == (7.0, 1.5, 1.0)


async def test_how_far_the_estimate_was_off_is_kept_for_each_target() -> None:
    async with gateway("http://127.0.0.1:1") as g:
        stats = g.backends[0].targets["m"].stats
    sample = sample_of(
        done(target=g.backends[0].targets["m"], streamed=True, first_token_s=3.5, predicted_s=1.0)
    )
    assert sample is not None
    stats.learn(sample)
    assert stats.error_s == 0.5


@pytest.mark.parametrize(
    ("known", "load"),
    [
        ({}, None),
        ({"cold": True}, Load.COLD_START),
        ({"load_s": 3.0}, Load.UNEXPECTED),
        ({"load_s": 0.1}, None),
        ({"cold": True, "control": True}, Load.CONTROL),
    ],
)
def test_what_it_had_to_do_with_a_load(known: dict[str, object], load: Load | None) -> None:
    assert load_of(done(**known)) is load


@pytest.mark.parametrize(
    ("path", "body", "control"),
    [
        ("/api/generate", b'{"model":"m","keep_alive":0}', True),
        ("/api/generate", b'{"model":"m","prompt":""}', True),
        ("/api/generate", b'{"model":"m","prompt":"hi"}', False),
        ("/api/chat", b'{"model":"m","messages":[]}', True),
        ("/api/chat", b'{"model":"m","messages":[{"role":"user","content":"hi"}]}', False),
        ("/v1/chat/completions", b'{"model":"m","messages":[]}', False),
    ],
)
async def test_an_ollama_request_without_a_prompt_only_loads(path: str, body: bytes, control: bool) -> None:
    async def engine(_request: Request, peer: Peer) -> None:
        await peer.plain(b'{"done":true,"response":""}')

    async with stub(engine) as s, gateway(s.url, recipe=OLLAMA) as g:
        await g.ask(body, path)
    assert g.done[0].control is control
    assert (Load.CONTROL in g.done[0].decisions) is control


async def test_a_request_that_reached_no_engine_had_nothing_to_do_with_a_load() -> None:
    async with gateway("http://127.0.0.1:1", recipe=OLLAMA) as g:
        await g.ask(b'{"model":"nobody-has-it","keep_alive":0}', "/api/generate")
    assert g.done[0].control
    assert Load.CONTROL not in g.done[0].decisions


# -- an end to waiting -------------------------------------------------------------------------


async def test_who_waits_when_the_gateway_ends_is_told_to_come_back() -> None:
    async with stub(chat) as s, gateway(s.url, capacity=1) as g:
        with g.busy(0):
            waiting = asyncio.create_task(g.ask())
            while not g.scheduler.waiting:
                await asyncio.sleep(0.001)
            g.scheduler.close()
            client = await waiting
            late = await g.ask()
        free = await g.ask()
    for c in (client, late):
        assert (c.status, c.error["code"], c.headers[b"retry-after"]) == (503, "draining", b"5")
    assert free.status == 200, "a free place is still given"
    assert Unrouted.DRAINING in g.done[0].decisions


# -- what estimates learn ----------------------------------------------------------------------


async def test_a_prompt_is_estimated_in_tokens_as_the_engine_counted_the_one_before() -> None:
    """The engine of these tests counts 2,500 whatever it is sent."""
    async with stub(answering()) as s, gateway(s.url) as g:
        await g.ask(turn(LONG))
        first = g.done[0]
        assert first.estimated_tokens is not None
        assert first.estimated_tokens < 2300
        sample, target = sample_of(first), first.target
        assert sample is not None
        assert target is not None
        target.stats.learn(sample)
        await g.ask(turn(LONG))
        assert g.done[1].expected_cached == pytest.approx(2500, rel=0.01)


async def test_the_next_prompt_waits_for_no_stream_that_has_its_first_token() -> None:
    later = asyncio.Event()

    async def engine(request: Request, peer: Peer) -> None:
        await peer.stream_head()
        await peer.chunk(TOKEN)
        if len(s.requests) == 1:
            await later.wait()
        await peer.chunk(FINISH)
        await peer.end()

    async with stub(engine) as s, gateway(s.url, capacity=2) as g:
        client = Client()
        running = asyncio.create_task(g.ask(turn(LONG, stream=True), client=client))
        while len(client.sent) < 2:
            client.arrived.clear()
            await client.arrived.wait()
        await g.ask(turn(LONG, stream=True))
        later.set()
        await running
    waited = [done.decision.scores[0].wait_s for done in g.done if done.decision is not None]
    assert waited == [0, 0]
