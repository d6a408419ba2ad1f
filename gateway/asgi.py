"""What the gateway and whatever server runs it say to each other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

CONNECTION = "pharos.connection"
"""Our server's ASGI extension: `scope["extensions"][CONNECTION]["abort"]()` cuts the client's connection."""

GATEWAY = "pharos.gateway"
"""Where the scope of a request for a page has the gateway."""
