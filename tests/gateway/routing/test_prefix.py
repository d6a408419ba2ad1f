"""Who is thought to hold a prompt, and what teaches that."""

from __future__ import annotations

import struct

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


def matched(index: PrefixIndex, c: Chain) -> dict[str, int]:
    return {target: match.bytes for target, match in index.lookup(c).items()}


def record(index: PrefixIndex, target: str, c: Chain, now: float = 1.0, prompts: int | None = None) -> None:
    index.record(target, index.generation(target), c, now, prompts)


def reply(
    index: PrefixIndex, target: str, c: Chain, cached: int | None, of: int | None = None, now: float = 2.0
) -> Outcome:
    """A reply that reports so many tokens cached, where a link has 250."""
    prompt = len(c.links) * 250 if of is None else of
    return index.correct(
        target, index.generation(target), c, index.lookup(c).get(target), cached, prompt, now
    )


# -- lookup and record -------------------------------------------------------------------------


def test_the_longest_match_of_each_target_is_found() -> None:
    index = PrefixIndex()
    record(index, A, TWO)
    record(index, B, ONE)
    assert matched(index, FIVE) == {A: 3 * STEP, B: 2 * STEP}


def test_of_a_longer_prompt_what_is_asked_for_counts() -> None:
    index = PrefixIndex()
    record(index, A, FIVE)
    assert matched(index, ONE) == {A: 2 * STEP}


def test_another_start_matches_nothing() -> None:
    index = PrefixIndex()
    record(index, A, FIVE)
    assert matched(index, chain("t", "1", "2")) == {}


def test_a_branch_matches_up_to_where_it_parts() -> None:
    index = PrefixIndex()
    record(index, A, FIVE)
    assert matched(index, chain("s", "1", "other")) == {A: 2 * STEP}


def test_a_match_tells_how_it_is_known() -> None:
    index = PrefixIndex()
    index.merge([Op(A, ONE.links, 5)], Source.PEER, 1.0)
    assert index.lookup(ONE)[A].source is Source.PEER
    record(index, A, ONE)
    assert index.lookup(ONE)[A].source is Source.LOCAL


def test_of_many_targets_the_last_ones_are_remembered() -> None:
    index = PrefixIndex()
    for i in range(6):
        record(index, f"t{i}", ONE, float(i))
    assert set(matched(index, ONE)) == {"t2", "t3", "t4", "t5"}
    assert len(matched(index, ONE)) == TARGETS_AN_ENTRY


def test_what_was_not_used_for_longest_is_dropped_and_ends_before_starts() -> None:
    index = PrefixIndex(capacity=5)
    record(index, A, chain("x", "y", "z"))
    record(index, A, FIVE)
    assert len(index) == 5
    assert matched(index, chain("x", "y", "z")) == {}
    record(index, A, chain("n"))
    assert matched(index, FIVE) == {A: 4 * STEP}


def test_a_prompt_without_links_leaves_nothing() -> None:
    index = PrefixIndex()
    record(index, A, Chain())
    assert matched(index, Chain()) == {}
    assert len(index) == 0


# -- generations -------------------------------------------------------------------------------


def test_an_engine_that_started_anew_holds_nothing() -> None:
    index = PrefixIndex()
    record(index, A, ONE)
    record(index, B, ONE)
    index.void(A)
    assert matched(index, ONE) == {B: 2 * STEP}
    record(index, A, SYS)
    assert matched(index, ONE) == {A: STEP, B: 2 * STEP}


def test_a_request_from_before_a_restart_leaves_nothing() -> None:
    index = PrefixIndex()
    generation = index.generation(A)
    index.void(A)
    index.record(A, generation, ONE, 1.0)
    assert matched(index, ONE) == {}


def test_what_is_void_makes_room_for_the_living() -> None:
    index = PrefixIndex()
    for i in range(TARGETS_AN_ENTRY):
        record(index, f"t{i}", ONE, 10.0)
    index.void("t2")
    record(index, B, ONE, 10.0)
    assert set(matched(index, ONE)) == {"t0", "t1", "t3", B}


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
    index = PrefixIndex()
    record(index, A, FIVE)
    assert reply(index, A, FIVE, cached) is outcome


@pytest.mark.parametrize(
    ("cached", "outcome"), [(None, Outcome.UNKNOWN), (28, Outcome.MISS), (200, Outcome.UNPREDICTED)]
)
def test_without_a_prediction_only_a_real_hit_counts_as_one(cached: int | None, outcome: Outcome) -> None:
    assert reply(PrefixIndex(), A, FIVE, cached) is outcome


