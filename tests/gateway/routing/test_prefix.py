"""Who is thought to hold a prompt, and what teaches that."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

import pytest

from gateway.routing.links import Chain
from gateway.routing.prefix import (
    CAPACITY,
    DOUBT,
    TARGETS_AN_ENTRY,
    Match,
    Op,
    Outcome,
    PrefixIndex,
    Source,
)

A, B = "http://a m", "http://b m"
STEP = 1000  # bytes a link in these tests


def chain(*names: str) -> Chain:
    """One link a name, each of them standing for all before it too."""
    links, before = [], 0
    for name in names:
        before = hash((before, name)) & 0xFFFFFFFFFFFFFFFF
        links.append(before)
    ends = tuple(STEP * (i + 1) for i in range(len(names)))
    return Chain(tuple(links), ends, STEP * len(names))


SYS, ONE, TWO = chain("s"), chain("s", "1"), chain("s", "1", "2")
FIVE = chain("s", "1", "2", "3", "4")


class Fleet:
    """Targets of some generation."""

    def __init__(self, **options: Any) -> None:
        self.index = PrefixIndex(**options)
        self.generations: dict[str, int] = {}

    def generation(self, target: str) -> int:
        return self.generations.setdefault(target, 3)

    def restarts(self, target: str) -> None:
        """And the next request learns of it."""
        self.generations[target] = self.generation(target) + 1
        self.lookup(Chain())

    def lookup(self, c: Chain) -> dict[str, Match]:
        return self.index.lookup(c, {A: 3, B: 3, **self.generations})

    def matched(self, c: Chain) -> dict[str, int]:
        return {target: match.bytes for target, match in self.lookup(c).items()}

    def record(self, target: str, c: Chain, now: float = 1.0, prompts: int | None = None) -> None:
        self.index.record(target, self.generation(target), c, now, prompts)

    def reply(
        self, target: str, c: Chain, cached: int | None, of: int | None = None, now: float = 2.0
    ) -> Outcome:
        """A reply that reports so many tokens cached, where a link has 250."""
        prompt = len(c.links) * 250 if of is None else of
        found = self.lookup(c).get(target)
        return self.index.correct(target, self.generation(target), c, found, cached, prompt, now)

    def merge(self, ops: Iterable[Op], source: Source, now: float) -> None:
        self.index.merge(ops, source, now)


# -- lookup and record -------------------------------------------------------------------------


def test_the_longest_match_of_each_target_is_found() -> None:
    fleet = Fleet()
    fleet.record(A, TWO)
    fleet.record(B, ONE)
    assert fleet.matched(FIVE) == {A: 3 * STEP, B: 2 * STEP}


def test_of_a_longer_prompt_what_is_asked_for_counts() -> None:
    fleet = Fleet()
    fleet.record(A, FIVE)
    assert fleet.matched(ONE) == {A: 2 * STEP}


def test_another_start_matches_nothing() -> None:
    fleet = Fleet()
    fleet.record(A, FIVE)
    assert fleet.matched(chain("t", "1", "2")) == {}


def test_a_branch_matches_up_to_where_it_parts() -> None:
    fleet = Fleet()
    fleet.record(A, FIVE)
    assert fleet.matched(chain("s", "1", "other")) == {A: 2 * STEP}


def test_a_match_tells_how_it_is_known() -> None:
    fleet = Fleet()
    fleet.merge([Op(A, ONE.links, 5)], Source.PEER, 1.0)
    assert fleet.lookup(ONE)[A].source is Source.PEER
    fleet.record(A, ONE)
    assert fleet.lookup(ONE)[A].source is Source.LOCAL


def test_of_many_targets_the_last_ones_are_remembered() -> None:
    fleet = Fleet()
    for i in range(6):
        fleet.record(f"t{i}", ONE, float(i))
    assert set(fleet.matched(ONE)) == {"t2", "t3", "t4", "t5"}
    assert len(fleet.matched(ONE)) == TARGETS_AN_ENTRY


def test_what_was_not_used_for_longest_is_dropped_and_ends_before_starts() -> None:
    fleet = Fleet(capacity=5)
    fleet.record(A, chain("x", "y", "z"))
    fleet.record(A, FIVE)
    assert len(fleet.index) == 5
    assert fleet.matched(chain("x", "y", "z")) == {}
    fleet.record(A, chain("n"))
    assert fleet.matched(FIVE) == {A: 4 * STEP}


def test_a_prompt_without_links_leaves_nothing() -> None:
    fleet = Fleet()
    fleet.record(A, Chain())
    assert fleet.matched(Chain()) == {}
    assert len(fleet.index) == 0


# -- generations -------------------------------------------------------------------------------


def test_an_engine_that_started_anew_holds_nothing() -> None:
    fleet = Fleet()
    fleet.record(A, ONE)
    fleet.record(B, ONE)
    fleet.restarts(A)
    assert fleet.matched(ONE) == {B: 2 * STEP}
    fleet.record(A, SYS)
    assert fleet.matched(ONE) == {A: STEP, B: 2 * STEP}


def test_a_request_from_before_a_restart_leaves_nothing() -> None:
    fleet = Fleet()
    generation = fleet.generation(A)
    fleet.restarts(A)
    fleet.index.record(A, generation, ONE, 1.0)
    assert fleet.matched(ONE) == {}


def test_a_generation_may_begin_anew() -> None:
    """The target was made again, for another name of the engine's."""
    fleet = Fleet()
    fleet.record(A, FIVE)
    fleet.generations[A] = 0
    assert fleet.matched(FIVE) == {}
    fleet.record(A, ONE)
    assert fleet.matched(FIVE) == {A: 2 * STEP}


