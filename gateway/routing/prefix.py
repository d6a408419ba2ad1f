"""Which target holds the start of a prompt in its prefix cache, as far as our own requests can tell. Pure.

Every request that an engine has answered leaves the links of its prompt (`prompt.py`) with its target. The
index is a hint: a wrong entry costs one prefill, and the reply that shows it mends it. So it may be lost,
cut, merged in any order and restored from what is old.

What an entry says is a mark: a target, when it last held the prompt to this link, and how we know. Marks are
ordered by time, and the latest about a target counts, so merging is taking the larger: in any order, any
number of times, with one outcome (as long as nothing had to be dropped for want of room). A loss is a mark
as well, or an older record that arrives later would bring back what is gone.

Room: an entry's marks are packed into one `bytes`, which the links of one prompt share. 200,000 entries take
28 MB, 142 bytes each, most of it the ordered dict and the hashes; and 41 MB if every one has four targets
and shares nothing (`make bench` measures both).

Times are Unix seconds, as peers and restarts have to agree on them; within, ticks of 1/1024 s that never
stand still.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import IntEnum, StrEnum
from struct import Struct
from typing import NamedTuple

import msgspec

from gateway.routing.links import Chain

CAPACITY = 200_000
TARGETS_AN_ENTRY = 4
HIT_BYTES = 512
"""Less than this, 128 tokens, is no hit: vLLM caches blocks of 16 tokens, on CPU of 128, and the words with
which a chat template begins are shared by all prompts (28 tokens of 2188 on llama.cpp b10434)."""
DOUBT = 3
"""After so many wrong predictions in a row nothing is predicted for a target, until a reply shows a hit: it
caches nothing, or its template changes the past."""
SLOT_SHARE = 0.1
"""llama.cpp gives a request the slot that holds more of it than this, else the one idle for longest."""
BYTES_PER_TOKEN = 4
"""Only for a reply that tells cached tokens and not how many there were."""
AHEAD_S = 3600
"""A peer's mark from further in the future is not believed: its clock is wrong."""

TICKS_PER_S = 1024
MOST_TARGETS = 1 << 16
LINKS_AN_OP = 512


class Source(IntEnum):
    """How we know. Of two marks of one time the larger counts."""

    LOST = 0  # not there any more
    RESTORED = 1  # from a snapshot: a state file, or a peer when it was met
    PEER = 2
    LOCAL = 3


class Outcome(StrEnum):
    """What became of a prediction."""

    HIT = "predicted_hit"
    WRONG = "wrong_prediction"
    UNPREDICTED = "unpredicted_hit"
    MISS = "miss"
    UNKNOWN = "unknown"  # the engine told nothing


class Match(NamedTuple):
    """What of a prompt a target is thought to hold."""

    bytes: int  # 0 where its predictions are in doubt
    recorded: int  # doubted or not
    source: Source
    depth: int  # links
    ticks: int  # when it last did


class Op(msgspec.Struct, frozen=True, array_like=True):
    """One change of an index, for others. `links` are unsigned, of 64 bits."""

    target: str
    links: tuple[int, ...]
    ticks: int
    lost: bool = False


class _Target:
    __slots__ = ("generation", "held", "key", "void", "wrong")

    def __init__(self, key: str) -> None:
        self.key = key
        self.generation: int | None = None  # not told yet: then nothing is void
        self.void = -1  # what was held at this tick and before is gone
        self.wrong = 0  # predictions in a row
        self.held: list[tuple[int, ...]] = []  # its slots' prompts, longest unused first, where they count


_ONE = Struct("<Q")
_PACKS = {n: Struct(f"<{n}Q") for n in range(TARGETS_AN_ENTRY + 1)}
_UNPACKS = {8 * n: pack.unpack for n, pack in _PACKS.items()}


