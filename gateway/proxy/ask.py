"""Understanding a request: what of its body decides where it goes, and the bytes to send on.

What is checked is what is sent. The body is decoded into an ordered map of raw values; unless something
has to be rewritten the client's own bytes go on, and otherwise every value but the rewritten one stays
byte for byte. A name that stands twice, or that equals a name we check except for case, is refused: Go
engines match names without case and take the last (Ollama 0.12 to 0.32), so the engine would run another
model than the one checked here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from json.decoder import JSONDecoder

import msgspec

from gateway.config_keys import ANONYMOUS
from gateway.proxy.headers import Header, value
from gateway.proxy.refusals import Refusal
from gateway.proxy.routes import CHAT, Route

CHECKED = ("model", "stream", "stream_options")
OFF = (b"false", b"null")


@dataclass(frozen=True, slots=True)
class Ask:
    route: Route
    model: str
    stream: bool
    body: bytes  # as the client sent it
    fields: Mapping[str, bytes]  # name -> raw JSON value, in the client's order
    named_by: str = "model"  # the field that names the model
    prompt_tokens: int = 0  # an estimate, see `prompt_tokens`
    key: str = ANONYMOUS  # whose turn it is: the name of its key; without keys see `key_of`
    weight: int = 1  # the share of that key where requests wait
    usage_options: bytes | None = (
        None  # the `stream_options` that ask for usage; None: as the client sent them
    )

    @property
    def adds_usage(self) -> bool:
        """Does the reply get a chunk that the client did not ask for, and must not see?"""
        return self.usage_options is not None

    @property
    def control(self) -> bool:
        """Ollama loads or unloads a model on a request without a prompt, and generates nothing."""
        wanted = {"/api/chat": "messages", "/api/generate": "prompt"}.get(self.route.path)
        return wanted is not None and self.fields.get(wanted, b"null").strip() in (b"null", b"[]", b'""')

    def body_for(self, model: str) -> bytes:
        """The body with the engine's name of the model, and the wish for usage that a stream lacks."""
        changed: dict[str, bytes] = {}
        if model != self.model:
            changed[self.named_by] = json.dumps(model, ensure_ascii=False).encode()
        if self.usage_options is not None:
            changed["stream_options"] = self.usage_options
        return encode({**self.fields, **changed}) if changed else self.body


def encode(fields: Mapping[str, bytes]) -> bytes:
    parts = [part for k, v in fields.items() for part in (b",", json.dumps(k).encode("ascii"), b":", v)]
    return b"".join((b"{", *parts[1:], b"}"))  # one copy of what may be megabytes


def understand(
    body: bytes,
    route: Route = CHAT,
    headers: Sequence[Header] = (),
    fields: Mapping[str, bytes] | None = None,
) -> Ask:
    """`fields`: the decoded body, where that was done already.

    Raises Refusal: 400 for what is not a JSON object with a model name, 415 for what is compressed.
    """
    encoding = (value(headers, b"content-encoding") or b"").strip().lower()
    if encoding not in (b"", b"identity"):  # no engine reads it either
        raise Refusal(415, "encoded_body", "Send the body as plain JSON, without Content-Encoding.")
    fields = decode(body) if fields is None else fields
    checked = {*CHECKED, *route.named_by}
    for name in fields:
        if name not in checked and name.casefold() in checked:
            raise _bad(
                f"The field {name!r} must be written {name.casefold()!r}: engines disagree on its case."
            )
    named_by, model = _model(fields, route)
    raw = fields.get("stream", b"").strip()
    # Ollama streams unless told not to; `null` is not telling.
    stream = route.streams is not None and (raw != b"false" if route.streams else raw == b"true")
    options = _usage_options(fields.get("stream_options", b"null")) if stream and route.usage_option else None
    return Ask(
        route, model, stream, body, fields, named_by, prompt_tokens(fields), key_of(headers),
        usage_options=options,
    )  # fmt: skip


