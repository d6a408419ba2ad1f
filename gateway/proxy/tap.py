"""Watching a reply pass. Bytes in, bytes out at once, and at the end what the reply told: a `Reading`.

How this works. `Stream` cuts what it is fed into lines (LF, CRLF or CR, in any mixture and any split) and
lines into events. Only events that may hold something are decoded. It never holds more than one event's
data, and of a line or an event over `MAX_EVENT` bytes it keeps only that it passed.

Nothing waits, with one exception. Where Pharos asked for usage on behalf of a client that did not, the
reply has one chunk more: no choices, and the usage. Every recorded engine sends it after the chunk with
the finish. So from the finish on an event that is cut by the end of a read is held back for as long as
it can still be that chunk, and the chunk itself is left out.

`Whole` collects a plain reply, up to `MAX_WHOLE` bytes, and reads it when it is over.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from engines.usage import Api, Usage, marks, merge, read_usage
from gateway.proxy.apis import Family, Framing
from gateway.proxy.done import Done

MAX_EVENT = 1024 * 1024
MAX_WHOLE = 4 * 1024 * 1024
MAX_HELD = 16 * 1024
"""A usage chunk has under 1 KiB in every recording."""

BOM = b"\xef\xbb\xbf"
NOTHING: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Reading:
    """What a reply told."""

    finished: bool = False  # the engine ended the generation, or gave it up, in words
    first_token: bool = False  # a stream: something generated came, and not only a role or a comment
    usage: Usage = field(default_factory=Usage)  # None in it is unknown

    def note(self, done: Done) -> None:
        """Write down what is known of the request now."""
        done.finished = self.finished
        done.prompt_tokens = self.usage.prompt_tokens
        done.completion_tokens = self.usage.completion_tokens
        done.cached_tokens = self.usage.cached_tokens
        done.prefill_s = self.usage.prefill_s
        done.decode_s = self.usage.decode_s
        done.load_s = self.usage.load_s


class Tap:
    """What the two kinds of reply have in common."""

    finished = False
    first_token = False
    strips = False  # a chunk is to be left out, so the engine's length is not the client's

    def __init__(self, api: Api | None, untrue: frozenset[str]) -> None:
        self._api, self._untrue = api, untrue
        self._usage: Usage | None = None

    @property
    def on_boundary(self) -> bool:
        """May an event of our own follow what the client has got?"""
        return False

    @property
    def reading(self) -> Reading:
        return Reading(self.finished, self.first_token, self._usage or Usage())

    def feed(self, piece: bytes) -> bytes:
        """What goes to the client now. Raises nothing, whatever the bytes."""
        raise NotImplementedError

    def end(self) -> bytes:
        """The bytes are over. What of them was held back and goes to the client."""
        raise NotImplementedError


class Whole(Tap):
    """A plain reply: JSON that says everything at its end."""

    def __init__(self, api: Api | None, untrue: frozenset[str] = NOTHING) -> None:
        super().__init__(api, untrue)
        self._pieces: list[bytes] = []
        self._size = 0

    def feed(self, piece: bytes) -> bytes:
        self._size += len(piece)
        if self._size <= MAX_WHOLE:
            self._pieces.append(piece)
        else:
            self._pieces = []
        return piece

    def end(self) -> bytes:
        self.finished = True
        if self._pieces and self._api is not None:
            self._usage = read_usage(b"".join(self._pieces).removeprefix(BOM), self._api, self._untrue)
        self._pieces = []
        return b""


class Stream(Tap):
    """A streamed reply. `strip`: leave out the chunk that was only sent because Pharos asked for it."""

    def __init__(
        self,
        framing: Framing,
        family: Family,
        api: Api | None = None,
        untrue: frozenset[str] = NOTHING,
        *,
        strip: bool = False,
    ) -> None:
        super().__init__(api, untrue)
        self._may_end, self._ends, self._bears = family.may_end, family.ends, family.bears
        self._marks = () if api is None else marks(api, untrue)
        self._sse = framing is Framing.SSE
        self._line = self._sse_line if self._sse else self._json_line
        self.strips = strip and self._sse
        self._stripping = self.strips  # the chunk has not come yet
        self._calm = False  # between events, and all that can come of interest is the finish or usage
        self._gaps = (b"\n\n", b"\r\n\r\n") if self._sse else (b"\n",)  # what only ends an event
        self._partial: list[bytes] = []  # of a line whose end has not come yet
        self._partial_size = 0
        self._data: list[bytes] = []  # of an event whose end has not come yet
        self._size = 0  # of that data, in bytes
        self._open = False  # inside an event
        self._began = False  # a line was read: a BOM is none any more
        self._cr = False  # the last byte was a CR: an LF that follows belongs to it
        self._held = b""  # of the event that may be the chunk, from its first byte on
        self._passing = False  # the event at hand is not the chunk, and some of it has gone
        self._extra = False  # the last event was the chunk
        self._dropped_cr = False  # what ended with that CR was left out

    @property
    def on_boundary(self) -> bool:
        return bool(self._held) or (not self._partial and not self._open)

    def feed(self, piece: bytes) -> bytes:
        if self._calm and piece.endswith(self._gaps) and not self._may_tell(piece):
            return piece
        passed = self._read(piece)
        self._calm = self.first_token and not self._cr and not self._partial and not self._open
        return passed

    def _may_tell(self, piece: bytes) -> bool:
        """Most pieces are whole events with a token each: that nothing else is in them is cheap to see."""
        for mark in self._marks:
            if mark in piece:
                return True
        return self._may_end(piece)

    def _read(self, piece: bytes) -> bytes:
        if not piece:
            return b""
        lead = b""
        if self._cr and piece[:1] == b"\n":
            lead, piece = self._second_half(), piece[1:]
        self._cr = self._dropped_cr = False
        if not piece:
            return lead
        if self._stripping and self.finished:
            return lead + self._weigh(piece)
        return lead + self._pass(piece)

    def _pass(self, piece: bytes) -> bytes:
        """All of it goes on, up to the finish where something is to be left out after it."""
        self._cr = piece.endswith(b"\r")
        lines = piece.splitlines()
        rest = b"" if piece.endswith((b"\n", b"\r")) else lines.pop()
        for n, line in enumerate(lines, 1):
            if self._partial:
                self._complete(line)
            else:
                self._line(line)
            if self._stripping and self.finished:
                raw = piece.splitlines(keepends=True)
                return b"".join(raw[:n]) + self._weigh(b"".join(raw[n:]))
        if rest:
            self._keep(rest)
        return piece

    def end(self) -> bytes:
        """What lacks only its last line end is still whole, but nothing may follow it."""
        whole = self.on_boundary
        if self._partial:
            self._complete(b"")
        if self._data:
            self._sse_line(b"")
        held, self._held = self._held, b""
        passed = b"" if self._extra else held
        self._open = not whole or bool(passed)
        return passed

    # -- lines and events ----------------------------------------------------------------------

    def _keep(self, rest: bytes) -> None:
        """Of a line over the limit only its beginning is kept."""
        self._partial_size += len(rest)
        if self._partial_size <= MAX_EVENT or not self._partial:
            self._partial.append(rest)

    def _complete(self, last: bytes) -> None:
        """The line that began in earlier pieces ends with `last`. One over the limit is not read."""
        size, self._partial_size = self._partial_size + len(last), 0
        line, self._partial = b"".join([*self._partial, last]), []
        if size <= MAX_EVENT:
            self._line(line)
        elif self._sse and line[:1] != b":":
            self._open, self._size = True, MAX_EVENT + 1

    def _json_line(self, line: bytes) -> None:
        if not self._began:
            self._began, line = True, line.removeprefix(BOM)
        if line.strip():
            self._event(line)

    def _sse_line(self, line: bytes) -> None:
        if not line:
            if self._data and self._size <= MAX_EVENT:
                self._event(self._data[0] if len(self._data) == 1 else b"\n".join(self._data))
            if self._open:
                self._data, self._size, self._open = [], 0, False
            return
        if not self._began:
            self._began, line = True, line.removeprefix(BOM)
        if line[:1] == b":":  # a comment; engines send them alone, between events
            return
        self._open = True
        if line[:5] == b"data:":
            value = line[6:] if line[5:6] == b" " else line[5:]
            self._size += len(value)
            if self._size <= MAX_EVENT:
                self._data.append(value)

    def _event(self, data: bytes) -> None:
        if len(data) > MAX_EVENT:
            return
        if not self.finished:
            self.finished = self._ends(data)
        elif self._stripping:
            self._extra = only_usage(data)
        if not self.first_token:
            self.first_token = self._bears(data)
        for mark in self._marks:
            if mark in data:
                assert self._api is not None
                self._usage = merge(self._usage, read_usage(data, self._api, self._untrue))
                break

    # -- the chunk that nobody but us asked for ------------------------------------------------

    def _second_half(self) -> bytes:
        """An LF that belongs to the CR before it goes where that went."""
        if self._held:
            self._held += b"\n"
            return b""
        return b"" if self._dropped_cr else b"\n"

    def _weigh(self, piece: bytes) -> bytes:
        out: list[bytes] = []
        lines = iter(piece.splitlines(keepends=True))
        for raw in lines:
            out.append(self._weigh_line(raw))
            if not self._stripping:
                out.append(self._read(b"".join(lines)))
                break
        return b"".join(out)

    def _weigh_line(self, raw: bytes) -> bytes:
        """What of the line, and of those held before it, goes on."""
        line = raw.rstrip(b"\r\n")
        whole = len(line) < len(raw)
        self._cr = raw.endswith(b"\r")
        if not whole:
            self._keep(raw)
        elif self._partial:
            self._complete(line)
        else:
            self._line(line)
        held, self._held = self._held + raw, b""
        extra, self._extra = self._extra and not self._passing, False
        if extra:
            self._stripping, self._dropped_cr = False, self._cr
            return b""
        over = whole and not self._open  # between events again
        if not over and not self._passing and _may_be_usage(held):
            self._held = held
            return b""
        self._passing = not over
        return held


def _may_be_usage(held: bytes) -> bool:
    """Can what begins like this still become an event without choices?"""
    if held[:1] == b":" or len(held) > MAX_HELD or b'"choices":[{' in held or b'"choices": [{' in held:
        return False
    _, data, value = held.partition(b"data:")
    return not data or value.lstrip(b" ")[:1] in (b"", b"{")


class _Chunk(msgspec.Struct):
    choices: list[msgspec.Raw]
    usage: dict[str, msgspec.Raw]


_chunk = msgspec.json.Decoder(_Chunk)


def only_usage(data: bytes) -> bool:
    """Is this the chunk that `include_usage` adds to a stream: an empty list of choices, and the usage?"""
    try:
        return not _chunk.decode(data).choices
    except (msgspec.DecodeError, RecursionError):
        return False