class PrefixIndex:
    """Bounded, least recently used first out. A target is named "<backend url> <model>".

    `journal` gets each change that this instance makes, and none that it merges.
    """

    def __init__(self, capacity: int = CAPACITY, journal: Callable[[Op], None] | None = None) -> None:
        self.capacity = capacity
        self.journal = journal
        self._entries: OrderedDict[int, bytes] = OrderedDict()  # link -> marks
        self._targets: list[_Target] = []
        self._ids: dict[str, int] = {}
        self._ticks = 0  # the latest seen

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"<PrefixIndex of {len(self)} entries, {len(self._targets)} targets>"

    # -- asking ---------------------------------------------------------------------------------

    def lookup(self, chain: Chain, generations: Mapping[str, int]) -> dict[str, Match]:
        """The longest match of each of these targets that has one. `generations` are as of now: one that is
        another than before voids what its target held."""
        wanted = {self._now_at(target, generation) for target, generation in generations.items()}
        found: dict[int, Match] = {}
        known = None
        for depth in range(len(chain.links), 0, -1):
            marks = self._entries.get(chain.links[depth - 1])
            if marks is None or marks is known:  # one object: its targets were all seen at a deeper link
                continue
            known = marks
            for mark in _UNPACKS[len(marks)](marks):
                number, source, ticks = mark & 0xFFFF, mark >> 16 & 3, mark >> 18
                target = self._targets[number]
                if number in wanted and number not in found and source and ticks > target.void:
                    end = chain.ends[depth - 1]
                    claimed = end if target.wrong < DOUBT else 0
                    found[number] = Match(claimed, end, Source(source), depth, ticks)
            if len(found) == len(wanted):
                break
        return {self._targets[number].key: match for number, match in found.items()}

    # -- learning -------------------------------------------------------------------------------

    def record(
        self, target: str, generation: int, chain: Chain, now: float, prompts: int | None = None
    ) -> None:
        """The target holds this prompt now. `generation` is the one in which the request was sent; if that is
        over, nothing is left of it.

        To be called when other requests can profit: see `engines.recipes.base.PromptCache`. `prompts` is how
        many prompts the engine keeps, where that is known: a new one takes the place of one before.
        """
        state = self._still_at(target, generation)
        if state is None or not chain.links:
            return
        if prompts is not None:
            self._displace(state, chain, prompts, now)
        self._change(state, chain.links, now, Source.LOCAL)

    def correct(
        self,
        target: str,
        generation: int,
        chain: Chain,
        predicted: Match | None,
        cached_tokens: int | None,
        prompt_tokens: int | None,
        now: float,
    ) -> Outcome:
        """Compare what a reply reports with what `lookup` gave for its target, and unlearn what was wrong.

        To be called before `record`. `predicted` is None where there was no match. Tokens are turned into
        bytes by this very prompt, of which both are known.
        """
        if cached_tokens is None:
            return Outcome.UNKNOWN
        whole = prompt_tokens or chain.size / BYTES_PER_TOKEN
        cached = chain.size * min(max(cached_tokens, 0) / max(whole, 1), 1)
        if predicted is None or predicted.recorded < HIT_BYTES:
            return Outcome.UNPREDICTED if cached >= HIT_BYTES else Outcome.MISS
        state = self._still_at(target, generation)
        wrong = cached < predicted.recorded / 2
        if state is not None and wrong:
            self._unlearn(state, chain, predicted, cached, now)
        elif state is not None:
            state.wrong = 0
        if predicted.bytes < HIT_BYTES:
            return Outcome.UNPREDICTED if cached >= HIT_BYTES else Outcome.MISS
        return Outcome.WRONG if wrong else Outcome.HIT

    def forget(self, target: str, generation: int, chain: Chain, now: float) -> None:
        """The engine refused the prompt, so it is no reason to send it there again."""
        state = self._still_at(target, generation)
        if state is not None:
            self._change(state, chain.links, now, Source.LOST)

    def _unlearn(self, state: _Target, chain: Chain, predicted: Match, cached: float, now: float) -> None:
        state.wrong += 1
        if cached < predicted.recorded / 10 and predicted.depth > 1:
            # All of it: a cache drops first what was used longest ago, and a restart drops everything. So
            # what is older is gone too. Not told from the first link, which prompts in use may share: then
            # only the slots that hold it were busy.
            state.void = max(state.void, predicted.ticks)
        beyond = [
            link
            for link, end in zip(chain.links[: predicted.depth], chain.ends, strict=False)
            if end > max(cached, 0)
        ]
        self._change(state, beyond, now, Source.LOST)

    def _displace(self, state: _Target, chain: Chain, prompts: int, now: float) -> None:
        """Take away what the slots held that this prompt has overwritten."""
        held = state.held
        shared = [_common(links, chain.links) for links in held]
        gone: list[int] = []
        best = max(range(len(held)), key=shared.__getitem__, default=None)
        if best is not None and shared[best] and chain.ends[shared[best] - 1] > SLOT_SHARE * chain.size:
            gone += held.pop(best)
        while len(held) >= max(prompts, 1):
            gone += held.pop(0)
        held.append(chain.links)
        if gone:
            kept = set().union(*held)
            self._change(state, [link for link in gone if link not in kept], now, Source.LOST)

    # -- sharing --------------------------------------------------------------------------------

    def export(self) -> Iterator[Op]:
        """Everything that is known, most recently used first, in pieces. The index may change meanwhile."""
        run: list[int] = []
        shared = b""
        for link in list(reversed(self._entries)):
            marks = self._entries.get(link, b"")
            if run and (marks != shared or len(run) == LINKS_AN_OP):
                yield from self._told(run, shared)
                run = []
            run.append(link)
            shared = marks
        yield from self._told(run, shared)

    def _told(self, links: list[int], marks: bytes) -> Iterator[Op]:
        for mark in _UNPACKS[len(marks)](marks):
            target = self._targets[mark & 0xFFFF]
            if mark >> 18 > target.void:
                yield Op(target.key, tuple(links), mark >> 18, lost=not mark >> 16 & 3)

    def merge(self, ops: Iterable[Op], source: Source, now: float) -> None:
        """Learn what another index knew. Restored entries never push out any that are here."""
        latest = int((now + AHEAD_S) * TICKS_PER_S)
        for op in ops:
            if not 0 < op.ticks <= latest:
                continue
            number = self._id(op.target)
            if op.ticks > self._targets[number].void:
                self._ticks = max(self._ticks, op.ticks)
                kind = Source.LOST if op.lost else source
                self._put(number, op.links, op.ticks, kind, old=source is Source.RESTORED)

    # -- targets --------------------------------------------------------------------------------

    def _id(self, target: str) -> int:
        number = self._ids.get(target)
        if number is None:
            if len(self._targets) == MOST_TARGETS:  # names of containers, over months
                self._entries.clear()
                self._targets.clear()
                self._ids.clear()
            number = self._ids[target] = len(self._targets)
            self._targets.append(_Target(target))
        return number

    def _now_at(self, target: str, generation: int) -> int:
        """The target's number, once what an earlier generation held is void."""
        number = self._id(target)
        state = self._targets[number]
        if state.generation not in (None, generation):
            state.void = self._ticks
            state.wrong = 0
        state.generation = generation
        return number

    def _still_at(self, target: str, generation: int) -> _Target | None:
        state = self._targets[self._id(target)]
        if state.generation is None:
            state.generation = generation
        return state if generation == state.generation else None

    # -- entries --------------------------------------------------------------------------------

    def _change(self, state: _Target, links: Sequence[int], now: float, source: Source) -> None:
        self._ticks = ticks = max(int(now * TICKS_PER_S), self._ticks + 1)
        self._put(self._ids[state.key], links, ticks, source)
        if self.journal is not None and links:
            self.journal(Op(state.key, tuple(links), ticks, lost=source is Source.LOST))

    def _put(
        self, number: int, links: Sequence[int], ticks: int, source: Source, *, old: bool = False
    ) -> None:
        """The first links end up as the last to be dropped: they are shared by most prompts, and of no use
        to none. `old` ones take only free room, and are the first to go."""
        entries, mark = self._entries, ticks << 18 | source << 16 | number
        alone = _ONE.pack(mark)
        before, after = b"", alone
        for link in links if old else reversed(links):
            marks = entries.get(link)
            if marks is None:
                if old:
                    if len(entries) >= self.capacity:
                        continue
                    entries[link] = alone
                    entries.move_to_end(link, last=False)
                else:
                    entries[link] = alone
                continue
            if marks is not before:  # links of one prompt mostly share theirs
                before, after = marks, self._with(marks, mark, alone)
            entries[link] = after
            if not old:
                entries.move_to_end(link)
        while len(entries) > self.capacity:
            entries.popitem(last=False)

    def _with(self, marks: bytes, mark: int, alone: bytes) -> bytes:
        others = []
        for other in _UNPACKS[len(marks)](marks):
            if not (other ^ mark) & 0xFFFF:
                if other >= mark:
                    return marks
            elif other >> 18 > self._targets[other & 0xFFFF].void:
                others.append(other)
        if not others:
            return alone
        others.append(mark)
        if len(others) > TARGETS_AN_ENTRY:  # by key, as numbers differ from instance to instance
            others.remove(min(others, key=lambda m: (m >> 18, self._targets[m & 0xFFFF].key)))
        return _PACKS[len(others)].pack(*others)


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many links two chains share. Each link hashes all before it, so the first that differs ends it."""
    return bisect_left(range(min(len(a), len(b))), True, key=lambda i: a[i] != b[i])
