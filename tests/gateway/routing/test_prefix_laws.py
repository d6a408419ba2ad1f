"""What holds for the index whatever is recorded, corrected, merged, and in whatever order."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.links import Chain
from gateway.routing.prefix import TARGETS_AN_ENTRY, Match, Op, PrefixIndex, Source

TARGETS = [f"http://{c} m" for c in "abcdef"]
WORDS = st.lists(st.sampled_from("xyz"), max_size=6).map("".join)


def chain(words: str) -> Chain:
    """The prompts are the words over a small alphabet, so that many share a start."""
    links = tuple(hash(words[: i + 1]) & 0xFFFFFFFFFFFFFFFF for i in range(len(words)))
    return Chain(links, tuple(700 * (i + 1) for i in range(len(words))), 700 * len(words))


events = st.lists(
    st.tuples(
        st.sampled_from(["record", "record", "slot", "correct", "void", "merge"]),
        st.sampled_from(TARGETS),
        WORDS,
        st.integers(0, 20),
    ),
    max_size=25,
)
op_lists = st.lists(
    st.builds(
        lambda target, words, ticks, lost: Op(target, chain(words).links, ticks, lost),
        st.sampled_from(TARGETS),
        WORDS,
        st.integers(1, 6),
        st.booleans(),
    ),
    max_size=12,
)


GENERATIONS = dict.fromkeys(TARGETS, 0)


def lookup(index: PrefixIndex, words: str, generations: dict[str, int] = GENERATIONS) -> dict[str, Match]:
    return index.lookup(chain(words), generations)


def play(
    index: PrefixIndex, happened: Iterable[tuple[str, str, str, int]]
) -> tuple[dict[str, set[str]], dict[str, int]]:
    """Returns the prompts that each target was ever said to hold, and the targets' generations."""
    held: dict[str, set[str]] = {}
    generations = dict(GENERATIONS)
    for kind, target, words, n in happened:
        c, now = chain(words), float(n)
        generation = generations[target]
        if kind in ("record", "slot"):
            index.record(target, generation, c, now, prompts=2 if kind == "slot" else None)
            held.setdefault(target, set()).add(words)
        elif kind == "merge":
            index.merge([Op(target, c.links, n)], Source.PEER, now)
            held.setdefault(target, set()).add(words)
        elif kind == "correct":
            found = index.lookup(c, generations).get(target)
            index.correct(target, generation, c, found, n * 50, 50 * len(words), now)
        else:
            generations[target] += 1
    index.lookup(chain(""), generations)
    return held, generations


def common(a: str, b: str) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def known(index: PrefixIndex) -> set[tuple[str, int, int, bool]]:
    return {(op.target, link, op.ticks, op.lost) for op in index.export() for link in op.links}


def merged(*lists: tuple[list[Op], Source]) -> PrefixIndex:
    index = PrefixIndex()
    for ops, source in lists:
        index.merge(ops, source, 100.0)
    return index


def same(a: PrefixIndex, b: PrefixIndex, words: Iterable[str]) -> bool:
    return known(a) == known(b) and all(lookup(a, w) == lookup(b, w) for w in words)


@given(events, st.integers(1, 8))
def test_there_are_never_more_entries_or_targets_an_entry_than_allowed(
    happened: list[tuple[str, str, str, int]], capacity: int
) -> None:
    index = PrefixIndex(capacity)
    play(index, happened)
    assert len(index) <= capacity
    told: dict[int, int] = {}
    for _, link, _, _ in known(index):
        told[link] = told.get(link, 0) + 1
    assert all(n <= TARGETS_AN_ENTRY for n in told.values())


@given(events, WORDS)
def test_no_more_is_claimed_than_was_recorded(happened: list[tuple[str, str, str, int]], asked: str) -> None:
    index = PrefixIndex()
    held, now = play(index, happened)
    for target, match in lookup(index, asked, now).items():
        assert match.bytes <= match.recorded <= 700 * max(common(asked, w) for w in held[target])


@given(events, WORDS, WORDS)
def test_a_longer_prompt_never_matches_less(
    happened: list[tuple[str, str, str, int]], start: str, more: str
) -> None:
    index = PrefixIndex()
    _, now = play(index, happened)
    longer = lookup(index, start + more, now)
    for target, match in lookup(index, start, now).items():
        assert longer[target].recorded >= match.recorded


@given(events, st.sampled_from(TARGETS), WORDS)
def test_what_was_just_recorded_is_found_whole(
    happened: list[tuple[str, str, str, int]], target: str, words: str
) -> None:
    index = PrefixIndex()
    _, now = play(index, happened)
    index.record(target, now[target], chain(words), 0.0)
    if words:
        assert lookup(index, words, now)[target].recorded == 700 * len(words)


@given(events, st.sampled_from(TARGETS), WORDS)
def test_after_a_restart_nothing_is_found(
    happened: list[tuple[str, str, str, int]], target: str, words: str
) -> None:
    index = PrefixIndex()
    _, now = play(index, happened)
    assert target not in lookup(index, words, {**now, target: now[target] + 1})


@given(op_lists, op_lists, st.lists(WORDS, max_size=5))
def test_merges_commute(one: list[Op], other: list[Op], asked: list[str]) -> None:
    a, b = (one, Source.PEER), (other, Source.RESTORED)
    assert same(merged(a, b), merged(b, a), asked)


@given(op_lists, st.randoms(use_true_random=False), st.lists(WORDS, max_size=5))
def test_the_order_of_operations_is_of_no_account(ops: list[Op], random: Random, asked: list[str]) -> None:
    shuffled = list(ops)
    random.shuffle(shuffled)
    assert same(merged((ops, Source.PEER)), merged((shuffled, Source.PEER)), asked)


@given(op_lists, op_lists, st.lists(WORDS, max_size=5))
def test_merging_again_changes_nothing(one: list[Op], other: list[Op], asked: list[str]) -> None:
    a, b = (one, Source.PEER), (other, Source.PEER)
    assert same(merged(a, b), merged(a, b, a, b, b), asked)


@given(events, st.lists(WORDS, max_size=5))
def test_an_export_is_all_that_is_known(happened: list[tuple[str, str, str, int]], asked: list[str]) -> None:
    index = PrefixIndex()
    _, now = play(index, happened)
    copy = merged((list(index.export()), Source.RESTORED))
    assert known(copy) == known(index)
    for words in asked:
        found, copied = lookup(index, words, now), lookup(copy, words)
        assert {t: m.recorded for t, m in found.items()} == {t: m.recorded for t, m in copied.items()}


@given(events, events, st.lists(WORDS, max_size=5))
def test_two_instances_that_tell_each_other_everything_agree(
    here: list[tuple[str, str, str, int]], there: list[tuple[str, str, str, int]], asked: list[str]
) -> None:
    said: list[Op] = []
    heard: list[Op] = []
    a, b = PrefixIndex(journal=said.append), PrefixIndex(journal=heard.append)
    play(a, [e for e in here if e[0] in ("record", "slot")])
    play(b, [e for e in there if e[0] in ("record", "slot")])
    a.merge(heard, Source.PEER, 100.0)
    b.merge(said, Source.PEER, 100.0)
    assert known(a) == known(b)
    for words in asked:
        assert lookup(a, words).keys() == lookup(b, words).keys()
