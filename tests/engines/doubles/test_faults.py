"""Each fault as a client sees it, and what is left of it afterwards: nothing."""

from __future__ import annotations

import asyncio

import pytest

from engines.doubles import KINDS, Double, Fault, Trouble, busy, running
from tests.engines.doubles.client import HI, ask, chat, free, talk, until

ALL = pytest.mark.parametrize("kind", sorted(KINDS))
FRAMED = pytest.mark.parametrize("kind", sorted(set(KINDS) - {"mlx-lm"}))  # HTTP/1.0 shows no cut
CHAT = "/v1/chat/completions"


def fast(kind: str) -> Double:
    return Double(kind, speed=1000)


async def test_refusing_and_accepting_again_at_the_same_address() -> None:
    async with running(fast("vllm")) as double:
        double.refuse()
        with pytest.raises(ConnectionRefusedError):
            await chat(double)
        await double.accept()
        assert (await chat(double)).status == 200


@ALL
async def test_a_status_is_answered_once(kind: str) -> None:
    async with running(fast(kind)) as double:
        double.faults.add(Fault(Trouble.STATUS, status=502))
        assert [(await chat(double)).status for _ in range(2)] == [502, 200]


async def test_busy_says_when_to_come_again() -> None:
    async with running(fast("vllm")) as double:
        double.faults.add(busy("7"))
        came = await chat(double)
        assert (came.status, came.header("retry-after")) == (503, "7")


async def test_a_fault_for_always_lasts_until_it_is_cleared() -> None:
    async with running(fast("vllm")) as double:
        double.faults.always(Fault(Trouble.STATUS))
        assert [(await chat(double)).status for _ in range(3)] == [500] * 3
        double.faults.clear()
        assert (await chat(double)).status == 200


@ALL
async def test_html_is_a_200(kind: str) -> None:
    async with running(fast(kind)) as double:
        double.faults.add(Fault(Trouble.HTML))
        came = await chat(double, stream=True)
        assert (came.status, came.header("content-type")) == (200, "text/html")
        assert b"<html>" in came.body


async def test_a_reset_sends_no_byte() -> None:
    async with running(fast("ollama")) as double, talk(double) as t:
        double.faults.add(Fault(Trouble.RESET))
        await t.ask(CHAT, {"model": double.names[0], **HI})
        assert await t.closed()


@FRAMED
async def test_dying_ends_within_an_event_without_the_end_of_the_body(kind: str) -> None:
    async with running(fast(kind)) as double:
        double.faults.add(Fault(Trouble.DIE, after_tokens=2))
        came = await chat(double, stream=True)
        assert (came.status, came.whole) == (200, False)
        assert not came.body.endswith(b"\n\n")
        await until(lambda: free(double))


async def test_the_cut_stream_of_mlx_lm_looks_whole_to_http() -> None:
    async with running(fast("mlx-lm")) as double:
        double.faults.add(Fault(Trouble.DIE, after_tokens=2))
        came = await chat(double, stream=True)
        assert b"[DONE]" not in came.body
        assert not came.body.endswith(b"\n\n")


@FRAMED
async def test_a_plain_reply_that_dies_is_shorter_than_it_said(kind: str) -> None:
    async with running(fast(kind)) as double:
        double.faults.add(Fault(Trouble.DIE))
        came = await chat(double)
        assert (came.status, came.whole) == (200, False)
        await until(lambda: free(double))


@FRAMED
async def test_a_stream_without_a_finish_ends_properly_all_the_same(kind: str) -> None:
    async with running(fast(kind)) as double:
        double.faults.add(Fault(Trouble.NO_FINISH, after_tokens=3))
        came = await chat(double, stream=True)
        assert came.whole
        assert came.body.endswith(b"\n\n")
        assert b"[DONE]" not in came.body
        assert b'"finish_reason":"' not in came.body


@ALL
@pytest.mark.parametrize("stream", [True, False])
async def test_a_stall_lasts_until_the_client_goes_and_leaves_nothing(kind: str, stream: bool) -> None:
    async with running(fast(kind)) as double:
        double.faults.add(Fault(Trouble.STALL))
        async with talk(double) as t:
            await t.ask(CHAT, {"model": double.names[0], **HI, "stream": stream})
            if stream:
                await t.head()
                if kind != "mlx-lm":
                    await t.chunk()
            await until(lambda: double.machine.running() == 0)
            t.leave()
        await until(lambda: free(double) and double.connections == 0)


