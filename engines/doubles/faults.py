"""What goes wrong with a double, on demand."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Trouble(StrEnum):
    STATUS = "status"  # answers `status` instead of working
    HTML = "html"  # 200 and a web page, as a proxy in between would
    RESET = "reset"  # closes before a byte of the answer
    DIE = "die"  # ends within an event, without the end of the body
    STALL = "stall"  # says nothing more, and keeps the connection
    NO_FINISH = "no finish"  # ends the body properly before the reply is whole
    ERROR_EVENT = "error event"  # 200, and then an error as the last event


@dataclass(frozen=True, slots=True)
class Fault:
    """One request's misfortune. `after_tokens` events of text are sent first, where any are sent at all."""

    trouble: Trouble
    after_tokens: int = 1
    status: int = 500
    retry_after: str | None = None  # the header's value


def busy(retry_after: str = "7") -> Fault:
    return Fault(Trouble.STATUS, status=503, retry_after=retry_after)


HTML = b"<!DOCTYPE html><html><head><title>Welcome</title></head><body><h1>It works!</h1></body></html>\n"


class Faults:
    """What will happen to the next requests: each fault once, or again and again until `clear`."""

    def __init__(self) -> None:
        self._next: list[Fault] = []
        self._always: Fault | None = None
        self.hanging_scrapes = 0  # so many of the next GETs get no answer

    def add(self, fault: Fault, times: int = 1) -> None:
        self._next += [fault] * times

    def always(self, fault: Fault) -> None:
        self._always = fault

    def clear(self) -> None:
        self._next.clear()
        self._always, self.hanging_scrapes = None, 0

    def take(self) -> Fault | None:
        return self._next.pop(0) if self._next else self._always

    def hang(self) -> bool:
        if self.hanging_scrapes <= 0:
            return False
        self.hanging_scrapes -= 1
        return True
