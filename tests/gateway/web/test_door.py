"""Who may see the pages."""

from __future__ import annotations

import msgspec
import pytest

from gateway.accounts.keys import digest_of
from gateway.config import Config, Digest, KeyConfig
from gateway.runtime import Gateway
from gateway.web import door
from tests.gateway.web.house import ALICE, OPS, Visitor, gateway, keys


def admin(name: str) -> KeyConfig:
    return KeyConfig(name=name, sha256=Digest(digest_of(f"sk-new-{name}")), admin=True)


def demoted(key: KeyConfig) -> KeyConfig:
    return msgspec.structs.replace(key, admin=False)


PAGES = (
    "/status",
    "/usage",
    "/admin/",
    "/admin/keys/",
    "/admin/config/",
    "/status?format=json",
    "/usage?format=csv",
)
LAN = "192.168.1.20"


# -- with keys ---------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PAGES)
async def test_with_keys_nobody_else_sees_a_page(path: str) -> None:
    came = await Visitor(gateway(*keys())).get(path)
    assert came.status in (302, 401)
    assert b"alice" not in came.body


@pytest.mark.parametrize("path", PAGES)
async def test_whoever_logged_in_sees_every_page(path: str) -> None:
    visitor = Visitor(gateway(*keys()), client=LAN, host="pharos:8090")
    assert (await visitor.log_in()).status == 302
    assert (await visitor.get(path)).status == 200


async def test_a_browser_is_sent_to_the_form_and_back_to_where_it_wanted_to_go() -> None:
    visitor = Visitor(gateway(*keys()))
    sent = await visitor.get("/usage?key=alice")
    assert sent.header("location") == "/admin/login/?next=/usage%3Fkey%3Dalice"
    assert (await visitor.log_in(next_="/usage?key=alice")).header("location") == "/usage?key=alice"


@pytest.mark.parametrize(
    "elsewhere",
    ["//evil.test", "https://evil.test/", "/\\evil.test", "/status\r\nx: y", "/admin/login/", "/v1/models", "/admin//evil", ""],
)  # fmt: skip
async def test_the_form_sends_nobody_elsewhere(elsewhere: str) -> None:
    assert (await Visitor(gateway(*keys())).log_in(next_=elsewhere)).header("location") == "/status"


@pytest.mark.parametrize(
    ("key", "words"), [("sk-wrong", "does not know this key"), (ALICE, "may not read the pages"), ("é\ud83d"[:1], "does not know")]
)  # fmt: skip
async def test_a_key_that_is_none_or_no_admin_s_opens_nothing(key: str, words: str) -> None:
    visitor = Visitor(gateway(*keys()))
    came = await visitor.log_in(key)
    assert came.status == 403
    assert words in came.text
    assert key not in came.text.replace("may not", "")
    assert (await visitor.get("/status")).status == 302


@pytest.mark.parametrize(
    ("header", "value", "status"),
    [
        ("authorization", f"Bearer {OPS}", 200),
        ("x-api-key", OPS, 200),
        ("authorization", f"Bearer {ALICE}", 403),
        ("authorization", "Bearer sk-wrong", 401),
    ],
)
@pytest.mark.parametrize("path", ["/status?format=json", "/usage?format=csv", "/usage?format=json"])
async def test_programs_send_the_key_in_a_header(path: str, header: str, value: str, status: int) -> None:
    visitor = Visitor(gateway(*keys()), client=LAN, accept="*/*")
    came = await visitor.get(path, (header, value))
    assert came.status == status
    if status != 200:
        assert came.json["error"]["message"].endswith(".")


async def test_a_program_without_a_key_is_told_what_to_send() -> None:
    came = await Visitor(gateway(*keys()), accept="application/json").get("/status")
    assert came.status == 401
    assert "Authorization: Bearer" in came.json["error"]["message"]


async def test_a_login_ends_when_its_key_is_taken_away() -> None:
    made = gateway(*keys())
    visitor = Visitor(made)
    await visitor.log_in()
    made.accounts.replace([*keys()[1:], admin("other")])
    assert (await visitor.get("/status")).status == 302


async def test_a_login_ends_when_its_key_may_no_longer_read_the_pages() -> None:
    made = gateway(*keys())
    visitor = Visitor(made)
    await visitor.log_in()
    ops, alice = keys()
    made.accounts.replace([demoted(ops), alice, admin("other")])
    assert (await visitor.get("/status")).status == 302