def test_restored_entries_outlive_the_first_word_of_a_generation() -> None:
    fleet = Fleet()
    fleet.merge([Op(A, ONE.links, 5)], Source.RESTORED, 1.0)
    fleet.generations[A] = 7
    assert fleet.matched(ONE) == {A: 2 * STEP}


def test_only_the_targets_asked_about_are_told() -> None:
    fleet = Fleet()
    fleet.record(A, ONE)
    fleet.record(B, ONE)
    assert set(fleet.index.lookup(ONE, {B: 3})) == {B}


def test_what_is_void_makes_room_for_the_living() -> None:
    fleet = Fleet()
    for i in range(TARGETS_AN_ENTRY):
        fleet.record(f"t{i}", ONE, 10.0)
    fleet.restarts("t2")
    fleet.record(B, ONE, 10.0)
    assert set(fleet.matched(ONE)) == {"t0", "t1", "t3", B}


# -- replies -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cached", "outcome"),
    [
        (None, Outcome.UNKNOWN),
        (1250, Outcome.HIT),
        (700, Outcome.HIT),
        (600, Outcome.WRONG),
        (0, Outcome.WRONG),
    ],
)
def test_a_prediction_is_held_against_the_reply(cached: int | None, outcome: Outcome) -> None:
    fleet = Fleet()
    fleet.record(A, FIVE)
    assert fleet.reply(A, FIVE, cached) is outcome


@pytest.mark.parametrize(
    ("cached", "outcome"), [(None, Outcome.UNKNOWN), (28, Outcome.MISS), (200, Outcome.UNPREDICTED)]
)
def test_without_a_prediction_only_a_real_hit_counts_as_one(cached: int | None, outcome: Outcome) -> None:
    assert Fleet().reply(A, FIVE, cached) is outcome


def test_the_unit_of_a_reply_is_its_own_prompt() -> None:
    """A tokenizer that makes twice as many tokens of this text reports twice as many cached."""
    fleet = Fleet()
    fleet.record(A, FIVE)
    assert fleet.reply(A, FIVE, 1300, of=2500) is Outcome.HIT
    assert fleet.reply(A, FIVE, 1200, of=2500) is Outcome.WRONG


def test_a_reply_that_tells_only_the_cached_tokens_is_read_at_four_bytes_a_token() -> None:
    fleet = Fleet()
    fleet.record(A, FIVE)
    found = fleet.lookup(FIVE)[A]
    assert fleet.index.correct(A, 3, FIVE, found, 700, None, 2.0) is Outcome.HIT
    assert fleet.index.correct(A, 3, FIVE, found, 500, None, 2.0) is Outcome.WRONG


def test_what_the_engine_no_longer_had_is_forgotten_and_the_rest_is_not() -> None:
    fleet = Fleet()
    fleet.record(A, FIVE)
    fleet.record(B, FIVE)
    fleet.reply(A, FIVE, 500)
    assert fleet.matched(FIVE) == {A: 2 * STEP, B: 5 * STEP}


