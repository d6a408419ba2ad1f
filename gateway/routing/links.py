"""A chain of hashes in the making: what is written, link by link, and where it ends. Pure.

Nothing of what is written is kept. What is written is tagged, and lengths precede contents, so that no two
different prompts write the same bytes.

A chain holds no text, and no text can be had back from it. A short or well-known prompt could still be
guessed and compared, so where hashes leave the process (peers, a state file) they should be made with a
secret `key` of that deployment. SHA-256, begun with the key, cut to 64 of its 256 bits: so cut it cannot be
carried on without the key, and most processors compute it (0.16 ms for 220 kB; BLAKE2, the standard
library's own keyed hash, 0.28 ms). Python's `hash` is faster, and differs from process to process. With 64
bits a false match among 200,000 links is one in 10^14.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from struct import Struct
from typing import Any

import msgspec

Json = Any
"""A decoded value of any shape."""

BLOCK = 256
SIXTEENTH = 16
"""A text is cut into blocks of a sixteenth of all the prompt before them, and at least 256 bytes. So a match
ends at most 6 % too early, a megabyte has a hundred blocks, and in a long chat most messages are one."""
MESSAGE_BYTES = 20
"""What a chat template writes around a message, about 5 tokens."""
OPAQUE_BYTES = 2048
"""What an image counts for, about 512 tokens: small vision models make 256 to 1400 of one. The most that
another part which is no text counts for."""
WHOLE = 1 << 16
SAMPLE = 4096
STRETCH = WHOLE // 2
"""An image over 64 KiB is told by its length and sixteen samples: hashing megabytes holds up the loop."""
MOST_BYTES = 1 << 20
MOST_LINKS = 4096
MOST_PARTS = 4096
"""Here a chain ends, whatever else the prompt has: 1 MiB of text is past what engines at home can take."""


@dataclass(frozen=True, slots=True, repr=False)
class Chain:
    """The links of a prompt, first to last; `ends[i]` is where in the prompt link i ends, in bytes.

    Bytes are those of decoded text in UTF-8, with an allowance for what a template adds around a message.
    """

    links: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()
    size: int = 0  # of the whole prompt; more than the last end where the chain was cut short

    def __repr__(self) -> str:
        return f"<Chain of {len(self.links)} links, {self.size} bytes>"


_FIRST = Struct("<Q24x").unpack


class Full(Exception):
    """The chain is as long as it may get."""


class Links:
    """A chain in the making. `link` raises Full where it has to end."""

    __slots__ = ("ends", "hash", "links", "parts", "size")

    def __init__(self, key: bytes) -> None:
        self.hash = hashlib.sha256(b"%d:" % len(key) + key)
        self.links: list[int] = []
        self.ends: list[int] = []
        self.size = 0
        self.parts = 0

    def each(self, parts: Json) -> list[Json]:
        """The parts of a message, which must be a list or nothing."""
        if not isinstance(parts, list | None):
            raise TypeError
        self.parts += len(parts or ())
        if self.parts > MOST_PARTS:
            raise Full
        return parts or []

    def link(self) -> None:
        self.links.append(_FIRST(self.hash.copy().digest())[0])
        self.ends.append(self.size)
        if len(self.links) >= MOST_LINKS or self.size >= MOST_BYTES:
            raise Full

    def open(self, role: object) -> None:
        self.hash.update(ROLES.get(role) or b"M%s\0" % utf8(role))
        self.size += MESSAGE_BYTES

    def say(self, role: object, text: str) -> None:
        """A whole message of text alone. The bytes are those of `open`, `text` and `link`, in one go."""
        data = text.encode("utf-8", "surrogatepass")
        size = len(data)
        if 0 < size <= max(BLOCK, (self.size + MESSAGE_BYTES) // SIXTEENTH) and role in ROLES:
            self.hash.update(b"%bt%d:%b" % (ROLES[role], size, data))
            self.size += MESSAGE_BYTES + size
        else:
            self.open(role)
            self.text(text)
        self.link()

    def text(self, text: str) -> None:
        if text:
            self.blocks(utf8(text))

    def blocks(self, data: bytes) -> None:
        """A link for each block that another follows; what comes after the text closes the rest."""
        at, size = 0, len(data)
        while size - at > (block := max(BLOCK, self.size // SIXTEENTH)):
            self.hash.update(b"T" + data[at : at + block])
            self.size += block
            at += block
            self.link()
        self.hash.update(b"t%d:" % (size - at) + data[at:])
        self.size += size - at

    def item(self, tag: bytes, data: bytes, counts: int | None = None) -> None:
        """Something that is not told apart further. Counts as its bytes unless told otherwise."""
        if len(data) > MOST_BYTES:
            raise Full
        self.hash.update(b"%s%d:" % (tag, len(data)) + data)
        self.size += len(data) if counts is None else counts

    def opaque(self, tag: bytes, data: str) -> None:
        counts = OPAQUE_BYTES if tag == b"i" else min(len(data), OPAQUE_BYTES)
        self.item(tag, sampled(utf8(data)), counts)


ROLES: dict[Json, bytes] = {
    role: b"M%s\0" % known.encode()
    for role, known in (
        ("user", "user"),
        ("assistant", "assistant"),
        ("tool", "tool"),
        ("function", "tool"),
        *((role, "system") for role in ("system", "developer")),
    )
}


def sampled(data: bytes, start: int = 0, end: int | None = None) -> bytes:
    """All of what is short, else samples and the length."""
    end = len(data) if end is None else end
    size = end - start
    if size <= WHOLE:
        return data[start:end]
    samples = [data[at : at + SAMPLE] for at in range(start, end - SAMPLE, size // SIXTEENTH)]
    return b"".join((*samples, data[end - SAMPLE : end], b":%d" % size))


# -- decoding ----------------------------------------------------------------------------------


def utf8(text: object) -> bytes:
    """Raises TypeError for what is no text. Lone surrogates, which JSON may hold, pass."""
    if not isinstance(text, str):
        raise TypeError
    return text.encode("utf-8", "surrogatepass")


def decode(raw: bytes) -> Json:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):  # lone surrogates, NaN
        return json.loads(raw.decode("utf-8", "surrogateescape"))


def encode(value: object) -> bytes:
    try:
        return msgspec.json.encode(value)
    except (msgspec.EncodeError, UnicodeEncodeError, ValueError):
        return json.dumps(value).encode()


def shrunk(raw: bytes) -> bytes:
    """JSON with each long base64 text cut down to its samples, found without looking at every byte.

    A text over 64 KiB leaves a stretch of 32 KiB at a multiple of that without a quote.
    """
    pieces: list[bytes] = []
    done = at = 0
    while (at := at + STRETCH) < len(raw):
        if raw.find(b'"', at, at + STRETCH) >= 0:
            continue
        start = max(raw.rfind(b'"', 0, at) + 1, done)
        end = raw.find(b'"', at)
        if end < 0:
            break
        if end - start > WHOLE:
            samples = sampled(raw, start, end)
            if not any(c in samples for c in (b" ", b"\\", b"\n")):
                pieces += (raw[done:start], samples)
                done = end
        at = end - end % STRETCH
    return b"".join((*pieces, raw[done:])) if pieces else raw
