"""Which prompts are alike, and how far."""

from __future__ import annotations

import base64
import json
from itertools import cycle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.proxy.ask import decode
from gateway.proxy.routes import ROUTES
from gateway.routing.links import MOST_LINKS, Chain
from gateway.routing.prompt import chain_of
from tests.gateway.routing.conversations import CONVERSATIONS, Turn, chain, request, turns

CHAT = "/v1/chat/completions"
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def of(path: str = CHAT, model: str = "m", key: bytes = b"", **fields: Any) -> Chain:
    return chain_of(path, {k: json.dumps(v).encode() for k, v in fields.items()}, model, key)


def chat(*messages: Any, **more: Any) -> Chain:
    """Texts are taken in turn for the user's and the assistant's."""
    roles = cycle(("user", "assistant"))
    told = [{"role": next(roles), "content": m} if isinstance(m, str) else m for m in messages]
    return of(messages=told, **more)


def user(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **more}


def system(content: Any) -> dict[str, Any]:
    return {"role": "system", "content": content}


def shared(a: Chain, b: Chain) -> int:
    """Links."""
    return next(
        (i for i, (x, y) in enumerate(zip(a.links, b.links, strict=False)) if x != y),
        min(len(a.links), len(b.links)),
    )


# -- recorded clients --------------------------------------------------------------------------


@pytest.mark.parametrize("turn", [t for t in turns() if "aider" not in t.client], ids=str)
def test_a_recorded_client_keeps_its_whole_prompt_from_turn_to_turn(turn: Turn) -> None:
    assert turn.kept == 1


@pytest.mark.parametrize(("before", "after"), [(10, 11), (11, 12)])
def test_aider_keeps_all_but_its_last_message_whose_reminder_it_takes_back(before: int, after: int) -> None:
    was, now = (chain(request("aider/0.86.2", n)) for n in (before, after))
    told = json.loads(request("aider/0.86.2", before).body)["messages"]
    assert was.ends[shared(was, now) - 1] == chat(*told[:-1]).size


@pytest.mark.parametrize("client", CONVERSATIONS)
@pytest.mark.parametrize("changed", ["model", "tools", "system"])
def test_a_recorded_conversation_matches_nothing_of_one_with_another(client: str, changed: str) -> None:
    body = json.loads(request(client, CONVERSATIONS[client][0][0]).body)
    path = request(client, CONVERSATIONS[client][0][0]).path
    raw = {k: json.dumps(v).encode() for k, v in body.items()}
    other = dict(raw)
    if changed == "tools":
        other["tools"] = json.dumps([*(body.get("tools") or []), TOOL]).encode()
    elif changed == "system":
        other["system"] = other["instructions"] = b'"You are another."'
    was = chain_of(path, raw, "m")
    assert shared(was, chain_of(path, other, "another" if changed == "model" else "m")) == 0
    assert was.links


def test_two_sessions_of_claude_code_share_tools_and_system_prompt() -> None:
    """Its billing header differs from session to session."""
    one, other = (chain(request("claude-code/2.1.332", n)) for n in (1, 8))
    assert shared(one, other) == 1
    assert one.ends[0] > 30_000


def test_every_recorded_request_for_a_generation_gets_a_chain() -> None:
    for client, conversations in CONVERSATIONS.items():
        for number in (n for numbers in conversations for n in numbers):
            assert chain(request(client, number)).links, (client, number)


