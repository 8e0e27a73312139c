"""Pages of other sites, and names that were made to point here, change nothing through a browser."""

from __future__ import annotations

from typing import Any

import pytest
from multidict import CIMultiDict
from pydantic import TypeAdapter, ValidationError

from georelay.errors import PolicyViolation
from mesh.listening.browser_guard import BrowserGuard, Origin, is_loopback_address

HERE = "127.0.0.1:8080"
CONSOLE = "https://console.example.org"
GUARD = BrowserGuard(allowed_origins=(CONSOLE,), machine_names=("box",))


def passes(method: str, *, is_on_loopback: bool = True, scheme: str = "http", **headers: str) -> bool:
    sent = CIMultiDict({name.replace("_", "-"): value for name, value in headers.items()})
    try:
        GUARD.check(method, sent, is_on_loopback=is_on_loopback, scheme=scheme)
    except PolicyViolation:
        return False
    return True


def test_programs_pass() -> None:
    assert passes("POST", host=HERE)
    assert passes("DELETE", host="broker.example.org:8080", is_on_loopback=False)
    assert passes("POST")


@pytest.mark.parametrize("method", ["POST", "PATCH", "DELETE", "PUT"])
def test_pages_of_other_sites_change_nothing(method: str) -> None:
    assert not passes(method, host=HERE, origin="https://evil.example")
    assert not passes(method, host=HERE, origin="null")
    assert not passes(method, host=HERE, origin="http://127.0.0.1:3000")  # another server of this machine
    assert not passes(method, host=HERE, origin="https://" + HERE)
    assert not passes(method, host=HERE, sec_fetch_site="cross-site")
    assert not passes(method, host=HERE, sec_fetch_site="same-site")
    assert not passes(method, host="b.example:1", origin="http://evil.example", is_on_loopback=False)


def test_pages_of_the_listener_itself_and_of_allowed_sites_pass() -> None:
    assert passes("POST", host=HERE, origin="http://" + HERE, sec_fetch_site="same-origin")
    assert passes("POST", host=HERE, scheme="https", origin="https://" + HERE)
    assert passes("POST", host=HERE, origin=CONSOLE, sec_fetch_site="cross-site")
    assert passes("POST", host=HERE, origin=CONSOLE.upper(), sec_fetch_site="cross-site")


@pytest.mark.parametrize("mode", ["no-cors", "cors", "navigate"])
def test_an_image_a_script_or_a_frame_of_another_site_reads_nothing(mode: str) -> None:
    dest = {"no-cors": "image", "cors": "empty", "navigate": "iframe"}[mode]
    assert not passes("GET", host=HERE, sec_fetch_site="cross-site", sec_fetch_mode=mode, sec_fetch_dest=dest)
    assert not passes("GET", host=HERE, origin="https://evil.example")
    assert passes("GET", host=HERE, sec_fetch_site="same-origin", sec_fetch_mode=mode, sec_fetch_dest=dest)
    assert passes("GET", host=HERE, origin=CONSOLE, sec_fetch_site="cross-site", sec_fetch_mode="cors")


def test_a_link_may_be_followed_from_anywhere_to_look_but_not_under_a_foreign_name() -> None:
    for method, is_let_in in (("GET", True), ("POST", False)):
        opened = passes(
            method, host=HERE, sec_fetch_site="cross-site", sec_fetch_mode="navigate", sec_fetch_dest="document"
        )
        assert opened is is_let_in
    assert not passes("GET", host="evil.example:8080")
    assert not passes("POST", host="evil.example:8080", origin="http://evil.example:8080")
    assert not passes("GET", host="127.0.0.1.evil.example")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "a.localhost", "127.0.0.2", "[::1]:8080", "box:80"])
def test_names_of_this_machine_pass_over_loopback(host: str) -> None:
    assert passes("GET", host=host)


def test_a_proxy_on_this_machine_may_pass_on_the_host_of_an_allowed_site() -> None:
    assert passes("GET", host="console.example.org")


def test_any_name_passes_from_another_machine() -> None:
    assert passes("GET", host="broker.example.org", is_on_loopback=False)


@pytest.mark.parametrize(
    ("address", "is_loopback"),
    [
        (("127.0.0.1", 1), True),
        (("::1", 1, 0, 0), True),
        (("::ffff:127.0.0.1", 1, 0, 0), True),
        (("10.0.0.1", 1), False),
        (None, False),
        ("/run/socket", False),
    ],
)
def test_loopback_is_told_by_the_listeners_own_address(address: Any, is_loopback: bool) -> None:
    assert is_loopback_address(address) is is_loopback


@pytest.mark.parametrize("text", ["console.example.org", "https://a/b", "ftp://a", "https://", "*", "https://a/"])
def test_what_is_no_origin_cannot_be_allowed(text: str) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(Origin).validate_python(text)