def _usage_options(raw: bytes) -> bytes | None:
    """The options with `include_usage` on, each other one byte for byte. None: they are not ours to change.

    That is so where the client asks for usage itself, and where an engine has to judge what it wrote.
    Turned off is the same as not asked, as it is for every recorded engine: the client sees no usage, and
    the request is counted all the same.
    """
    if raw.strip() == b"null":
        return b'{"include_usage":true}'
    try:
        options = decode(raw)
    except Refusal:
        return None
    names = [name for name in options if name.casefold() == "include_usage"]
    if names not in ([], ["include_usage"]) or options.get("include_usage", b"null").strip() not in OFF:
        return None
    return encode({**options, "include_usage": b"true"})


def _model(fields: Mapping[str, bytes], route: Route) -> tuple[str, str]:
    given = [name for name in route.named_by if name in fields]
    if not given:
        raise _bad(
            'The request names no model: add "model". GET /v1/models lists the names.', "model_required"
        )
    for name in given:
        if model := _text(fields[name]):
            return name, model
    raise _bad(f'"{given[0]}" must be the name of a model, as text. GET /v1/models lists the names.')


def key_of(headers: Sequence[Header]) -> str:
    """A short name of the credential a request presents, from which the credential cannot be had back."""
    given = credentials(headers)
    return hashlib.sha256(given[0]).hexdigest()[:12] if given else ANONYMOUS


def credentials(headers: Sequence[Header]) -> list[bytes]:
    """The keys a request presents: as a bearer, in `x-api-key`, or in both, as some clients do."""
    bearer = value(headers, b"authorization") or b""
    bearer = bearer[7:] if bearer[:7].lower() == b"bearer " else bearer
    return [c for c in (bearer.strip(), (value(headers, b"x-api-key") or b"").strip()) if c]


# -- how long the prompt is --------------------------------------------------------------------

PROMPT = ("messages", "prompt", "input", "system", "tools", "instructions", "suffix", "template")
BYTES_PER_TOKEN = 4  # of decoded text: 2.8 to 6.2 in several languages, code and tokenizers
BLOCK = 4096
BLOCKS = 64
"""At most so many blocks are looked at, evenly spread: 256 KiB, under 1 ms, whatever the size of the body."""


def prompt_tokens(fields: Mapping[str, bytes]) -> int:
    """About how many tokens the prompt has, without decoding it.

    What JSON adds around a message stands for what a chat template adds. Images are left out: a block of
    letters and digits without a blank, a quote or a backslash is base64 and no text.
    """
    return round(sum(_text_bytes(fields[name]) for name in PROMPT if name in fields) / BYTES_PER_TOKEN)