async def test_an_error_event_ends_a_200_as_a_dead_vllm_does() -> None:
    async with running(fast("vllm")) as double:
        double.faults.add(Fault(Trouble.ERROR_EVENT, after_tokens=2), 2)
        came = await chat(double, stream=True)
        assert (came.status, came.whole) == (200, True)
        assert b'data: {"error": {"message": "EngineCore' in came.body
        assert came.body.endswith(b"data: [DONE]\n\n")
        assert (await chat(double)).status == 500


async def test_an_error_line_ends_a_native_stream_as_a_dead_runner_does() -> None:
    async with running(fast("ollama")) as double:
        double.faults.add(Fault(Trouble.ERROR_EVENT))
        came = await ask(double, "/api/chat", {"model": double.names[0], **HI})
        assert came.whole
        assert b'"error"' in came.body.splitlines()[-1]
        assert b'"done":true' not in came.body


async def test_a_hanging_scrape_gets_nothing_and_the_next_one_is_fine() -> None:
    async with running(fast("llamacpp")) as double, talk(double) as t:
        double.faults.hanging_scrapes = 1
        await t.ask("/health")
        assert await t.silent()
        assert (await ask(double, "/health")).status == 200


async def test_a_frozen_double_takes_connections_and_says_nothing_until_it_thaws() -> None:
    async with running(fast("vllm")) as double, talk(double) as t:
        double.freeze()
        await t.ask("/health")
        assert await t.silent()
        double.thaw()
        assert (await t.came()).status == 200


async def test_a_frozen_double_is_silent_in_the_middle_of_a_stream() -> None:
    async with running(Double("vllm", speed=5)) as double, talk(double) as t:
        await t.ask(CHAT, {"model": double.names[0], **HI, "stream": True})
        await t.head()
        await t.chunk()
        double.freeze()
        async with asyncio.timeout(5):
            while not await t.silent():  # what was under way
                pass
        double.thaw()
        assert not await t.silent(5)


async def test_a_crash_cuts_the_streams_refuses_and_forgets_what_was_in_memory() -> None:
    async with running(Double("ollama", speed=5)) as double, talk(double) as t:
        await t.ask(CHAT, {"model": double.names[0], **HI, "stream": True})
        head = await t.head()
        await double.crash()
        assert not (await t.rest(head)).whole
        with pytest.raises(ConnectionRefusedError):
            await chat(double)
        await double.accept()
        assert (await ask(double, "/api/ps")).json == {"models": []}
        assert free(double)


# -- connections -------------------------------------------------------------------------------


async def test_an_idle_connection_is_closed_after_its_time() -> None:
    async with running(Double("vllm", idle_close_s=0.1)) as double, talk(double) as t:
        await t.ask("/health")
        await t.came()
        assert await t.closed()


@pytest.mark.parametrize(
    ("kind", "idle_s"), [("llamacpp", 5.0), ("vllm", 5.0), ("sglang", 5.0), ("ollama", None)]
)
def test_idle_connections_live_as_long_as_measured(kind: str, idle_s: float | None) -> None:
    assert Double(kind).idle_close_s == idle_s


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/messages", "/v1/responses"])
async def test_llamacpp_closes_after_each_stream_though_it_says_keep_alive(path: str) -> None:
    async with running(fast("llamacpp")) as double, talk(double) as t:
        await t.ask(path, {**HI, "prompt": "x", "input": "x", "stream": True})
        came = await t.came()
        assert came.whole
        assert came.header("connection") is None
        assert came.header("keep-alive") == "timeout=5, max=100"
        assert await t.closed()


async def test_llamacpp_keeps_a_connection_after_a_plain_reply() -> None:
    async with running(fast("llamacpp")) as double, talk(double) as t:
        for _ in range(3):
            await t.ask(CHAT, HI)
            assert (await t.came()).whole


@pytest.mark.parametrize("kind", ["vllm", "ollama", "sglang", "llama-swap"])
async def test_others_keep_a_connection_after_a_stream(kind: str) -> None:
    async with running(fast(kind)) as double, talk(double) as t:
        for _ in range(3):
            await t.ask(CHAT, {"model": double.names[0], **HI, "stream": True})
            assert (await t.came()).whole


@ALL
async def test_clients_that_leave_at_any_moment_leave_nothing_behind(kind: str) -> None:
    async with running(Double(kind, speed=30, slots=2)) as double:
        for wait_s in (0.0, 0.005, 0.02, 0.05):
            for stream in (True, False):
                async with talk(double) as t:
                    await t.ask(CHAT, {"model": double.names[0], **HI, "stream": stream, "max_tokens": 30})
                    await asyncio.sleep(wait_s)
        await until(lambda: free(double) and double.connections == 0)
