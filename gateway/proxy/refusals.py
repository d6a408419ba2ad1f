"""What a client is told when it gets no engine reply. The message is for people, the code for programs."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.proxy.headers import Header


class Refusal(Exception):
    """A reply of the gateway's own.

    `retry_after_s` goes out in whole seconds, 1 to 60: clients without it retry at once and many times,
    and two of the SDKs ignore larger values.
    """

    def __init__(
        self, status: int, code: str, message: str, retry_after_s: float | None = None,
        headers: Sequence[Header] = (),
    ) -> None:  # fmt: skip
        super().__init__(message)
        self.status, self.code, self.message, self.retry_after_s = status, code, message, retry_after_s
        self._headers = tuple(headers)

    @property
    def headers(self) -> list[Header]:
        """What goes out with it, besides what every reply has."""
        after = self.retry_after
        return [*self._headers, *([(b"retry-after", after)] if after is not None else [])]

    @property
    def kind(self) -> str:
        """OpenAI's `type` for the status."""
        if self.status == 401:
            return "authentication_error"
        if self.status == 429:
            return "rate_limit_error"
        return "invalid_request_error" if self.status < 500 else "server_error"

    @property
    def retry_after(self) -> bytes | None:
        """The header's value; every 429 and 503 has one."""
        if self.status not in (429, 503):
            return None
        return str(min(60, max(1, round(self.retry_after_s or 1)))).encode()