def test_the_unit_of_a_reply_is_its_own_prompt() -> None:
    """A tokenizer that makes twice as many tokens of this text reports twice as many cached."""
    index = PrefixIndex()
    record(index, A, FIVE)
    assert reply(index, A, FIVE, 1300, of=2500) is Outcome.HIT
    assert reply(index, A, FIVE, 1200, of=2500) is Outcome.WRONG


def test_a_reply_that_tells_only_the_cached_tokens_is_read_at_four_bytes_a_token() -> None:
    index = PrefixIndex()
    record(index, A, FIVE)
    found = index.lookup(FIVE)[A]
    assert index.correct(A, 0, FIVE, found, 700, None, 2.0) is Outcome.HIT
    assert index.correct(A, 0, FIVE, found, 500, None, 2.0) is Outcome.WRONG


def test_what_the_engine_no_longer_had_is_forgotten_and_the_rest_is_not() -> None:
    index = PrefixIndex()
    record(index, A, FIVE)
    record(index, B, FIVE)
    reply(index, A, FIVE, 500)
    assert matched(index, FIVE) == {A: 2 * STEP, B: 5 * STEP}


def test_what_was_forgotten_is_known_again_once_it_was_computed_anew() -> None:
    index = PrefixIndex()
    record(index, A, FIVE, 9.0)
    reply(index, A, FIVE, 0, now=9.0)
    record(index, A, FIVE, 9.0)
    assert matched(index, FIVE) == {A: 5 * STEP}


def test_after_an_unseen_restart_the_first_wrong_prediction_voids_what_is_older() -> None:
    index = PrefixIndex()
    older, newer = chain("x", "y", "z"), chain("u", "v")
    record(index, A, older, 1.0)
    record(index, A, FIVE, 2.0)
    record(index, B, older, 1.0)
    record(index, A, newer, 3.0)
    assert reply(index, A, FIVE, 0, now=4.0) is Outcome.WRONG
    assert matched(index, older) == {B: 3 * STEP}
    assert matched(index, newer) == {A: 2 * STEP}


def test_a_miss_of_a_shared_system_prompt_alone_voids_nothing_else() -> None:
    """llama.cpp: the slots that hold it may all have been busy."""
    index = PrefixIndex()
    record(index, A, FIVE)
    assert reply(index, A, chain("s", "new"), 0) is Outcome.WRONG
    assert matched(index, FIVE) == {A: 5 * STEP}


def test_a_reply_from_before_a_restart_unlearns_nothing() -> None:
    index = PrefixIndex()
    record(index, A, FIVE)
    found, generation = index.lookup(FIVE)[A], index.generation(A)
    index.void(A)
    record(index, A, FIVE)
    assert index.correct(A, generation, FIVE, found, 0, 1250, 2.0) is Outcome.WRONG
    assert matched(index, FIVE) == {A: 5 * STEP}


def test_a_target_that_never_reuses_is_no_longer_believed_until_it_does() -> None:
    index = PrefixIndex()
    for i in range(DOUBT):
        record(index, A, FIVE, float(i))
        assert matched(index, FIVE) == {A: 5 * STEP}
        assert reply(index, A, FIVE, 0) is Outcome.WRONG
    record(index, A, FIVE)
    assert matched(index, FIVE) == {A: 0}
    assert reply(index, A, FIVE, 0) is Outcome.MISS
    record(index, A, FIVE)
    assert reply(index, A, FIVE, 1200) is Outcome.UNPREDICTED
    assert matched(index, FIVE) == {A: 5 * STEP}


# -- engines that keep one prompt a slot -------------------------------------------------------


def test_a_new_prompt_takes_the_slot_idle_for_longest() -> None:
    """Ollama 0.24.0: three prompts in turn on two places are all cold."""
    index = PrefixIndex()
    x, y, z = chain("x", "1"), chain("y", "1"), chain("z", "1")
    for i, c in enumerate((x, y, z)):
        record(index, A, c, float(i), prompts=2)
    assert [matched(index, c) for c in (x, y, z)] == [{}, {A: 2 * STEP}, {A: 2 * STEP}]
    record(index, A, x, 4.0, prompts=2)
    assert [matched(index, c) for c in (x, y, z)] == [{A: 2 * STEP}, {}, {A: 2 * STEP}]


