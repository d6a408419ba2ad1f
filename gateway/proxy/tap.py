"""Watching a stream pass. Bytes in, facts out; the bytes themselves go on untouched and at once.

How this works. The tap cuts what it is fed into lines (LF, CRLF or CR, in any mixture and any split) and
lines into events. It keeps two facts: whether an event ended the generation, and whether everything fed so
far ends between two events. It never holds more than one event's data, and of a line or an event over
`MAX_EVENT` bytes it keeps only that it passed.
"""

from __future__ import annotations

from collections.abc import Callable

from gateway.proxy.apis import Framing

MAX_EVENT = 1024 * 1024


class Tap:
    def __init__(self, framing: Framing, ends: Callable[[bytes], bool]) -> None:
        self._ends = ends
        self._line = self._sse_line if framing is Framing.SSE else self._json_line
        self._partial = b""  # of a line whose end has not come yet
        self._data: list[bytes] = []  # of an event whose end has not come yet
        self._size = 0  # of that data, in bytes
        self._open = False  # inside an event
        self._cr = False  # the last byte was a CR: an LF that follows belongs to it
        self.finished = False

    @property
    def on_boundary(self) -> bool:
        return not self._partial and not self._open

    def feed(self, piece: bytes) -> None:
        if self._cr and piece[:1] == b"\n":
            piece = piece[1:]
        if not piece:
            return
        self._cr = piece.endswith(b"\r")
        lines = piece.splitlines()
        rest = b"" if piece.endswith((b"\n", b"\r")) else lines.pop()
        if lines and self._partial:
            lines[0] = self._partial + lines[0]
            self._partial = b""
        for line in lines:
            self._line(line)
        if rest and len(self._partial) <= MAX_EVENT:
            self._partial += rest

    def end(self) -> None:
        """The bytes are over. What lacks only its last line end is still whole, but nothing may follow it."""
        whole = self.on_boundary
        if self._partial:
            self._line(self._partial)
            self._partial = b""
        if self._data:
            self._sse_line(b"")
        self._open = not whole

    def _json_line(self, line: bytes) -> None:
        if line.strip():
            self._event(line)

    def _sse_line(self, line: bytes) -> None:
        if not line:
            if self._data and self._size <= MAX_EVENT:
                self._event(b"\n".join(self._data))
            self._data, self._size, self._open = [], 0, False
            return
        if line.startswith(b":"):  # a comment; engines send them alone, between events
            return
        self._open = True
        if line.startswith(b"data:"):
            value = line[5:]
            self._size += len(value)
            if self._size <= MAX_EVENT:
                self._data.append(value[1:] if value[:1] == b" " else value)

    def _event(self, data: bytes) -> None:
        if not self.finished and len(data) <= MAX_EVENT:
            self.finished = self._ends(data)
