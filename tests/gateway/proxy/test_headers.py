from __future__ import annotations

from gateway.proxy.headers import to_client, to_engine


def test_the_clients_credentials_stay_here() -> None:
    sent = to_engine([(b"Authorization", b"Bearer c"), (b"x-api-key", b"c"), (b"cookie", b"c")], "engine-key")
    assert [v for k, v in sent if k == b"authorization"] == [b"Bearer engine-key"]
    assert not {k for k, _ in sent} & {b"x-api-key", b"cookie"}


def test_hop_by_hop_headers_stay_on_their_hop() -> None:
    hop = [(b"Connection", b"close, X-Mine"), (b"x-mine", b"1"), (b"TE", b"trailers"), (b"Upgrade", b"h2c")]
    assert {k for k, _ in to_engine(hop, None)} == {b"content-type", b"accept-encoding"}
    assert to_client([*hop, (b"Transfer-Encoding", b"chunked")]) == []


def test_the_engine_is_asked_for_plain_bytes() -> None:
    assert (b"accept-encoding", b"identity") in to_engine([(b"accept-encoding", b"gzip, br")], None)


def test_the_header_that_keeps_llamacpp_generating_for_nobody_is_dropped() -> None:
    assert b"x-conversation-id" not in dict(to_engine([(b"X-Conversation-Id", b"1")], None))


def test_a_json_body_sent_as_a_form_is_called_json() -> None:
    for kind in ([(b"content-type", b"application/x-www-form-urlencoded")], []):
        assert dict(to_engine(kind, None))[b"content-type"] == b"application/json"


def test_other_headers_pass_both_ways() -> None:
    assert (b"x-session-id", b"7") in to_engine([(b"X-Session-Id", b"7")], None)
    assert to_client([(b"Content-Type", b"text/event-stream"), (b"Server", b"x")]) == [
        (b"content-type", b"text/event-stream")
    ]
