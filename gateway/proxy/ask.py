"""Understanding a request: what of its body decides where it goes, and the bytes to send on.

What is checked is what is sent. The body is decoded into an ordered map of raw values; unless something
has to be rewritten the client's own bytes go on, and otherwise every value but the rewritten one stays
byte for byte. A name that stands twice, or that equals a name we check except for case, is refused: Go
engines match names without case and take the last (Ollama 0.12 to 0.32), so the engine would run another
model than the one checked here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from json.decoder import JSONDecoder

import msgspec

from gateway.proxy.refusals import Refusal

CHECKED = ("model", "stream", "stream_options")


@dataclass(frozen=True, slots=True)
class Ask:
    model: str
    stream: bool
    body: bytes  # as the client sent it
    fields: Mapping[str, bytes]  # name -> raw JSON value, in the client's order

    def body_for(self, model: str) -> bytes:
        """The body with the engine's name of the model."""
        if model == self.model:
            return self.body
        return encode({**self.fields, "model": json.dumps(model, ensure_ascii=False).encode()})


def encode(fields: Mapping[str, bytes]) -> bytes:
    members = (json.dumps(k).encode("ascii") + b":" + v for k, v in fields.items())
    return b"{" + b",".join(members) + b"}"


def understand(body: bytes) -> Ask:
    """Raises Refusal (400) for what is not a JSON object with a model name."""
    fields = decode(body)
    for name in fields:
        if name not in CHECKED and name.casefold() in CHECKED:
            raise _bad(
                f"The field {name!r} must be written {name.casefold()!r}: engines disagree on its case."
            )
    if "model" not in fields:
        raise _bad(
            'The request names no model: add "model". GET /v1/models lists the names.', "model_required"
        )
    model = _text(fields["model"])
    if not model:
        raise _bad('"model" must be the name of a model, as text. GET /v1/models lists the names.')
    return Ask(model, fields.get("stream", b"").strip() == b"true", body, fields)


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
        raise _bad("The body is nested too deeply.") from None
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
        raise _bad("The body is nested too deeply.") from None
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
