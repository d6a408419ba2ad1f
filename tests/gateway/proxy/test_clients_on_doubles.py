"""What recorded clients send, to each kind of engine directly and through the gateway: the same comes back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from engines.doubles import KINDS, PHYSICS, Double, running
from gateway.proxy.routes import ROUTES
from tests.engines.doubles.client import Came, talk
from tests.gateway.proxy.recorded import Sent, all_sent
from tests.gateway.proxy.scene import Scene, scene

NAMES = ("pharos-small", "pharos-embed", "claude-opus-5-5", "claude-sonnet-4-5", "gpt-4o", "gpt-5")
SENT = [s for s in all_sent() if s.method == "POST" and s.path in ROUTES]
LACKS = {
    "mlx-lm": ("/v1/messages", "/v1/messages/count_tokens", "/v1/responses"),
    "ollama": ("/v1/messages/count_tokens",),
}
HOP_BY_HOP = {b"connection", b"keep-alive", b"transfer-encoding", b"server", b"date"}
ADDED = {b"x-request-id", b"request-id", b"x-accel-buffering", b"x-pharos-backend", b"x-pharos-reason"}


def twin(kind: str, *, embeds: bool = False) -> Double:
    """Two of them say the same to the same requests: nothing takes any time, and the clock stands still."""
    names: Sequence[str] = [f"{n}:latest" for n in NAMES] if kind == "ollama" else NAMES
    names = names[embeds : embeds + 1] if kind == "llamacpp" else names  # it lists one model
    timeless = replace(
        PHYSICS[kind], prefill_s_per_token=0.0, decode_s_per_token=0.0, load_s=0.0, unload_s=0.0,
        slots=2, cache_tokens=1_000_000, max_loaded=len(NAMES),
    )  # fmt: skip
    return Double(kind, models=names, loaded=names, physics=timeless, embeds=embeds, wall=lambda: 1.8e9)


def spoken(kind: str, double: Double, *, embeds: bool) -> list[Sent]:
    """What a client would send to such an engine."""
    native = {path for path, route in ROUTES.items() if route.native}
    return [
        s
        for s in SENT
        if (kind == "ollama" or s.path not in native)
        and ("embed" in s.path) == embeds
        and (_model(s) in double.names or (kind == "ollama" and f"{_model(s)}:latest" in double.names))
    ]


def _model(request: Sent) -> str:
    return str(json.loads(request.body)["model"])


async def direct(double: Double, request: Sent) -> Came:
    async with talk(double) as t:
        await t.ask(request.target, request.body, "POST")
        return await t.came()


def _but_usage(body: bytes) -> object:
    fields = json.loads(body)
    options = {k: v for k, v in fields.pop("stream_options", {}).items() if k != "include_usage"}
    return fields, options


async def differences(s: Scene, other: Double, request: Sent) -> list[str]:
    """Between what the client gets with and without the gateway."""
    (behind,) = s.doubles
    lacks = request.path in LACKS.get(behind.imitation.kind, ())
    through = await s.start(request.target, request.body, headers=request.headers).over()
    got = [q for q in behind.requests if q.method == "POST"][-1]  # scrapes are between them
    found = []
    came = await direct(other, replace(request, body=got.body if not lacks else request.body))
    asks_for_usage = got.body != request.body  # for the gateway's own books
    if got.target != request.target or _but_usage(got.body) != _but_usage(request.body):
        found.append("the engine was sent something else")
    if (
        got.header("host") != behind.url.removeprefix("http://")
        or got.header("accept-encoding") != "identity"
    ):
        found.append("headers to the engine")
    if got.header("content-length") != str(len(got.body)) or got.header("authorization"):
        found.append("headers to the engine")
    if lacks:
        return [*found, *([] if through.status == 400 else [f"status {through.status} for a missing route"])]
    if through.status != came.status or through.status >= 500:
        found.append(f"status {through.status}, not {came.status}")
    if came.status >= 400 and "json" not in str(came.header("content-type")):
        return [*found, *([] if json.loads(through.body)["error"] else ["an error without words"])]
    if asks_for_usage:  # its engine then numbers its replies otherwise: see that the stream is whole
        return [*found, *([] if through.body.endswith(b"data: [DONE]\n\n") and through.ended else ["cut"])]
    if through.body != came.body:
        found.append(f"body {through.body[-200:]!r}, not {came.body[-200:]!r}")
    if not through.ended or through.cut:
        found.append("it was not ended")
    if through.headers.get(b"content-type", b"").decode() != came.header("content-type"):
        found.append("content-type")
    sent = [line.partition(":")[0].lower().encode() for line in came.head.split("\r\n")[1:] if line]
    if set(through.headers) - ADDED != set(sent) - ADDED - HOP_BY_HOP:
        found.append(f"headers {sorted(through.headers)}, not {sorted(sent)}")
    if not through.headers.get(b"x-request-id"):
        found.append("no x-request-id")
    return found


@pytest.mark.parametrize("embeds", [False, True], ids=["generate", "embed"])
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(k, marks=pytest.mark.slow) if k in ("llamacpp-router", "llama-swap", "sglang") else k
        for k in sorted(KINDS)
    ],
)
async def test_each_recorded_request_gets_what_it_would_get_without_the_gateway(
    kind: str, embeds: bool
) -> None:
    """In the order they were sent, so that each turn of a chat finds the prefix that the turn before left."""
    async with running(twin(kind, embeds=embeds)) as other, scene(twin(kind, embeds=embeds)) as s:
        requests = spoken(kind, other, embeds=embeds)
        assert len(requests) >= (7 if embeds else 80)
        wrong = {str(r): d for r in requests if (d := await differences(s, other, r))}
        await s.at_rest()
    assert wrong == {}
