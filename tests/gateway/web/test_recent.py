"""Which requests the pages can tell of."""

from __future__ import annotations

import json
from typing import Any

from gateway.config import Config
from gateway.runtime import REMEMBERED, Gateway


async def ask(gateway: Gateway, path: str, body: object = None) -> int:
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {
            "type": "http.request",
            "body": json.dumps(body).encode() if body else b"",
            "more_body": False,
        }

    async def send(message: Any) -> None:
        sent.append(message)

    scope: dict[str, Any] = {
        "type": "http",
        "path": path,
        "method": "POST" if body else "GET",
        "headers": [],
        "query_string": b"",
    }
    await gateway(scope, receive, send)
    return int(sent[0]["status"])


async def test_a_request_of_a_model_is_remembered_with_what_its_client_was_told() -> None:
    gateway = Gateway(Config())
    assert await ask(gateway, "/v1/chat/completions", {"model": "nope", "messages": []}) == 404
    (done,) = gateway.recent
    assert (done.model, done.outcome, done.status) == ("nope", "model_not_found", 404)
    assert "nope" in (done.said or "")
    assert gateway.consumer.live == {}


async def test_lists_and_mistyped_paths_do_not_push_requests_out() -> None:
    gateway = Gateway(Config())
    await ask(gateway, "/v1/models")
    await ask(gateway, "/wp-login.php")
    assert not gateway.recent


async def test_what_is_remembered_is_bounded() -> None:
    gateway = Gateway(Config())
    for i in range(REMEMBERED + 10):
        await ask(gateway, "/v1/chat/completions", {"model": f"m{i}", "messages": []})
    assert len(gateway.recent) == REMEMBERED
    assert gateway.recent[-1].model == f"m{REMEMBERED + 9}"
