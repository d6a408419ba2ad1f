"""/admin/: a window on the config and on what lives now."""

from __future__ import annotations

import pytest
import yaml

from engines.signals import Load, Residency
from gateway.accounts.admission import Admission
from gateway.accounts.keys import digest_of
from gateway.accounts.usage import Counts
from gateway.config import BackendConfig, Config, Secret
from gateway.proxy.done import Done
from gateway.web import sections
from gateway.web.sections import SECTIONS
from tests.gateway.web.house import ALICE, OPS, URL, Visitor, gateway, keys, known


async def entered() -> Visitor:
    visitor = Visitor(gateway(*keys()))
    await visitor.log_in()
    return visitor


async def test_keys_are_shown_with_what_they_used_and_have_left_and_never_as_a_hash() -> None:
    visitor = await entered()
    made = visitor.gateway
    made.accounts.usage.add(made.accounts.today, "alice", "m", Counts(1, 300, 20))
    admission = made.accounts.admit([ALICE.encode()], ["m"], 100, 50)
    assert isinstance(admission, Admission)
    page = (await visitor.get("/admin/keys/")).text
    assert "320 of 1,000" in page
    assert "150 held" in page
    assert "1 of 60" in page
    assert "<time" in page
    for key in (OPS, ALICE):
        assert digest_of(key) not in page
        assert key not in page


async def test_what_lives_is_shown() -> None:
    visitor = await entered()
    known(visitor.gateway, Load(3, 1, 4, 0.25), Residency.LOADED)
    done = Done(
        "req-1", "POST", "/v1/chat/completions", visitor.gateway.now(), key="alice", model="m", backend=URL
    )
    visitor.gateway.consumer.live[id(done)] = done
    assert "vLLM" in (await visitor.get("/admin/backends/")).text
    assert "25%" in (await visitor.get("/admin/targets/")).text
    assert "req-1" in (await visitor.get("/admin/requests/")).text


@pytest.mark.parametrize("section", [s.name for s in SECTIONS])
async def test_each_page_says_that_the_config_file_is_where_to_change_it(section: str) -> None:
    visitor = await entered()
    page = (await visitor.get(f"/admin/{section}/")).text
    assert "change it in the config file" in page
    for word in ("addlink", "changelink", "deletelink", "/add/", "password_change"):
        assert word not in page


async def test_the_index_leads_to_every_page() -> None:
    page = (await (await entered()).get("/admin/")).text
    for section in SECTIONS:
        assert f'href="/admin/{section.name}/"' in page


def test_the_config_is_shown_without_its_secrets() -> None:
    config = Config(keys=keys(), backends=[BackendConfig(url=URL, api_key=Secret("sk-of-the-engine"))])
    text = yaml.safe_dump(sections.plain(config))
    assert "sk-of-the-engine" not in text
    assert digest_of(OPS) not in text
    told = yaml.safe_load(text)
    assert told["keys"][0] == {"name": "ops", "sha256": "(hidden)", "weight": 1, "admin": True}
    assert told["backends"][0]["api_key"] == "(hidden)"
    assert told["limits"]["body"] == "32MiB"
    assert told["limits"]["first_byte"] == "600s"


def test_every_secret_of_the_config_s_types_is_hidden() -> None:
    assert sections.plain({"x": [Secret("s")]}) == {"x": ["(hidden)"]}