# -- what is alike -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (user("a"), user([{"type": "text", "text": "a"}])),
        (user("a"), user([{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}])),
        (user("a"), user("a", id="msg_1")),
        ({"role": "assistant", "content": None}, {"role": "assistant", "content": ""}),
        ({"role": "assistant", "content": []}, {"role": "assistant"}),
        ({"role": "assistant", "content": "a", "reasoning_content": "hm"}, {"role": "assistant", "content": "a"}),
        (
            {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": '{"a": 1}'}}]},
            {"role": "assistant", "content": None, "tool_calls": [{"id": "2", "function": {"name": "f", "arguments": {"a": 1}}}]},
        ),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}, {"type": "tool_use", "id": "x", "name": "f", "input": {}}]},
        ),
        (
            user([{"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}}]),
            user([{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"}}]),
        ),
        (user([{"type": "input_image", "image_url": "data:image/png;base64,QUJD"}]), user("", images=["QUJD"])),
    ],
)  # fmt: skip
def test_the_same_message_written_otherwise_is_the_same(one: Any, other: Any) -> None:
    assert chat(one).links == chat(other).links


def test_escaped_and_plain_json_of_one_text_are_the_same() -> None:
    text = "Привет 你好 🌍"
    raw = [json.dumps([user(text)], ensure_ascii=ascii_).encode() for ascii_ in (True, False)]
    chains = [chain_of(CHAT, {"messages": r}, "m") for r in raw]
    assert chains[0] == chains[1]
    assert chains[0].size == len(text.encode()) + 20


def test_one_conversation_is_the_same_on_all_chat_apis() -> None:
    told = [user("a"), {"role": "assistant", "content": "b"}, user("c")]
    openai = chat(system("s"), *told)
    assert openai == of("/v1/messages", system="s", messages=told)
    assert openai == of("/v1/messages", system=[{"type": "text", "text": "s"}], messages=told)
    assert openai == of("/api/chat", messages=[system("s"), *told], tools=[])
    assert openai == of("/v1/responses", instructions="s", input=[{"type": "message", **m} for m in told])


def test_a_question_is_the_same_on_the_apis_that_take_it_alone() -> None:
    assert chat(system("s"), "a") == of("/api/generate", system="s", prompt="a")
    assert chat("a") == of("/v1/responses", input="a")


def test_the_next_turn_begins_with_the_links_of_this_one() -> None:
    short, long = chat("a", "b", "c"), chat("a", "b", "c", "d", "e")
    assert long.links[:3] == short.links
    assert long.ends[:3] == short.ends


def test_cache_hints_in_tools_and_system_prompt_are_of_no_account() -> None:
    hint = {"cache_control": {"type": "ephemeral"}}
    system = {"type": "text", "text": "s"}
    plain = of("/v1/messages", system=[system], tools=[TOOL], messages=[user("a")])
    hinted = of("/v1/messages", system=[system | hint], tools=[TOOL | hint], messages=[user("a")])
    assert plain == hinted


# -- what is not -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "other",
    [
        chat(system("t"), "a"),
        chat(system("s"), "a", tools=[TOOL]),
        chat(system("s"), "a", model="n"),
        chat(system("s"), "a", think=False),
        chat(system("s"), "a", key=b"secret"),
        chat("a"),
    ],
)
def test_what_stands_before_all_else_changes_every_link(other: Chain) -> None:
    assert shared(chat(system("s"), "a"), other) == 0


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (user("a"), {"role": "assistant", "content": "a"}),
        (user([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]), user("ab")),
        (user([{"type": "image", "source": {"data": "QUJD"}}]), user([{"type": "image", "source": {"data": "QUJE"}}])),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": '{"a":1}'}}]},
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": '{"a":2}'}}]},
        ),
        (user([{"type": "tool_result", "tool_use_id": "1", "content": "a"}]), user("a")),
        (user([{"type": "file", "file": {"data": "a"}}]), user([{"type": "file", "file": {"data": "b"}}])),
    ],
)  # fmt: skip
def test_another_message_is_another(one: Any, other: Any) -> None:
    assert shared(chat(one), chat(other)) == 0


def test_a_text_cannot_pass_for_two_messages() -> None:
    assert shared(chat("a", "b"), chat("a\0t1:bMassistant\0t1:b")) == 0