async def test_a_login_ends_when_another_key_takes_the_name() -> None:
    made = gateway(*keys())
    visitor = Visitor(made)
    await visitor.log_in()
    made.accounts.replace([admin("ops")])
    assert (await visitor.get("/status")).status == 302


async def test_a_login_ends_when_the_first_keys_are_added() -> None:
    made = gateway()
    visitor = Visitor(made)
    assert (await visitor.get("/status")).status == 200
    made.accounts.replace(keys())
    assert (await visitor.get("/status")).status == 302


async def test_after_a_logout_the_old_cookie_opens_nothing() -> None:
    visitor = Visitor(gateway(*keys()))
    await visitor.log_in()
    old, page = dict(visitor.jar), await visitor.get("/status")
    token = page.text.partition('csrfmiddlewaretoken" value="')[2].partition('"')[0]
    assert (await visitor.post("/admin/logout/", {"csrfmiddlewaretoken": token})).status == 302
    visitor.jar = old
    assert (await visitor.get("/status")).status == 302


async def test_a_cookie_that_was_tampered_with_opens_nothing() -> None:
    visitor = Visitor(gateway(*keys()))
    await visitor.log_in()
    visitor.jar["pharos_session"] = visitor.jar["pharos_session"][:-3] + "abc"
    assert (await visitor.get("/status")).status == 302


async def test_keys_of_which_none_is_an_admin_s_are_said_to_be() -> None:
    came = await Visitor(gateway(keys()[1])).get("/status")
    assert came.status == 403
    assert "admin: true" in came.text


# -- forms -------------------------------------------------------------------------------------


async def test_a_form_without_its_token_is_refused() -> None:
    visitor = Visitor(gateway(*keys()))
    came = await visitor.post("/admin/login/", {"key": OPS})
    assert came.status == 403
    assert "reload" in came.text
    assert (await visitor.get("/status")).status == 302


async def test_a_form_of_another_site_is_refused() -> None:
    visitor = Visitor(gateway(*keys()))
    form = await visitor.get("/admin/login/")
    token = form.text.partition('csrfmiddlewaretoken" value="')[2].partition('"')[0]
    sent = {"csrfmiddlewaretoken": token, "key": OPS}
    assert (await visitor.post("/admin/login/", sent, ("origin", "http://evil.test"))).status == 403
    assert (await visitor.post("/admin/login/", sent, ("origin", "null"))).status == 403
    assert (await visitor.post("/admin/login/", sent, ("origin", f"http://{visitor.host}"))).status == 302


@pytest.mark.parametrize(
    "host", ["my_box:8090", "pharos.lan", "[fd00::1]:8090", "PHAROS", "192.168.1.2:8090"]
)
async def test_any_name_that_a_network_gives_the_machine_will_do(host: str) -> None:
    visitor = Visitor(gateway(*keys()), client=LAN, host=host)
    form = await visitor.get("/admin/login/")
    token = form.text.partition('csrfmiddlewaretoken" value="')[2].partition('"')[0]
    sent = {"csrfmiddlewaretoken": token, "key": OPS}
    assert (await visitor.post("/admin/login/", sent, ("origin", f"http://{host}"))).status == 302
    assert (await visitor.get("/status")).status == 200


async def test_the_name_a_page_was_asked_by_is_not_on_it() -> None:
    visitor = Visitor(gateway(*keys()), host="evil.test")
    await visitor.log_in()
    for path in ("/status", "/usage", "/admin/"):
        assert "evil.test" not in (await visitor.get(path)).text


async def test_trying_keys_is_slowed_with_words_and_a_time_to_come_back() -> None:
    visitor = Visitor(gateway(*keys()), client=LAN)
    came = [await visitor.log_in("sk-wrong") for _ in range(6)]
    assert [c.status for c in came] == [403] * 5 + [429]
    assert int(came[-1].header("retry-after") or "") >= 1
    assert (await visitor.log_in()).status == 429  # not even with the right one


async def test_somebody_else_s_tries_do_not_keep_the_operator_out() -> None:
    made = gateway(*keys())
    visitor = Visitor(made, client=LAN)
    for _ in range(6):
        await visitor.log_in("sk-wrong")
    other = Visitor(made, client="192.168.1.21", pages=visitor.pages)
    assert (await other.log_in()).status == 302


