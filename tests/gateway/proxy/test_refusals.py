from __future__ import annotations

import json

import pytest

from gateway.proxy.apis import OPENAI
from gateway.proxy.refusals import Refusal


def test_an_error_has_the_shape_that_openai_clients_read() -> None:
    assert json.loads(OPENAI.error(Refusal(404, "model_not_found", "No engine serves “x”."))) == {
        "error": {
            "message": "No engine serves “x”.",
            "type": "invalid_request_error",
            "param": None,
            "code": "model_not_found",
        }
    }


@pytest.mark.parametrize(("given_s", "sent"), [(None, b"1"), (0.2, b"1"), (7.4, b"7"), (3600.0, b"60")])
def test_overload_says_when_to_come_back_in_whole_seconds_up_to_a_minute(
    given_s: float | None, sent: bytes
) -> None:
    assert Refusal(503, "x", "y", given_s).retry_after == sent


def test_a_lone_surrogate_in_a_message_does_not_break_the_reply() -> None:
    assert json.loads(OPENAI.error(Refusal(400, "x", "bad \ud83d")))["error"]["message"] == "bad ?"