def test_two_large_images_that_differ_in_a_sample_or_in_length_are_two() -> None:
    blank = bytes(300_000)
    images = [base64.b64encode(d).decode() for d in (blank, blank + bytes(300), b"abc" + blank[3:])]
    chains = [chat(user([{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{i}"}}])) for i in images]  # fmt: skip
    assert len({c.links for c in chains}) == 3
    assert chains[0] == chat(user([{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{images[0]}"}}]))  # fmt: skip


# -- long messages -----------------------------------------------------------------------------


def test_two_questions_about_one_long_document_share_it() -> None:
    document = "lorem ipsum " * 2000
    one, other = chat(document + "What?"), chat(document + "Who is it?")
    matched = one.ends[shared(one, other) - 1]
    assert 0.93 < matched / len(document) < 1.01


def test_a_raw_prompt_that_grows_keeps_its_blocks() -> None:
    text = "x y z " * 1000
    one, other = of("/v1/completions", prompt=text), of("/v1/completions", prompt=text + " and on")
    assert 0.93 < one.ends[shared(one, other) - 1] / len(text) <= 1


def test_a_raw_prompt_is_none_that_a_template_is_put_around() -> None:
    raw = of("/api/generate", prompt="a", raw=True)
    assert raw == of("/v1/completions", prompt="a")
    assert shared(raw, of("/api/generate", prompt="a")) == 0


def test_token_ids_match_by_their_start() -> None:
    one, other = (of("/v1/completions", prompt=[*range(3000), end]) for end in (7, 8))
    assert shared(one, other) == len(one.links) - 1
    assert one.size == 4 * 3001


def test_a_batch_of_prompts_has_no_start() -> None:
    assert not of("/v1/completions", prompt=["a", "b"]).links
    assert of("/v1/completions", prompt=["a"]) == of("/v1/completions", prompt="a")


@given(st.text(max_size=9000), st.text(max_size=3000), st.text(max_size=3000))
def test_what_is_shared_is_never_more_than_what_is_alike(start: str, one: str, other: str) -> None:
    a, b = chat(start + one), chat(start + other)
    alike = min(len(x.encode()) for x in (start + one, start + other))
    for n, (x, y) in enumerate(zip((start + one).encode(), (start + other).encode(), strict=False)):
        if x != y:
            alike = n
            break
    matched = shared(a, b)
    assert matched == 0 or a.ends[matched - 1] <= alike + 20
    if one != other:
        assert a.links != b.links


def test_in_a_long_chat_a_message_is_one_link_unless_it_is_long() -> None:
    long = chat(*["hello there " * 90] * 100, "hello there " * 900)
    assert long.ends[-1] > 100_000
    assert 101 < len(long.links) < 200


# -- anything ----------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(
        st.sampled_from(["role", "content", "type", "text", "tool_calls", "function", "name", "arguments",
                         "image_url", "url", "source", "images", "input", "output", "function_call"])
        | st.text(max_size=3), inner, max_size=5),
    max_leaves=30,
)  # fmt: skip
NAMES = [
    "messages",
    "prompt",
    "input",
    "system",
    "instructions",
    "tools",
    "context",
    "images",
    "raw",
    "suffix",
]


@given(st.sampled_from(sorted(ROUTES)), st.dictionaries(st.sampled_from(NAMES), JSON))
def test_any_json_gives_a_chain_whose_ends_rise(path: str, body: dict[str, Any]) -> None:
    got = of(path, **body)
    assert len(got.links) == len(got.ends)
    assert list(got.ends) == sorted(got.ends)
    assert not got.ends or got.ends[-1] <= got.size


@given(st.sampled_from(sorted(ROUTES)), st.sampled_from(NAMES), st.binary(max_size=40))
def test_any_bytes_for_a_value_only_cut_the_chain(path: str, name: str, raw: bytes) -> None:
    chain_of(path, {name: raw}, "m")


@pytest.mark.parametrize(
    "odd",
    [
        7,
        {"role": 7, "content": "b"},
        {"role": "user", "content": 7},
        {"role": "user", "content": [7]},
        {"role": "user", "content": [{"type": ["text"]}]},
        {"role": "assistant", "tool_calls": "f"},
        {"role": "assistant", "tool_calls": [{"function": "f"}]},
        {"role": "user", "content": "a", "images": "QUJD"},
    ],
)
def test_a_message_that_is_none_ends_the_chain_before_it(odd: Any) -> None:
    got = chat("a", odd, "c")
    assert got.links == chat("a").links
    assert got.size > got.ends[-1]


def test_a_lone_surrogate_is_text_as_any_other() -> None:
    body = rb'{"model":"m","messages":[{"role":"user","content":"a\ud83d"},{"role":"user","content":"b"}]}'
    assert len(chain_of(CHAT, decode(body), "m").links) == 2


def test_deep_nesting_gives_no_chain() -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    assert not chain_of(CHAT, {"messages": deep}, "m").links
    calls = b'[{"role":"user","content":"a"},{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":%s}}]}]'
    arguments = json.dumps("[" * 100_000).encode()
    assert len(chain_of(CHAT, {"messages": calls % arguments}, "m").links) <= 2


def test_a_prompt_without_end_has_a_chain_that_ends() -> None:
    many = of(messages=[user("hello " * 3)] * (MOST_LINKS + 100))
    assert len(many.links) <= MOST_LINKS
    long = of(messages=[user("hello " * 300_000)])
    assert long.ends[-1] < 1_200_000 < long.size


@pytest.mark.parametrize("value", ['{"role":"user"},', '"a",', "[],", "1,"])
def test_a_body_of_countless_values_gets_no_chain(value: str) -> None:
    raw = f"[{value * (600_000 // len(value))}{value[:-1]}]".encode()
    assert not chain_of(CHAT, {"messages": raw}, "m").links


def test_what_is_not_generated_has_no_chain() -> None:
    for path in ("/v1/embeddings", "/api/embed", "/v1/messages/count_tokens"):
        assert of(path, messages=[user("a")], input="a", prompt="a") == Chain()


def test_no_text_is_in_a_chain_or_its_repr() -> None:
    assert repr(chat("secret")) == "<Chain of 1 links, 26 bytes>"
