"""Which headers travel, in both directions."""

from __future__ import annotations

from collections.abc import Iterable

Header = tuple[bytes, bytes]

HOP_BY_HOP = frozenset(
    {
        b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection",
        b"te", b"trailer", b"transfer-encoding", b"upgrade", b"http2-settings",
    }
)  # fmt: skip

NOT_FOR_THE_ENGINE = frozenset(
    {
        b"host",  # Ollama on loopback answers 403 to a foreign one
        b"content-length",  # set from the bytes that are sent
        b"accept-encoding",  # the reply is read on its way, so it must come as it is
        b"authorization", b"x-api-key", b"cookie",  # the client's credentials are for Pharos
        b"api-key", b"x-goog-api-key",  # and so is what other services' clients repeat them in
        b"expect",
        b"x-conversation-id",  # makes llama.cpp go on generating after the client has left
    }
)  # fmt: skip

NOT_FOR_THE_CLIENT = frozenset({b"server", b"date", b"set-cookie", b"x-request-id", b"x-accel-buffering"})
"""Ours to say, or nobody's business: the server adds its own Server and Date."""

READABLE_TYPES = (b"application/x-www-form-urlencoded", b"")
"""What `curl -d` and hand-written clients call a JSON body; not every engine looks past it."""


def to_engine(headers: Iterable[Header], api_key: str | None) -> list[Header]:
    """What an engine gets of a client's headers."""
    kept = _end_to_end(headers, NOT_FOR_THE_ENGINE)
    kind = next((v for k, v in kept if k == b"content-type"), b"")
    if kind.split(b";")[0].strip().lower() in READABLE_TYPES:
        kept = [h for h in kept if h[0] != b"content-type"] + [(b"content-type", b"application/json")]
    kept.append((b"accept-encoding", b"identity"))
    if api_key is not None:
        kept.append((b"authorization", b"Bearer " + api_key.encode()))
    return kept


def to_client(headers: Iterable[Header]) -> list[Header]:
    """What a client gets of an engine's headers. Length stays: who changes the body drops it.

    `x-pharos-` is ours to say: an engine, or another Pharos behind this one, does not answer for it. The
    limits of the key that Pharos has at an engine are not those of the client's key.
    """
    kept = _end_to_end(headers, NOT_FOR_THE_CLIENT)
    return [h for h in kept if not h[0].startswith((b"x-pharos-", b"x-ratelimit-"))]


def _end_to_end(headers: Iterable[Header], dropped: frozenset[bytes]) -> list[Header]:
    lower = [(k.lower(), v) for k, v in headers]
    named = {n.strip().lower() for k, v in lower if k == b"connection" for n in v.split(b",")}
    return [(k, v) for k, v in lower if k not in HOP_BY_HOP and k not in dropped and k not in named]


def value(headers: Iterable[Header], name: bytes) -> bytes | None:
    for k, v in headers:
        if k.lower() == name:
            return v
    return None


def text(words: str) -> bytes:
    """Words as a header's value: one line of printable ASCII."""
    return "".join(c if " " <= c <= "~" else "?" for c in words).encode()
