"""Recorded clients and recorded replies of engines, as values."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.engines.replay import CAPTURES

CLIENTS = CAPTURES.parent / "clients"

VLLM = CAPTURES / "vllm" / "v0.32.0" / "streams"
OLLAMA = CAPTURES / "ollama" / "v0.32.15" / "streams"


@dataclass(frozen=True)
class Sent:
    """One request of a client, as it was sent."""

    file: Path
    method: str
    target: str
    headers: list[tuple[bytes, bytes]]  # names in lower case, as a server hands them on
    body: bytes

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    def __str__(self) -> str:
        client, version, name = self.file.parts[-3:]
        return f"{client}-{version}-{name[:3]}"


def sent(file: Path) -> Sent:
    head, _, body = file.read_bytes().partition(b"\r\n\r\n")
    line, *rest = head.split(b"\r\n")
    method, target, _ = line.decode().split(" ", 2)
    headers = [(k.lower(), v.strip()) for k, _, v in (h.partition(b":") for h in rest)]
    if (b"transfer-encoding", b"chunked") in headers:
        body = _unchunked(body)
    return Sent(file, method, target, headers, body)


def _unchunked(data: bytes) -> bytes:
    body = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        body, data = body + data[: int(size, 16)], data[int(size, 16) + 2 :]
    return body


def all_sent() -> list[Sent]:
    return [sent(f) for f in sorted(CLIENTS.glob("*/*/*.request.http"))]


@dataclass(frozen=True)
class Said:
    """One reply of an engine."""

    status: str
    kind: str
    body: bytes


@cache
def said(folder: Path, name: str) -> Said:
    head = (folder / f"{name}.headers").read_text()
    status = re.match(r"HTTP/1\.\d (\d.*)", head)
    kind = re.search(r"(?im)^content-type: *(.*?)\r?$", head)
    assert status is not None
    assert kind is not None
    file = next(f for s in ("json", "sse", "ndjson", "body") if (f := folder / f"{name}.{s}").is_file())
    return Said(status[1], kind[1], file.read_bytes())


NAMES = {
    "/v1/chat/completions": (VLLM, "chat", "chat-stream"),
    "/v1/completions": (VLLM, "completion", "completion-stream"),
    "/v1/embeddings": (OLLAMA, "embeddings", None),
    "/v1/messages": (VLLM, "messages", "messages-stream"),
    "/v1/messages/count_tokens": (VLLM, "messages-count-tokens", None),
    "/v1/responses": (VLLM, "responses", "responses-stream"),
    "/api/chat": (OLLAMA, "api-chat", "api-chat-stream"),
    "/api/generate": (OLLAMA, "api-generate", "api-generate-stream"),
    "/api/embed": (OLLAMA, "api-embed", None),
    "/api/embeddings": (OLLAMA, "api-embeddings", None),
    "/api/show": (OLLAMA, "api-show", None),
}
"""Route -> where an engine's reply to it was recorded: plain, and streamed where it can be."""

STREAMS = {path: said(folder, stream) for path, (folder, _, stream) in NAMES.items() if stream is not None}


def reply_to(path: str, *, stream: bool) -> Said:
    folder, plain, streamed = NAMES[path]
    return said(folder, streamed if stream and streamed is not None else plain)