def test_what_was_forgotten_is_known_again_once_it_was_computed_anew() -> None:
    fleet = Fleet()
    fleet.record(A, FIVE, 9.0)
    fleet.reply(A, FIVE, 0, now=9.0)
    fleet.record(A, FIVE, 9.0)
    assert fleet.matched(FIVE) == {A: 5 * STEP}


def test_after_an_unseen_restart_the_first_wrong_prediction_voids_what_is_older() -> None:
    fleet = Fleet()
    older, newer = chain("x", "y", "z"), chain("u", "v")
    fleet.record(A, older, 1.0)
    fleet.record(A, FIVE, 2.0)
    fleet.record(B, older, 1.0)
    fleet.record(A, newer, 3.0)
    assert fleet.reply(A, FIVE, 0, now=4.0) is Outcome.WRONG
    assert fleet.matched(older) == {B: 3 * STEP}
    assert fleet.matched(newer) == {A: 2 * STEP}


def test_a_miss_of_a_shared_system_prompt_alone_voids_nothing_else() -> None:
    """llama.cpp: the slots that hold it may all have been busy."""
    fleet = Fleet()
    fleet.record(A, FIVE)
    assert fleet.reply(A, chain("s", "new"), 0) is Outcome.WRONG
    assert fleet.matched(FIVE) == {A: 5 * STEP}


def test_a_reply_from_before_a_restart_unlearns_nothing() -> None:
    fleet = Fleet()
    fleet.record(A, FIVE)
    found, generation = fleet.lookup(FIVE)[A], fleet.generation(A)
    fleet.restarts(A)
    fleet.record(A, FIVE)
    assert fleet.index.correct(A, generation, FIVE, found, 0, 1250, 2.0) is Outcome.WRONG
    assert fleet.matched(FIVE) == {A: 5 * STEP}


def test_a_target_that_never_reuses_is_no_longer_believed_until_it_does() -> None:
    fleet = Fleet()
    for i in range(DOUBT):
        fleet.record(A, FIVE, float(i))
        assert fleet.matched(FIVE) == {A: 5 * STEP}
        assert fleet.reply(A, FIVE, 0) is Outcome.WRONG
    fleet.record(A, FIVE)
    assert fleet.matched(FIVE) == {A: 0}
    assert fleet.reply(A, FIVE, 0) is Outcome.MISS
    fleet.record(A, FIVE)
    assert fleet.reply(A, FIVE, 1200) is Outcome.UNPREDICTED
    assert fleet.matched(FIVE) == {A: 5 * STEP}


# -- engines that keep one prompt a slot -------------------------------------------------------


def test_a_new_prompt_takes_the_slot_idle_for_longest() -> None:
    """Ollama 0.24.0: three prompts in turn on two places are all cold."""
    fleet = Fleet()
    x, y, z = chain("x", "1"), chain("y", "1"), chain("z", "1")
    for i, c in enumerate((x, y, z)):
        fleet.record(A, c, float(i), prompts=2)
    assert [fleet.matched(c) for c in (x, y, z)] == [{}, {A: 2 * STEP}, {A: 2 * STEP}]
    fleet.record(A, x, 4.0, prompts=2)
    assert [fleet.matched(c) for c in (x, y, z)] == [{A: 2 * STEP}, {}, {A: 2 * STEP}]


def test_the_next_turn_takes_the_slot_of_the_turn_before() -> None:
    fleet = Fleet()
    other = chain("x", "1")
    fleet.record(A, other, 1.0, prompts=2)
    for i, c in enumerate((ONE, TWO, FIVE)):
        fleet.record(A, c, 2.0 + i, prompts=2)
    assert fleet.matched(other) == {A: 2 * STEP}
    assert fleet.matched(FIVE) == {A: 5 * STEP}


def test_a_prompt_that_parts_from_the_slots_own_overwrites_its_end() -> None:
    fleet = Fleet()
    fleet.record(A, FIVE, 1.0, prompts=1)
    fleet.record(A, chain("s", "1", "other"), 2.0, prompts=1)
    assert fleet.matched(FIVE) == {A: 2 * STEP}


