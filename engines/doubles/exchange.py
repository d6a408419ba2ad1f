"""One request to a double and its reply, faults included."""

from __future__ import annotations

import asyncio
import json
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from engines.doubles import refusals, wire
from engines.doubles.asks import COUNT_TOKENS, ROUTES, Route, Wanted, prompt_of, wanted
from engines.doubles.clone import Cloned, Numbers, clone_reply, shape_of
from engines.doubles.faults import HTML, Fault, Trouble
from engines.doubles.jobs import Job, Phase, tokens_of
from engines.doubles.kinds import HeadersAt
from engines.doubles.machine import Full
from engines.doubles.recordings import Page, Reply, reply

if TYPE_CHECKING:
    from engines.doubles.double import Double


class _Over(Exception):
    """The connection is done with: the client left, or a fault ended it."""


class Exchange:
    """`serve` answers the request and says whether the connection stays open."""

    def __init__(
        self,
        double: Double,
        request: wire.Request,
        reader: wire.WatchedReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.double, self.request = double, request
        self.reader, self.writer = reader, writer
        self.imitation = double.imitation
        self.keep = request.keeps_alive
        self.chunked = True
        self.fault: Fault | None = None

    async def serve(self) -> bool:
        try:
            await self._serve()
        except _Over:
            return False
        return self.keep

    async def _serve(self) -> None:
        method, path = self.request.method, self.request.path
        if method != "POST":
            if self.double.faults.hang():
                await self._silence()
            await self._page(self.double.page("GET" if method == "HEAD" else method, self.request.target))
            return
        route = ROUTES.get(path)
        if route is None and path != COUNT_TOKENS:
            await self._page(self.double.page(method, self.request.target))
            return
        self.fault = self.double.faults.take()
        if await self._failed_at_once():
            return
        body = self._body()
        if path == COUNT_TOKENS:
            await self._count_tokens(body)
        elif body is None:
            await self._reply(refusals.malformed(self.imitation, ROUTES[path]))
        else:
            await self._generate(ROUTES[path], body)

    def _body(self) -> dict[str, Any] | None:
        try:
            value = json.loads(self.request.body)
        except (ValueError, RecursionError):
            return None
        return value if isinstance(value, dict) else None

    # -- faults --------------------------------------------------------------------------------

    async def _failed_at_once(self) -> bool:
        fault = self.fault
        if fault is None:
            return False
        if fault.trouble is Trouble.RESET:
            raise _Over
        if fault.trouble is Trouble.HTML:
            await self._whole(200, (("Content-Type", "text/html"),), HTML)
            return True
        if fault.trouble is Trouble.STATUS:
            headers = [("Content-Type", "application/json")]
            headers += [("Retry-After", fault.retry_after)] if fault.retry_after is not None else []
            words = HTTPStatus(fault.status).phrase
            await self._whole(fault.status, tuple(headers), json.dumps({"error": words}).encode())
            return True
        return False

    async def _silence(self) -> None:
        """Nothing more is said until the client goes."""
        await self.reader.gone.wait()
        raise _Over

    # -- what is asked -------------------------------------------------------------------------

    async def _generate(self, route: Route, body: dict[str, Any]) -> None:
        """Refuse, or do what is wanted."""
        double, ask = self.double, wanted(route, body)
        if double.imitation.loading and double.page("GET", "/health").status == 503:
            await self._page(double.page("POST", self.request.target))
            return
        plain = self._recorded(route, ask, stream=False)
        told = refusals.incomplete(self.imitation, route, embeds=self.double.embeds)
        if plain is None:
            await self._page(told or refusals.not_found(self.imitation))
            return
        model = await self._model(route, ask, body)
        if model is None:
            return
        if ask.empty and route.native:
            await self._load(route, ask, model)
        elif ask.empty and told is not None and told.status >= 400:
            await self._page(told)
        elif plain.status >= 400:
            await self._reply(plain)
        else:
            await self._work(route, ask, model)

    async def _model(self, route: Route, ask: Wanted, body: dict[str, Any]) -> str | None:
        """The machine's name of what is asked; None when the request was refused."""
        double, named = self.double, ask.model
        if named is None:
            refusal = refusals.no_model(self.imitation, route)
            told = refusals.incomplete(self.imitation, route, embeds=self.double.embeds)
            if refusal is not None:
                await self._reply(refusal)
                return None
            if not body and told is not None:
                await self._page(told)
                return None
            return double.machine.models[0]
        if named in double.names:
            return named if named in double.machine.models else double.machine.models[0]
        if self.imitation.kind == "ollama" and f"{named}:latest" in double.machine.models:
            return f"{named}:latest"
        refusal = refusals.unknown_model(self.imitation, route, named)
        if refusal is None:
            return double.machine.models[0]
        await self._reply(refusal)
        return None

    def _recorded(self, route: Route, ask: Wanted, *, stream: bool) -> Reply | None:
        """The recording whose shape the reply has; the nearest one where several fit."""
        names = [route.name]
        if stream:
            usage = [f"{route.name}-stream-usage"] if ask.usage else []
            names = [*usage, f"{route.name}-stream"]
        base = self.imitation.recording
        folders = refusals.EMBEDDING if route.embeds and self.double.embeds else ("streams",)
        found = (reply(f"{base}/{folder}/{name}") for folder in folders for name in names)
        return next((r for r in found if r is not None), None)

    async def _count_tokens(self, body: dict[str, Any] | None) -> None:
        found = reply(f"{self.imitation.recording}/streams/messages-count-tokens")
        told = self.double.page("POST", COUNT_TOKENS)
        if found is None or found.status != 200 or not body or not body.get("messages"):
            await self._page(told)
            return
        tokens = tokens_of(prompt_of(body))
        value = json.loads(found.body)
        was = value["input_tokens"]
        await self._reply(found, found.body.replace(str(was).encode(), str(tokens).encode()))

    async def _load(self, route: Route, ask: Wanted, model: str) -> None:
        """Ollama: a request without a prompt loads the model, or unloads it."""
        double, unload = self.double, ask.keep_alive in (0, "0", "0s")
        found = reply(f"{self.imitation.recording}/streams/{route.name}-{'unload' if unload else 'load'}")
        if unload:
            double.machine.unload(double.machine_now(), model)
            double.tell()
        else:
            await self._done(double.machine.arrive(double.machine_now(), model, b"", 0, streamed=False))
        if found is None:
            await self._page(refusals.not_found(self.imitation))
            return
        await self._reply(found, clone_reply(found.body, self._numbers(ask, model, None, [])))

    # -- work ----------------------------------------------------------------------------------

    async def _work(self, route: Route, ask: Wanted, model: str) -> None:
        double = self.double
        stream = ask.stream and not route.embeds
        found = self._recorded(route, ask, stream=stream)
        assert found is not None
        answer = [] if route.embeds else self._answer(route, ask)
        try:
            job = double.machine.arrive(
                double.machine_now(),
                model,
                ask.prompt,
                len(answer) + self._stops(ask, answer),
                answer="".join(answer).encode("utf-8", "surrogatepass"),
                streamed=stream,
            )
        except Full:
            await self._reply(refusals.full(self.imitation, route))
            return
        numbers = self._numbers(ask, model, job, answer)
        if stream:
            await self._stream(found, job, numbers, answer)
        else:
            await self._plain(found, job, numbers)

    def _answer(self, route: Route, ask: Wanted) -> list[str]:
        """The recorded answer's tokens, again and again when more are asked for."""
        found = self._recorded(route, ask, stream=True)
        tokens = shape_of(found.body).tokens if found is not None else ["Hello"]
        if ask.limit is None or (ask.limit >= len(tokens) and not ask.to_the_limit):
            return tokens
        return (tokens * (ask.limit // len(tokens) + 1))[: ask.limit]

    def _stops(self, ask: Wanted, answer: list[str]) -> bool:
        """By itself: with one token more, which every engine counts and none shows."""
        return bool(answer) and (ask.limit is None or len(answer) < ask.limit)

    def _numbers(self, ask: Wanted, model: str, job: Job | None, answer: list[str]) -> Numbers:
        shown = ask.model if self.imitation.echoes_name and ask.model else model
        prompt = job.prompt_tokens if job else 0
        stopped = self._stops(ask, answer)
        out = len(answer) + stopped
        return Numbers(
            shown, prompt, 0, out, "".join(answer), self.double.wall(), stopped,
            counts_cache=self.imitation.counts_cache,
            guesses_input=self.imitation.guesses_input, rng=self.double.rng,
        )  # fmt: skip

    async def _done(self, job: Job) -> None:
        """Until the job has ended. The machine learns it when the client leaves first."""
        async with self.double.watching(job) as changed:
            while not job.ended:
                await self._change(changed)

    async def _change(self, changed: asyncio.Event) -> None:
        """Until something happens to the job. Raises _Over when its client is gone."""
        changing = asyncio.ensure_future(changed.wait())
        going = asyncio.ensure_future(self.reader.gone.wait())
        try:
            await asyncio.wait((changing, going), return_when=asyncio.FIRST_COMPLETED)
        finally:
            changing.cancel()
            going.cancel()
        if self.reader.gone.is_set():
            raise _Over
        changed.clear()

    async def _plain(self, found: Reply, job: Job, numbers: Numbers) -> None:
        await self._done(job)
        if job.phase is Phase.FAILED:
            raise _Over
        _measured(numbers, job)
        numbers.now = self.double.wall()
        body = clone_reply(found.body, numbers)
        trouble = self.fault.trouble if self.fault else None
        if trouble is Trouble.STALL:
            await self._silence()
        if trouble is Trouble.DIE:
            await self._head(found, (("Content-Length", str(len(body))),))
            await self._send(body[: len(body) // 2])
            raise _Over
        if trouble is Trouble.NO_FINISH:
            body = b""
        if trouble is Trouble.ERROR_EVENT:
            dead = reply(refusals.ERROR_EVENT_PLAIN)
            await self._reply(dead or found)
            return
        await self._reply(found, body)

    async def _stream(self, found: Reply, job: Job, numbers: Numbers, answer: list[str]) -> None:
        cloned = Cloned(shape_of(found.body), numbers)
        headed, sent = False, 0
        async with self.double.watching(job) as changed:
            while True:
                if not headed and self._headers_due(job):
                    await self._stream_head(found)
                    headed = True
                while headed and sent < min(job.tokens, len(answer)):
                    await self._token(cloned, numbers, job, sent, answer)
                    sent += 1
                if job.ended and sent >= len(answer):
                    break
                if job.phase is Phase.FAILED:
                    raise _Over
                await self._change(changed)
        _measured(numbers, job)
        for piece in cloned.tail():
            await self._piece(piece)
        await self._end()

    def _headers_due(self, job: Job) -> bool:
        at = self.imitation.headers_at
        if at is HeadersAt.ONCE:
            return True
        return job.phase is not Phase.WAITING if at is HeadersAt.SLOT else job.tokens > 0

    async def _token(self, cloned: Cloned, numbers: Numbers, job: Job, sent: int, answer: list[str]) -> None:
        numbers.cached_tokens, numbers.now = job.cached_tokens, self.double.wall()
        head = b"".join(cloned.head()) if sent == 0 else b""
        if head:  # in one write with the first token, as recorded
            await self._piece(head)
        piece = cloned.token(sent, len(answer), answer[sent])
        if self.fault is not None and sent == min(self.fault.after_tokens, len(answer) - 1):
            await self._fail_within(piece)
        await self._piece(piece)

    async def _fail_within(self, piece: bytes) -> None:
        assert self.fault is not None
        trouble = self.fault.trouble
        if trouble is Trouble.DIE:
            await self._piece(piece[: len(piece) // 2])
        elif trouble is Trouble.STALL:
            await self._silence()
        elif trouble is Trouble.NO_FINISH:
            await self._end()
        elif trouble is Trouble.ERROR_EVENT:
            last = refusals.error_events() if piece.startswith((b"data", b"event")) else []
            for each in last or [refusals.error_line()]:
                await self._piece(each)
            await self._end()
        raise _Over

    # -- bytes ---------------------------------------------------------------------------------

    async def _stream_head(self, found: Reply) -> None:
        self.chunked = found.version == "HTTP/1.1"
        if not self.chunked or self.imitation.closes_after_stream:
            self.keep = False
        ending = (("Transfer-Encoding", "chunked"),) if self.chunked else ()
        await self._head(found, ending, stream=True)

    async def _head(self, found: Reply, ending: tuple[tuple[str, str], ...], *, stream: bool = False) -> None:
        """An engine that closes after a stream does not say so (llama.cpp b10434)."""
        closes = not self.keep and not (stream and self.imitation.closes_after_stream)
        if found.version != "HTTP/1.1":
            self.keep = False
        elif closes:
            ending = (*ending, ("Connection", "close"))
        elif self.imitation.keep_alive:
            ending = (*ending, ("Keep-Alive", self.imitation.keep_alive))
        now = self.double.wall()
        data = wire.head(found.version, found.status, found.reason, found.headers, now=now, ending=ending)
        await self._send(data)

    async def _piece(self, data: bytes) -> None:
        await self._send(wire.chunk(data) if self.chunked else data)

    async def _end(self) -> None:
        if self.chunked:
            await self._send(wire.LAST_CHUNK)

    async def _send(self, data: bytes) -> None:
        await self.double.thawed.wait()
        if self.reader.gone.is_set():
            raise _Over
        self.writer.write(data)
        await self.writer.drain()

    async def _reply(self, found: Reply, body: bytes | None = None) -> None:
        sent = found.body if body is None else body
        await self._head(found, (("Content-Length", str(len(sent))),))
        await self._send(sent)

    async def _whole(self, status: int, headers: tuple[tuple[str, str], ...], body: bytes) -> None:
        like = reply(f"{self.imitation.recording}/streams/chat")
        version = like.version if like else "HTTP/1.1"
        await self._reply(Reply(version, status, HTTPStatus(status).phrase, headers, body))

    async def _page(self, page: Page) -> None:
        """With the headers of the engine's plain replies: those of its pages were not recorded."""
        like = reply(f"{self.imitation.recording}/{self.imitation.streams}/chat")
        assert like is not None
        headers = [(n, page.content_type if n.lower() == "content-type" else v) for n, v in like.headers]
        if not page.content_type:
            headers = [(n, v) for n, v in headers if n.lower() != "content-type"]
        if self.imitation.kind == "llama-swap":  # those recorded are of the engine behind it
            headers = [("Content-Type", page.content_type), ("Date", "")]
        phrase = HTTPStatus(page.status).phrase
        body = b"" if self.request.method == "HEAD" else page.body
        found = Reply(like.version, page.status, phrase, tuple(headers), body)
        await self._head(found, (("Content-Length", str(len(page.body))),))
        await self._send(body)


def _measured(numbers: Numbers, job: Job) -> None:
    """The times of a job, on the machine's clock."""
    numbers.cached_tokens = job.cached_tokens
    begun = job.arrived_at if job.admitted_at is None else job.admitted_at
    ended = begun if job.ended_at is None else job.ended_at
    numbers.total_s = ended - job.arrived_at
    numbers.load_s = begun - job.arrived_at if job.cold else 0.0
    numbers.prefill_s = max(0.0, job.prefill_end - begun)
    numbers.decode_s = max(0.0, ended - job.prefill_end)