# -- cookies and headers -----------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_cookies_are_for_this_site_and_no_script(scheme: str) -> None:
    visitor = Visitor(gateway(*keys()), scheme=scheme)
    if scheme == "https":
        form = await visitor.get("/admin/login/")
        token = form.text.partition('csrfmiddlewaretoken" value="')[2].partition('"')[0]
        origin = ("origin", f"https://{visitor.host}")
        came = await visitor.post("/admin/login/", {"csrfmiddlewaretoken": token, "key": OPS}, origin)
    else:
        form = await visitor.get("/admin/login/")
        came = await visitor.log_in()
    lines = [form.cookies["pharos_csrf"], came.cookies["pharos_session"]]
    for line in lines:
        assert "HttpOnly" in line
        assert "SameSite=" in line
        assert ("Secure" in line) is (scheme == "https")


@pytest.mark.parametrize(
    "path", ["/status", "/admin/login/", "/nothing", "/static/pharos/pharos.css", "/usage?from=x"]
)
async def test_every_reply_keeps_browsers_from_loading_what_is_not_ours(path: str) -> None:
    came = await Visitor(gateway()).get(path)
    policy = came.header("content-security-policy") or ""
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert came.header("x-content-type-options") == "nosniff"
    assert came.header("referrer-policy") == "same-origin"


async def test_pages_hold_no_inline_script_or_style() -> None:
    visitor = Visitor(gateway())
    for path in ("/status", "/usage", "/admin/", "/admin/keys/", "/admin/config/"):
        text = (await visitor.get(path)).text
        assert " style=" not in text
        assert "<style" not in text
        assert text.count("<script") == text.count("<script src=")
        assert "http://" not in text.replace("http://www.w3.org", "").replace("http://box:8000", "")


# -- without keys ------------------------------------------------------------------------------


@pytest.mark.parametrize("client", ["127.0.0.1", "::1", "::ffff:127.0.0.1", "127.8.9.1"])
@pytest.mark.parametrize("host", ["localhost:8090", "127.0.0.1", "[::1]:8090", "pharos.localhost"])
async def test_without_keys_this_machine_sees_the_pages_and_how_to_add_a_key(client: str, host: str) -> None:
    for path in ("/status", "/usage", "/admin/"):
        came = await Visitor(gateway(), client=client, host=host).get(path)
        assert came.status == 200
        assert "keys_new" in came.text


@pytest.mark.parametrize("client", [LAN, "10.0.0.1", "fe80::1%eth0", "::ffff:10.0.0.1", None, "localhost"])
async def test_without_keys_nobody_else_does_and_is_told_why(client: str | None) -> None:
    came = await Visitor(gateway(), client=client).get("/status")
    assert came.status == 403
    assert "keys_new" in came.text


@pytest.mark.parametrize(
    "host", ["evil.test:8090", "localhost.evil.test", "127.0.0.1.evil.test", "192.168.1.2", "-", ""]
)
async def test_a_name_pointed_at_this_machine_by_a_stranger_opens_nothing(host: str) -> None:
    assert (await Visitor(gateway(), host=host).get("/status?format=json")).status == 403


@pytest.mark.parametrize("header", ["x-forwarded-for", "forwarded", "x-real-ip", "via", "x-forwarded-host"])
async def test_a_request_over_a_proxy_here_is_not_one_from_here(header: str) -> None:
    assert (await Visitor(gateway()).get("/status", (header, "for=1.2.3.4"))).status == 403


# -- the rest ----------------------------------------------------------------------------------


async def test_only_pages_are_sent_to_django() -> None:
    made = Gateway(Config())
    assert not any(
        made.routes(p) for p in ("/status", "/usage", "/admin", "/admin/keys/", "/static/pharos/x")
    )
    assert all(
        made.routes(p) for p in ("/", "/v1/models", "/api/tags", "/statusx", "/healthz", "/administrator")
    )


async def test_an_unknown_page_is_not_found_in_words() -> None:
    visitor = Visitor(gateway())
    for path in ("/admin/nothing/", "/static/pharos/../pharos.css", "/static/x", "/static/admin/%2e%2e/x"):
        came = await visitor.get(path)
        assert came.status in (400, 404)
        assert "Traceback" not in came.text


@pytest.mark.parametrize("path", ["/status", "/usage", "/admin/", "/admin/keys/"])
@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "POST"])
async def test_nothing_can_be_changed(path: str, method: str) -> None:
    assert (await Visitor(gateway()).ask(method, path)).status in (403, 405)


@pytest.mark.parametrize("name", ["localhost", "a.localhost:1", "127.0.0.1:8090", "[::1]"])
def test_own_names(name: str) -> None:
    assert door.own_name(name)
