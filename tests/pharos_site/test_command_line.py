from __future__ import annotations

import pytest

from pharos_site.command_line import access_log_asked, address_asked, endpoints_for, with_backlog

DEFAULT = ["tcp:port=8000:interface=127.0.0.1"]
APP = "pharos_site.asgi:application"


@pytest.mark.parametrize(
    ("argv", "endpoints", "asked"),
    [
        ([APP], DEFAULT, False),
        (["-v", "2", APP], DEFAULT, False),
        (["-p", "8000", APP], DEFAULT, True),
        (["-b", "127.0.0.1", APP], DEFAULT, True),
        (["-e", DEFAULT[0], APP], DEFAULT, True),
        (["-p", "9000", APP], ["tcp:port=9000:interface=127.0.0.1"], True),
        (["-u", "/run/pharos", APP], ["unix:/run/pharos"], True),
        (["--fd", "3", APP], ["fd:fileno=3"], True),
        ([], DEFAULT, False),  # not Daphne's command: nobody asked for its default
    ],
)
def test_an_address_counts_as_asked_for_only_if_somebody_typed_it(
    argv: list[str], endpoints: list[str], asked: bool
) -> None:
    assert address_asked(argv, endpoints) is asked


@pytest.mark.parametrize(
    ("argv", "asked"), [([APP], False), (["--access-log", "-", APP], True), (["-v", "1", APP], False)]
)
def test_an_access_log_is_kept_only_if_asked_for(argv: list[str], asked: bool) -> None:
    assert access_log_asked(argv) is asked


def test_an_address_of_the_config_becomes_an_endpoint() -> None:
    assert endpoints_for(("127.0.0.1", 8090)) == ["tcp:port=8090:interface=127.0.0.1"]
    assert endpoints_for(("::1", 8090)) == [r"tcp:port=8090:interface=\:\:1"]


def test_only_tcp_endpoints_without_one_get_a_backlog() -> None:
    assert with_backlog(DEFAULT[0], 1024) == DEFAULT[0] + ":backlog=1024"
    assert with_backlog("tcp:port=1:backlog=5", 1024) == "tcp:port=1:backlog=5"
    assert with_backlog("unix:/run/pharos", 1024) == "unix:/run/pharos"
