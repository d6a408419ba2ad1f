"""What an engine says that no client should be told as it is."""

from __future__ import annotations

import asyncio

import pytest

from gateway.proxy.headers import to_client
from gateway.proxy.upstream import EngineFault, Fault, Upstream


async def fault_after(reply: bytes) -> EngineFault:
    async def engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(reply)
        writer.close()

    server = await asyncio.start_server(engine, "127.0.0.1", 0)
    upstream = Upstream(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", 5, 5)
    try:
        with pytest.raises(EngineFault) as e:
            async with await upstream.send("/v1/x", [], b"{}"):
                pass
        return e.value
    finally:
        await upstream.close()
        server.close()


@pytest.mark.parametrize("status", [b"101 Switching Protocols", b"000 Zero"])
async def test_a_status_that_ends_no_request_is_a_fault(status: bytes) -> None:
    fault = await fault_after(b"HTTP/1.1 " + status + b"\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n")
    assert fault.fault is Fault.DIED


async def test_an_engine_that_dies_in_its_headers_is_told_in_words() -> None:
    fault = await fault_after(b"HTTP/1.1 200 OK\r\nX-Half: ")
    assert "<" not in str(fault)


def test_an_engine_does_not_speak_for_this_gateway() -> None:
    assert to_client([(b"X-Pharos-Backend", b"http://elsewhere"), (b"x-pharos-reason", b"mine")]) == []