def _text_bytes(raw: bytes) -> float:
    if len(raw) <= BLOCK * BLOCKS:
        return sum(_text_of(raw[at : at + BLOCK]) for at in range(0, len(raw), BLOCK))
    # Both ends count for themselves alone: what is said beside an image stands there.
    ends = _text_of(raw[:BLOCK]) + _text_of(raw[-BLOCK:])
    inner = len(raw) - 2 * BLOCK
    sample = [raw[at : at + BLOCK] for at in range(BLOCK, len(raw) - 2 * BLOCK, inner // BLOCKS)]
    return ends + inner * sum(map(_text_of, sample)) / (BLOCK * len(sample))


def _text_of(block: bytes) -> int:
    return 0 if _base64(block) else len(block) - _escaping(block)


def _base64(block: bytes) -> bool:
    return (
        len(block) == BLOCK
        and b" " not in block
        and b'"' not in block
        and b"\\" not in block
        and b"A" in block
        and b"z" in block
        and b"7" in block
        and block.isascii()
    )


def _escaping(block: bytes) -> int:
    """Bytes that are there only because of JSON's escapes."""
    escapes = block.count(b"\\")
    if not escapes:
        return 0
    units = block.count(b"\\u")  # 6 bytes for a character that has 3, or 2 below U+0800
    return 3 * units + block.count(b"\\u0") + (escapes - units)


# -- how long the answer may become ------------------------------------------------------------

MOST = ("max_tokens", "max_completion_tokens", "max_output_tokens")


def may_generate(ask: Ask) -> int | None:
    """The most tokens that the request lets an engine generate. None: it sets no limit."""
    if ask.route.streams is None:
        return 0
    raw = [ask.fields[name] for name in MOST if name in ask.fields]
    if ask.route.native and (options := ask.fields.get("options")) is not None:
        raw.append(_member(options, "num_predict"))
    limits = [limit for r in raw if (limit := _count(r)) is not None]
    if not limits:
        return None
    answers = max(_count(ask.fields.get(name, b"1")) or 1 for name in ("n", "best_of"))
    return max(limits) * answers


def _count(raw: bytes) -> int | None:
    try:
        return max(0, int(raw)) if len(raw) < 20 and not raw.startswith(b"-") else None
    except ValueError:
        return None


def _member(raw: bytes, name: str) -> bytes:
    try:
        return bytes(_raw_members.decode(raw).get(name, b""))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return b""  # the engine will say what is wrong with it


_raw_members = msgspec.json.Decoder(dict[str, msgspec.Raw])

# -- reading it --------------------------------------------------------------------------------


def _text(raw: bytes) -> str | None:
    try:
        value = json.loads(raw)
        if isinstance(value, str):
            value.encode()  # a lone surrogate names no model
            return value
    except ValueError:
        pass
    return None


def decode(body: bytes) -> dict[str, bytes]:
    """The top-level members of a JSON object, each value's bytes untouched. Raises Refusal (400)."""
    names: list[str] = []

    def name(_kind: type, value: object) -> str:
        names.append(str(value))
        return _Name(value)

    try:
        members = msgspec.json.decode(body, type=dict[_Name, msgspec.Raw], dec_hook=name)
        fields = {str(k): bytes(v) for k, v in members.items()}
    except msgspec.ValidationError as e:
        raise _bad(f"The body must be a JSON object: {e}.") from None
    except RecursionError:
        raise _bad(
            "The body is nested too deeply to be read: send fewer lists and objects in each other."
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as e:
        # Lone surrogates and NaN are the engine's business, and msgspec refuses them.
        fields, names = _decode_leniently(body, str(e))
    if len(names) != len(fields):
        repeated = next(n for n in names if names.count(n) > 1)
        raise _bad(f"The field {repeated!r} stands in the body twice: send it once.")
    return fields


class _Name(str):
    __slots__ = ()


def _decode_leniently(body: bytes, reason: str) -> tuple[dict[str, bytes], list[str]]:
    if not body.strip():
        raise _bad("The body is empty: send a JSON object.")
    text = body.decode("utf-8", "surrogateescape")
    fields: dict[str, bytes] = {}
    names: list[str] = []
    try:
        at = _expect(text, 0, "{")
        while (at := _blank(text, at)) < len(text) and text[at] != "}":
            if names:
                at = _expect(text, at, ",")
            name, at = _VALUE.raw_decode(text, _expect(text, at, '"') - 1)
            start = _blank(text, _expect(text, at, ":"))
            _, at = _VALUE.raw_decode(text, start)
            names.append(name)
            fields[name] = text[start:at].encode("utf-8", "surrogateescape")
        if _blank(text, _expect(text, at, "}")) != len(text):
            raise ValueError("bytes after the object")
    except RecursionError:
        raise _bad(
            "The body is nested too deeply to be read: send fewer lists and objects in each other."
        ) from None
    except (ValueError, StopIteration, IndexError):
        raise _bad(f"The body is not JSON: {reason}.") from None
    return fields, names


_VALUE = JSONDecoder()


def _blank(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at


def _expect(text: str, at: int, char: str) -> int:
    at = _blank(text, at)
    if text[at : at + 1] != char:
        raise ValueError(f"{char!r} expected at {at}")
    return at + 1


def _bad(message: str, code: str = "invalid_request") -> Refusal:
    return Refusal(400, code, message)
