"""Reading a large body in short steps, so that nobody else waits for it.

How this works. msgspec checks 1 to 2 GB/s and lets nothing else run meanwhile, threads included: 20 MiB hold
the loop 10 ms and more. So the body is cut, and each slice is checked alone, as a small document of its own:
in front of it goes what is open where it begins, behind it what closes that again. A slice that begins in the
third message's text is checked as `{"":[{"":"` + slice + `"}]}`.

Cuts are made where that changes nothing: after a comma, or between two characters of a string. All slices
are valid then if, and only if, the body is. Between the cuts only brackets and the ends of strings are looked
for, at the speed of `bytes.find`.

Rule: this module never refuses. Whatever it does not understand at once (a fault, a lone surrogate, a name
that stands twice, deep nesting, nothing but brackets) it leaves to `ask.decode`, which takes it in one go.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from io import BytesIO

import msgspec

AT_ONCE = 1 << 20  # bytes; half a millisecond
SLICE = 256 * 1024
TOKENS_A_STEP = 1000  # brackets, strings and escaped quotes: about half a millisecond
MOST_TOKENS = 2_000_000  # 20 MiB of source code have half as many; a body of brackets alone has more
MOST_NESTED = 64

_IN_TOP = re.compile(rb'["\[\]{},:]')
_BELOW = re.compile(rb'["\[\]{}]')
_COMMA = re.compile(rb"[ \t\r\n]{0,64},")
_HIGH_SURROGATE = re.compile(rb"\\u[dD][89abAB]")
_BLANK = re.compile(rb"[ \t\r\n]*")
_BLANKS = b" \t\r\n"
_QUOTE, _BACKSLASH = ord('"'), ord("\\")
_OPEN = {ord("}"): b'{"":', ord("]"): b"["}
_CLOSER = {ord("{"): ord("}"), ord("["): ord("]")}


class _Leave(Exception):
    """Not to be read in slices."""


def read(
    body: bytes, size: int = SLICE, most: int = MOST_TOKENS
) -> Generator[None, None, dict[str, bytes] | None]:
    """What `ask.decode` returns, with a `yield` after each step; None: let `ask.decode` read it."""
    try:
        return (yield from _Reader(body, size, most).run())
    except (_Leave, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


class _Reader:
    def __init__(self, body: bytes, size: int, most: int) -> None:
        self.body, self.size = body, size
        self._tokens_left = most
        self.fields: dict[str, bytes] = {}
        self._nested: list[int] = []  # what closes each open object or list
        self._cut = 0  # where the slice begins
        self._before = b""  # what goes in front of it
        self._name: bytes | None = None  # of the member that is open, as JSON
        self._value_at: int | None = None

    def run(self) -> Generator[None, None, dict[str, bytes]]:
        body, at = self.body, 0
        while True:
            found = (_IN_TOP if len(self._nested) == 1 else _BELOW).search(body, at, at + self.size)
            if found is None:
                at = self._cut_in_numbers(at)
                yield
                continue
            at, token = found.end(), body[found.start()]
            if not self._nested and token not in _CLOSER:
                raise _Leave  # it is no object
            if token == _QUOTE:
                at = yield from self._string(found.start())
            elif token in _CLOSER:
                self._open(token)
            elif token in _OPEN:
                yield from self._close(token, found.start())
                if not self._nested:
                    break
            else:
                yield from self._between(token, found.start())
            if at - self._cut >= self.size and (comma := _COMMA.match(body, at)):
                self._cut_after(comma.end())
                yield
            if self._step_is_over():
                yield
        self._check(body[self._cut :])
        return self.fields

    def _step_is_over(self) -> bool:
        """After each token. Raises _Leave after too many."""
        self._tokens_left -= 1
        if not self._tokens_left:
            raise _Leave
        return self._tokens_left % TOKENS_A_STEP == 0

    # -- what the body says --------------------------------------------------------------------

    def _open(self, token: int) -> None:
        if len(self._nested) >= MOST_NESTED or (not self._nested and token != ord("{")):
            raise _Leave
        self._nested.append(_CLOSER[token])

    def _close(self, token: int, at: int) -> Generator[None, None, None]:
        if not self._nested or self._nested.pop() != token:
            raise _Leave
        if not self._nested:
            yield from self._member(at)

    def _between(self, token: int, at: int) -> Generator[None, None, None]:
        """A comma or a colon of the body itself."""
        if token == ord(","):
            yield from self._member(at)
        elif self._value_at is None:
            self._value_at = at + 1

    def _member(self, end: int) -> Generator[None, None, None]:
        if self._name is None and self._value_at is None:
            return
        if self._name is None or self._value_at is None:
            raise _Leave
        name = msgspec.json.decode(self._name, type=str)
        if name in self.fields:
            raise _Leave
        self.fields[name] = yield from _copied(self.body, self._value_at, end)
        self._name = self._value_at = None

    def _string(self, start: int) -> Generator[None, None, int]:
        """Where the string that begins at `start` is over."""
        body, end = self.body, start
        while True:
            end = body.find(b'"', end + 1)
            if end < 0:
                raise _Leave
            if not self._escaped(end):
                break
            if self._step_is_over():
                yield
        if end - start > self.size:
            self._must_be_value(start)
            while end - self._cut > self.size:
                self._cut_in_string(max(self._cut, start + 1) + self.size, start, end)
                yield
        if len(self._nested) == 1 and self._value_at is None:
            if self._name is not None:
                raise _Leave
            self._name = body[start : end + 1]
        return end + 1

    def _escaped(self, at: int) -> bool:
        before = at
        while self.body[before - 1] == _BACKSLASH:
            before -= 1
            if at - before > self.size:
                raise _Leave
        return (at - before) % 2 == 1

    def _must_be_value(self, start: int) -> None:
        before = self.body[max(0, start - 16) : start].rstrip(_BLANKS)[-1:]
        if not (before == b":" or (before in (b"[", b",") and self._nested[-1:] == [ord("]")])):
            raise _Leave

    # -- cuts ----------------------------------------------------------------------------------

    def _cut_in_numbers(self, at: int) -> int:
        """Nothing but numbers, words and blanks from here on, for the length of a slice."""
        end = at + self.size
        if end >= len(self.body) or len(self._nested) < 2:
            raise _Leave
        comma = self.body.rfind(b",", at, end)
        if comma < 0:
            raise _Leave
        self._cut_after(comma + 1)
        return end

    def _cut_after(self, at: int) -> None:
        """`at` follows a comma. What stood before it, or comes behind it, is there: a 0 stands for it."""
        within = _OPEN[self._nested[-1]]
        missing = b"0" if within == b"[" else b'"":0'
        self._check(self.body[self._cut : at], missing)
        self._next(at, within + b"0,")

    def _cut_in_string(self, at: int, start: int, end: int) -> None:
        at = _between_characters(self.body, min(at, end))
        if at <= max(self._cut, start + 1):
            raise _Leave
        self._check(self.body[self._cut : at], b'"')
        self._next(at, _OPEN[self._nested[-1]] + b'"')

    def _next(self, at: int, within: bytes) -> None:
        self._cut = at
        self._before = b"".join(_OPEN[closer] for closer in self._nested[:-1]) + within

    def _check(self, piece: bytes, behind: bytes = b"") -> None:
        """Raises msgspec.DecodeError."""
        closing = bytes(reversed(self._nested))
        msgspec.json.decode(b"".join((self._before, piece, behind, closing)), type=msgspec.Raw)


def _copied(body: bytes, at: int, end: int) -> Generator[None, None, bytes]:
    """Fresh memory for 20 MiB takes the kernel several ms, so it is asked for bit by bit. The last step
    copies nothing."""
    if end - at <= AT_ONCE:
        return body[at:end].strip(_BLANKS)
    at = _BLANK.match(body, at, end).end()  # type: ignore[union-attr]  # it always matches
    tail = body[max(at, end - 64) : end]
    end -= len(tail) - len(tail.rstrip(_BLANKS))
    copy, view = BytesIO(), memoryview(body)
    for start in range(at, end, AT_ONCE):
        copy.write(view[start : min(start + AT_ONCE, end)])
        yield
    return copy.getvalue().rstrip(_BLANKS)


def _between_characters(body: bytes, at: int) -> int:
    """`at` or a little before, so that no escape, pair of surrogates or UTF-8 character is torn.

    One that is torn all the same makes a slice that is not valid, so nothing wrong comes of it.
    """
    escape = body.rfind(b"\\", at - 12, at)
    if escape < 0:
        while body[at] & 0xC0 == 0x80:
            at -= 1
        return at
    while body[escape - 1] == _BACKSLASH:
        escape -= 1
    return escape - 6 if _HIGH_SURROGATE.match(body, escape - 6) else escape
