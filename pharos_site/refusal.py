"""A request that is refused before the application hears of it, as a value and as bytes."""

from __future__ import annotations

import json
from http import HTTPStatus
from uuid import uuid4


class Refusal(Exception):
    """Raised while a request is read. `message` is for the person who sent it, `code` for their program."""

    def __init__(self, status: int, code: str, message: str, kind: str = "invalid_request_error") -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.kind = kind

    def body(self) -> bytes:
        error = {"message": self.message, "type": self.kind, "param": None, "code": self.code}
        return json.dumps({"error": error}).encode()

    def headers(self) -> list[tuple[bytes, bytes]]:
        return [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(self.body())),
            (b"x-request-id", uuid4().hex.encode()),
        ]

    def reply(self) -> bytes:
        """The whole reply; the connection is closed after it."""
        lines = [b"HTTP/1.1 %d %s" % (self.status, HTTPStatus(self.status).phrase.encode())]
        lines += [name + b": " + value for name, value in [*self.headers(), (b"connection", b"close")]]
        return b"\r\n".join(lines) + b"\r\n\r\n" + self.body()


def too_large(limit_bytes: int) -> Refusal:
    return Refusal(
        413,
        "request_too_large",
        f"The request body is larger than {limit_bytes} bytes, the most this gateway takes"
        " (`limits: body` in its config).",
    )


def malformed(what: str) -> Refusal:
    return Refusal(400, "bad_request", f"This is not a well-formed HTTP request: {what}.")


def head_too_large(what: str) -> Refusal:
    return Refusal(431, "headers_too_large", f"The headers of this request are too large: {what}.")