def test_the_next_turn_takes_the_slot_of_the_turn_before() -> None:
    index = PrefixIndex()
    other = chain("x", "1")
    record(index, A, other, 1.0, prompts=2)
    for i, c in enumerate((ONE, TWO, FIVE)):
        record(index, A, c, 2.0 + i, prompts=2)
    assert matched(index, other) == {A: 2 * STEP}
    assert matched(index, FIVE) == {A: 5 * STEP}


def test_a_prompt_that_parts_from_the_slots_own_overwrites_its_end() -> None:
    index = PrefixIndex()
    record(index, A, FIVE, 1.0, prompts=1)
    record(index, A, chain("s", "1", "other"), 2.0, prompts=1)
    assert matched(index, FIVE) == {A: 2 * STEP}


# -- sharing -----------------------------------------------------------------------------------


def test_changes_are_told_to_whoever_listens_and_merged_ones_are_not() -> None:
    ops: list[Op] = []
    index, other = PrefixIndex(journal=ops.append), PrefixIndex()
    record(index, A, FIVE)
    reply(index, A, FIVE, 500)
    index.merge([Op(B, ONE.links, 5)], Source.PEER, 1.0)
    assert [(op.target, len(op.links), op.lost) for op in ops] == [(A, 5, False), (A, 3, True)]
    other.merge(ops, Source.PEER, 1.0)
    assert matched(other, FIVE) == {A: 2 * STEP}


def test_an_export_gives_another_index_the_same_knowledge() -> None:
    index, other = PrefixIndex(), PrefixIndex()
    record(index, A, FIVE, 1.0)
    record(index, B, ONE, 2.0)
    reply(index, A, FIVE, 500)
    other.merge(index.export(), Source.RESTORED, 5.0)
    assert matched(other, FIVE) == matched(index, FIVE)
    assert other.lookup(FIVE)[B].source is Source.RESTORED


def test_the_most_recently_used_are_exported_first() -> None:
    index = PrefixIndex()
    record(index, A, ONE, 1.0)
    record(index, B, chain("x"), 2.0)
    assert [op.target for op in index.export()] == [B, A]


def test_an_export_goes_on_while_the_index_changes() -> None:
    index = PrefixIndex()
    record(index, A, FIVE, 1.0)
    record(index, B, chain("x"), 2.0)
    ops = index.export()
    first = next(ops)
    record(index, A, chain("y"), 3.0)
    assert [op.target for op in (first, *ops)] == [B, A]


def test_restored_entries_take_only_free_room_and_are_the_first_to_go() -> None:
    index, full = PrefixIndex(capacity=6), PrefixIndex()
    record(full, A, chain("x", "y", "z"), 1.0)
    record(index, B, FIVE, 2.0)
    index.merge(full.export(), Source.RESTORED, 3.0)
    assert matched(index, FIVE) == {B: 5 * STEP}
    assert matched(index, chain("x", "y", "z")) == {A: STEP}
    record(index, B, chain("n"), 4.0)
    assert matched(index, chain("x", "y", "z")) == {}


def test_a_peers_record_from_before_a_restart_is_not_believed() -> None:
    index = PrefixIndex()
    record(index, A, ONE, 10.0)
    index.void(A)
    index.merge([Op(A, ONE.links, 9 * 1024)], Source.PEER, 10.0)
    assert matched(index, ONE) == {}


def test_a_peer_whose_clock_is_hours_ahead_is_not_believed() -> None:
    index = PrefixIndex()
    index.merge([Op(A, ONE.links, 9000 * 1024), Op(A, ONE.links, -1)], Source.PEER, 10.0)
    assert matched(index, ONE) == {}


def test_links_of_64_bits_are_carried() -> None:
    index = PrefixIndex()
    c = Chain(((1 << 64) - 1,), (600,), 600)
    record(index, A, c)
    assert next(index.export()).links == c.links


def test_nothing_of_a_prompt_shows() -> None:
    index = PrefixIndex()
    record(index, A, ONE)
    assert repr(index) == "<PrefixIndex of 2 entries, 1 targets>"


def test_a_mark_fits_its_64_bits_for_centuries() -> None:
    index = PrefixIndex()
    record(index, A, ONE, 4e9)
    assert struct.calcsize("<Q") == 8
    assert index.lookup(ONE)[A] == Match(2 * STEP, 2 * STEP, Source.LOCAL, 2, 4_000_000_000 * 1024)
    assert index.capacity == CAPACITY
