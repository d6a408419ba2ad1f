"""Who is let in, and what becomes of it."""

from __future__ import annotations

import pytest

from gateway.accounts.admission import UNUSED, Spending, Why
from gateway.accounts.keys import NOBODY
from gateway.accounts.usage import Counts
from tests.gateway.accounts.clocks import NOON, Clocks, admit, entry, let_in, refused, secret

KEYS = [entry("alice", weight=3), entry("onlym", models=["m"]), entry("ops", admin=True)]


def test_without_keys_everybody_is_let_in_as_one() -> None:
    accounts = Clocks().accounts()
    for name in (None, "anything"):
        assert let_in(accounts, name).key is NOBODY
    assert (NOBODY.name, NOBODY.weight, NOBODY.admin) == ("anonymous", 1, False)
    assert accounts.last_seen == {}


def test_with_keys_a_request_needs_one() -> None:
    accounts = Clocks().accounts(*KEYS)
    assert refused(accounts, None).why is Why.NO_KEY
    assert refused(accounts, "mallory").why is Why.WRONG_KEY
    assert let_in(accounts, "alice").key.weight == 3


def test_a_model_outside_the_allow_list_does_not_exist_for_the_key() -> None:
    accounts = Clocks().accounts(*KEYS)
    assert refused(accounts, "onlym", names=["n"]).why is Why.NO_SUCH_MODEL
    let_in(accounts, "onlym", names=["m"])
    let_in(accounts, "onlym", names=["m:latest", "m"])
    let_in(accounts, "alice", names=["n"])


def test_usage_is_counted_once_under_the_key_and_the_models_first_name() -> None:
    accounts = Clocks().accounts(*KEYS)
    admission = let_in(accounts, names=["m:latest", "m"])
    open_ = [admission.open]
    for _ in range(3):
        admission.settle(Spending(10, 5, 4))
    admission.refund()
    assert [*open_, admission.open] == [True, False]
    assert [(c.key, c.model, c.counts) for c in accounts.usage.export()] == [
        ("alice", "m:latest", Counts(1, 10, 5, 4))
    ]


@pytest.mark.parametrize(
    ("spending", "counted"),
    [
        (Spending(), Counts(1, unmetered=1)),
        (Spending(7), Counts(1, 7, unmetered=1)),
        (Spending(7, 0), Counts(1, 7)),
        (UNUSED, Counts(1)),
        (Spending(7, 3, abandoned=True), Counts(1, 7, 3, abandoned=1)),
        (Spending(abandoned=True), Counts(1, unmetered=1, abandoned=1)),
    ],
)
def test_unknown_is_never_counted_as_nothing(spending: Spending, counted: Counts) -> None:
    assert spending.counts() == counted


def test_a_reload_swaps_the_keys_at_once_and_forgets_no_usage() -> None:
    clocks = Clocks()
    accounts = clocks.accounts(entry("alice", rpm=2), entry("bob"))
    running = let_in(accounts, "alice")
    let_in(accounts, "bob")
    accounts.replace([entry("alice", rpm=1), entry("carol")])
    assert refused(accounts, "alice").why is Why.REQUESTS
    assert refused(accounts, "bob").why is Why.WRONG_KEY
    let_in(accounts, "carol")
    running.settle(Spending(1, 1))
    assert accounts.usage.tokens(accounts.today, "alice") == 2
    assert accounts.last_seen == {"alice": NOON, "carol": NOON}


def test_nothing_that_can_be_printed_has_a_key_in_it() -> None:
    accounts = Clocks().accounts(*KEYS)
    shown = repr(
        [accounts.keys, *accounts.keys, accounts.who([b"x"]), admit(accounts), refused(accounts, None)]
    )
    shown += repr([vars(accounts), accounts.usage.export(), refused(accounts, "onlym", names=["n"])])
    assert secret("alice") not in shown
    assert all(k.sha256[:12] not in shown for k in KEYS)
