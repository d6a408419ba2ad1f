"""What of a request an engine may hold in its prefix cache already, as a chain of hashes. Pure.

An engine can reuse the longest start that a prompt has in common with one it has computed. So each link
hashes everything before it: two prompts share their first n links and no more if they begin alike and part
after that. What is hashed is what reaches the model, and not how a client happens to write it: the decoded
text of each message and who says it. Ids and cache hints are left out, and so is reasoning, which chat
templates drop from the past; `null`, `""` and no content at all are alike, and a list of one text is that
text. With that every client recorded in fixtures/clients keeps its prefix from turn to turn.

Links:

- tools and system prompt are one unit and the first link: chat templates disagree on which comes first;
- one a message, and in a long message one a block, so that two questions about one long document share it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from gateway.routing.links import SAMPLE, Chain, Full, Json, Links, decode, encode, shrunk, utf8

LARGE = 1 << 16
MOST_JSON = 1 << 21
MOST_VALUES = 20_000
MOST_COMMAS = 100_000
"""What is larger, images left out, or has more objects and lists than any prompt gets no chain: to decode it
would take tens of milliseconds. (Commas are slow to count, 0.4 ms for 220 kB of text.)"""

HEAD = (
    "tools",
    "functions",
    "template",
    "chat_template",
    "chat_template_kwargs",
    "documents",
    "reasoning_effort",
    "think",
    "previous_response_id",
    "conversation",
    "suffix",
)
"""Fields that change a prompt from its start, or leave open where they do."""
PROMPT = ("messages", "system", "prompt", "context", "images", "input", "instructions", *HEAD)
NOTHING = frozenset((b"null", b"[]", b"{}", b'""'))
SYSTEM = ("system", "developer")
TEXTS = frozenset(("text", "input_text", "output_text"))
IMAGES = frozenset(("image", "image_url", "input_image"))
UNSEEN = frozenset(("thinking", "redacted_thinking", "reasoning"))
IDS = frozenset(("id", "call_id", "tool_use_id", "cache_control", "status"))
BILLING = "x-anthropic-billing-header:"
"""Claude Code puts it before its system prompt, with digits that differ from session to session. vLLM and
llama.cpp leave it out as well."""

Fields = Mapping[str, bytes]
"""A request's top-level members: name to raw JSON value."""


NO_CHAIN = Chain()


def chain_of(path: str, fields: Fields, model: str, key: bytes = b"") -> Chain:
    """The chain of a request to `path`, for `model` under the one name by which it is routed.

    Never raises for what a client sends: what cannot be understood ends the chain. Empty for paths that
    generate nothing, and for batches of prompts. `key` keeps
    others from recognizing prompts by their hashes: see `links.py`.
    """
    shape = SHAPES.get(path)
    readable = None if shape is None else _readable(fields)
    if shape is None or readable is None:
        return NO_CHAIN
    links = Links(key)
    whole = 0
    try:
        shape(links, readable, model)
    except (Full, ValueError, TypeError, OverflowError, RecursionError, msgspec.MsgspecError):
        whole = sum(map(len, readable.values()))
    return Chain(tuple(links.links), tuple(links.ends), max(links.size, whole))


def _readable(fields: Fields) -> Fields | None:
    """The fields that make the prompt, as far as it can be decoded in a few milliseconds."""
    prompt = {name: shrunk(fields[name]) for name in (*PROMPT, "raw") if name in fields}
    large = [raw for raw in prompt.values() if len(raw) > LARGE]
    if sum(map(len, large)) > MOST_JSON:
        return None
    values = sum(raw.count(b"[") + raw.count(b"{") for raw in large)
    commas = sum(raw.count(b",") for raw in large if len(raw) > 4 * LARGE)
    return prompt if values <= MOST_VALUES and commas <= MOST_COMMAS else None


def _field(fields: Fields, name: str) -> Json:
    raw = fields.get(name)
    return None if raw is None else decode(raw)


def _list(fields: Fields, name: str) -> list[Any]:
    value = _field(fields, name)
    if not isinstance(value, list):
        raise TypeError
    return value


def _without_ids(value: Json) -> Json:
    if isinstance(value, dict):
        return {k: _without_ids(v) for k, v in value.items() if k not in IDS}
    return [_without_ids(v) for v in value] if isinstance(value, list) else value


def _without_hints(value: Json) -> Json:
    if isinstance(value, dict):
        return {k: _without_hints(v) for k, v in value.items() if k != "cache_control"}
    return [_without_hints(v) for v in value] if isinstance(value, list) else value


# -- parts of a prompt -------------------------------------------------------------------------


def _head(links: Links, fields: Fields, model: str, system: Json) -> None:
    """Tools and system prompt. The model's name is hashed and counts for nothing."""
    links.item(b"m", utf8(model), 0)
    for name in HEAD:
        raw = fields.get(name, b"null")
        if raw not in NOTHING and (value := decode(raw)) not in (None, [], {}, ""):
            hinted = b"cache_control" in raw
            links.item(b"h" + name.encode(), encode(_without_hints(value) if hinted else value))
    if system:
        before = links.size
        links.open("system")
        # Without links of its own: a unit with the tools, on whichever side of it a template puts them.
        texts = list(_system_texts(system))
        for text in texts:
            links.item(b"s", utf8(text))
        if not texts:
            links.size = before
    if links.size:
        links.link()


def _system_texts(system: Json) -> Iterator[str]:
    for part in system if isinstance(system, list) else [system]:
        text = part.get("text") if isinstance(part, dict) else part
        if not isinstance(text, str):
            yield encode(_without_ids(part)).decode()
        elif text and not text.startswith(BILLING):
            yield text