def test_what_another_slot_holds_too_is_not_gone_with_the_first() -> None:
    fleet = Fleet()
    x, y = (chain("s", *(f"{name}{i}" for i in range(10))) for name in "xy")
    for i, c in enumerate((x, y, chain("z"))):
        fleet.record(A, c, float(i), prompts=2)
    assert fleet.matched(x) == {A: STEP}
    assert fleet.matched(chain("s", "new")) == {A: STEP}
    assert fleet.matched(y) == {A: 11 * STEP}


# -- sharing -----------------------------------------------------------------------------------


def test_changes_are_told_to_whoever_listens_and_merged_ones_are_not() -> None:
    ops: list[Op] = []
    fleet, other = Fleet(journal=ops.append), Fleet()
    fleet.record(A, FIVE)
    fleet.reply(A, FIVE, 500)
    fleet.merge([Op(B, ONE.links, 5)], Source.PEER, 1.0)
    assert [(op.target, len(op.links), op.lost) for op in ops] == [(A, 5, False), (A, 3, True)]
    other.merge(ops, Source.PEER, 1.0)
    assert other.matched(FIVE) == {A: 2 * STEP}


def test_an_export_gives_another_index_the_same_knowledge() -> None:
    fleet, other = Fleet(), Fleet()
    fleet.record(A, FIVE, 1.0)
    fleet.record(B, ONE, 2.0)
    fleet.reply(A, FIVE, 500)
    other.merge(fleet.index.export(), Source.RESTORED, 5.0)
    assert other.matched(FIVE) == fleet.matched(FIVE)
    assert other.lookup(FIVE)[B].source is Source.RESTORED


def test_the_most_recently_used_are_exported_first() -> None:
    fleet = Fleet()
    fleet.record(A, ONE, 1.0)
    fleet.record(B, chain("x"), 2.0)
    assert [op.target for op in fleet.index.export()] == [B, A]


def test_an_export_goes_on_while_the_index_changes() -> None:
    fleet = Fleet()
    fleet.record(A, FIVE, 1.0)
    fleet.record(B, chain("x"), 2.0)
    ops = fleet.index.export()
    first = next(ops)
    fleet.record(A, chain("y"), 3.0)
    assert [op.target for op in (first, *ops)] == [B, A]


def test_restored_entries_take_only_free_room_and_are_the_first_to_go() -> None:
    fleet, full = Fleet(capacity=6), Fleet()
    full.record(A, chain("x", "y", "z"), 1.0)
    fleet.record(B, FIVE, 2.0)
    fleet.merge(full.index.export(), Source.RESTORED, 3.0)
    assert fleet.matched(FIVE) == {B: 5 * STEP}
    assert fleet.matched(chain("x", "y", "z")) == {A: STEP}
    fleet.record(B, chain("n"), 4.0)
    assert fleet.matched(chain("x", "y", "z")) == {}


def test_a_peers_record_from_before_a_restart_is_not_believed() -> None:
    fleet = Fleet()
    fleet.record(A, ONE, 10.0)
    fleet.restarts(A)
    fleet.merge([Op(A, ONE.links, 9 * 1024)], Source.PEER, 10.0)
    assert fleet.matched(ONE) == {}


def test_a_peer_whose_clock_is_hours_ahead_is_not_believed() -> None:
    fleet = Fleet()
    fleet.merge([Op(A, ONE.links, 9000 * 1024), Op(A, ONE.links, -1)], Source.PEER, 10.0)
    assert fleet.matched(ONE) == {}


def test_links_of_64_bits_are_carried() -> None:
    fleet = Fleet()
    c = Chain(((1 << 64) - 1,), (600,), 600)
    fleet.record(A, c)
    assert next(fleet.index.export()).links == c.links


def test_nothing_of_a_prompt_shows() -> None:
    fleet = Fleet()
    fleet.record(A, ONE)
    assert repr(fleet.index) == "<PrefixIndex of 2 entries, 1 targets>"


def test_a_mark_fits_its_64_bits_for_centuries() -> None:
    fleet = Fleet()
    fleet.record(A, ONE, 4e9)
    assert struct.calcsize("<Q") == 8
    assert fleet.lookup(ONE)[A] == Match(2 * STEP, 2 * STEP, Source.LOCAL, 2, 4_000_000_000 * 1024)
    assert fleet.index.capacity == CAPACITY