def _message(links: Links, message: dict[str, Any]) -> None:
    content = message.get("content")
    if type(content) is str and len(message) == 2:
        links.say(message.get("role"), content)
        return
    links.open(message.get("role"))
    if content is not None:
        _content(links, content)
    _rest(links, message)
    links.link()


def _content(links: Links, content: Json) -> None:
    for part in links.each(content) if isinstance(content, list) else [content]:
        if isinstance(part, str):
            links.text(part)
        elif isinstance(part, dict):
            _part(links, part)
        else:
            raise TypeError


def _part(links: Links, part: dict[str, Any]) -> None:
    kind = part.get("type")
    if kind in TEXTS:
        text = part.get("text") or ""
        if not isinstance(text, str) or not text.startswith(BILLING):
            links.text(text)
    elif kind in IMAGES:
        _image(links, part.get("image_url") or part.get("source") or part)
    elif kind == "tool_use":
        _call(links, part.get("name"), part.get("input"))
    elif kind == "tool_result":
        links.item(b"r", b"")
        _content(links, part.get("content") or "")
    elif kind not in UNSEEN:
        links.opaque(b"o", encode(_without_ids(part)).decode())


def _image(links: Links, image: Json) -> None:
    if isinstance(image, dict):
        image = image.get("url") or image.get("data") or encode(_without_ids(image)).decode()
    if isinstance(image, str) and image.startswith("data:"):
        image = image[image.find(",", 0, SAMPLE) + 1 :]
    if not isinstance(image, str):
        raise TypeError
    links.opaque(b"i", image)


def _call(links: Links, name: Json, arguments: Json) -> None:
    """A tool call. Some clients send the arguments back spaced otherwise than they came."""
    if isinstance(arguments, str):
        try:
            arguments = msgspec.json.decode(arguments)
        except (msgspec.DecodeError, UnicodeEncodeError):
            links.item(b"a", utf8(arguments))
            arguments = None
    links.item(b"c", utf8(name) + b"\0" + encode(arguments))


def _rest(links: Links, message: dict[str, Any]) -> None:
    for name in ("name", "tool_name"):
        if value := message.get(name):
            links.item(b"n", utf8(value))
    for image in links.each(message.get("images")):
        _image(links, image)
    legacy = message.get("function_call")
    for call in (*links.each(message.get("tool_calls")), *([{"function": legacy}] if legacy else [])):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            raise TypeError
        _call(links, function.get("name"), function.get("arguments"))


def _tokens(links: Links, ids: list[Any]) -> None:
    """A prompt of token ids counts four bytes a token, which text does on average.

    Raises TypeError for a list of anything else: a batch of prompts, of which no one comes first.
    """
    links.blocks(array("I", ids).tobytes())


# -- the shapes of requests --------------------------------------------------------------------


def _chat(links: Links, fields: Fields, model: str) -> None:
    """OpenAI chat, Anthropic messages, Ollama chat: one conversation gives one chain on all of them."""
    messages = _list(fields, "messages")
    system = _field(fields, "system")
    if not system and messages and isinstance(messages[0], dict) and messages[0].get("role") in SYSTEM:
        system, messages = messages[0].get("content"), messages[1:]
    _head(links, fields, model, system)
    for message in messages:
        if not isinstance(message, dict):
            raise TypeError
        _message(links, message)


def _responses(links: Links, fields: Fields, model: str) -> None:
    given = _field(fields, "input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else _list(fields, "input")
    system = _field(fields, "instructions")
    if not system and items and isinstance(items[0], dict) and items[0].get("role") in SYSTEM:
        system, items = items[0].get("content"), items[1:]
    _head(links, fields, model, system)
    for item in items:
        if not isinstance(item, dict):
            raise TypeError
        _item(links, item)


def _item(links: Links, item: dict[str, Any]) -> None:
    kind = item.get("type", "message")
    if kind == "message":
        _message(links, {"role": item.get("role"), "content": item.get("content")})
    elif kind in ("function_call", "custom_tool_call"):
        links.open("assistant")
        _call(links, item.get("name"), item.get("arguments", item.get("input")))
        links.link()
    elif kind in ("function_call_output", "custom_tool_call_output"):
        links.open("tool")
        _content(links, item.get("output") or "")
        links.link()
    elif kind not in UNSEEN:
        links.open(kind)
        links.opaque(b"o", encode(_without_ids(item)).decode())
        links.link()


def _completions(links: Links, fields: Fields, model: str) -> None:
    prompt = _field(fields, "prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    _head(links, fields, model, None)
    links.item(b"p", b"")
    if isinstance(prompt, list):
        _tokens(links, prompt)
    else:
        links.blocks(utf8(prompt))
    if links.size:
        links.link()


def _generate(links: Links, fields: Fields, model: str) -> None:
    """Ollama puts prompt and system into the chat template, unless the client has done so itself."""
    if _field(fields, "raw") is True:
        _completions(links, fields, model)
        return
    _head(links, fields, model, _field(fields, "system"))
    if context := _field(fields, "context"):
        links.item(b"p", b"")
        _tokens(links, context)
        links.link()
    images = _field(fields, "images")
    message = {"role": "user", "content": _field(fields, "prompt"), "images": images}
    if message["content"] or images:
        _message(links, message)


SHAPES: Mapping[str, Callable[[Links, Fields, str], None]] = {
    "/v1/chat/completions": _chat,
    "/v1/completions": _completions,
    "/v1/messages": _chat,
    "/v1/responses": _responses,
    "/api/chat": _chat,
    "/api/generate": _generate,
}
