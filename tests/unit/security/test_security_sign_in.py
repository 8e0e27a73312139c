"""Signing in: passwords, tokens, headers; what is remembered and what ends a user."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import pytest

from georelay.credentials import Credentials, basic, write_users_file
from georelay.errors import Busy, Unauthenticated
from region.controller.security_wishes import delete_user, put_token, put_user
from region.security import sign_in as module
from region.security.access import Principal
from region.security.scram_core import ScramClient, password_matches
from region.security.sign_in import CHECKS_AT_ONCE_MAX, SignInService, hash_token, new_token
from region.security.user import BearerToken, Mechanism

HOST = "10.0.0.1"
ALICE = Principal(name="User:alice", host=HOST)
RIGHT = "correct horse"


class Refusals:
    def __init__(self) -> None:
        self.rows: list[tuple[str, str, str]] = []

    def sign_in_refused(self, *, host: str, user: str, how: str) -> None:
        self.rows.append((host, user, how))


def counted_checks(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Have every password that is really checked noted."""
    checks: list[object] = []

    def counted(key: Any, password: str) -> bool:
        checks.append(key)
        return password_matches(key, password)

    monkeypatch.setattr(module, "password_matches", counted)
    return checks


@pytest.fixture
def refusals() -> Refusals:
    return Refusals()


@pytest.fixture
def service(home: Any, refusals: Refusals, monkeypatch: pytest.MonkeyPatch) -> SignInService:
    async def no_wait(delay_s: float) -> None:
        home.monotonic_s += delay_s

    monkeypatch.setattr(asyncio, "sleep", no_wait)
    return SignInService(
        Credentials.load(None),
        book=lambda: home.book,
        refusals=refusals,
        wall_s=lambda: home.wall_s,
        monotonic_s=lambda: home.monotonic_s,
    )


async def test_nobody_has_to_sign_in_before_there_is_a_user(home: Any, service: SignInService) -> None:
    assert not service.required
    assert service.anonymous(HOST).name == "User:ANONYMOUS"
    home.add_user("alice")
    assert service.required
    with pytest.raises(Unauthenticated, match="sign in"):
        service.anonymous(HOST)


async def test_the_right_password_signs_in_and_costs_once(
    home: Any, service: SignInService, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.add_user("alice")
    checks = counted_checks(monkeypatch)
    for _ in range(3):
        assert await service.password("alice", RIGHT, host=HOST) == ALICE
    assert len(checks) == 1


async def test_a_hundred_clients_that_start_together_cost_one_check(
    home: Any, service: SignInService, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.add_user("alice")
    checks = counted_checks(monkeypatch)
    found = await asyncio.gather(*(service.password("alice", RIGHT, host=HOST) for _ in range(100)))
    assert (len(checks), set(found)) == (1, {ALICE})


@pytest.mark.parametrize(("user", "password"), [("alice", "wrong"), ("nobody", RIGHT), ("x" * 500, "y"), ("", "")])
async def test_wrong_passwords_and_unknown_users_are_refused_alike(
    home: Any, service: SignInService, user: str, password: str
) -> None:
    home.add_user("alice")
    with pytest.raises(Unauthenticated, match=r"^wrong user or password$"):
        await service.password(user, password, host=HOST)


async def test_an_unknown_user_costs_a_check_like_a_wrong_password(
    home: Any, service: SignInService, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.add_user("alice")
    iterations: list[int] = []

    def never(key: Any, _: object) -> bool:
        iterations.append(key.iterations)
        return False

    monkeypatch.setattr(module, "password_matches", never)
    for user in ("alice", "nobody"):
        with pytest.raises(Unauthenticated):
            await service.password(user, "wrong", host=HOST)
    assert len(iterations) == 2 and len(set(iterations)) == 1


async def test_a_changed_password_a_disabled_and_a_deleted_user_are_refused_at_once(
    home: Any, service: SignInService
) -> None:
    home.add_user("alice")
    await service.password("alice", RIGHT, host=HOST)
    home.wish(put_user("alice", is_enabled=False))
    with pytest.raises(Unauthenticated):
        await service.password("alice", RIGHT, host=HOST)
    home.wish(put_user("alice", is_enabled=True))
    await service.password("alice", RIGHT, host=HOST)
    home.add_user("alice", "another password")
    with pytest.raises(Unauthenticated):
        await service.password("alice", RIGHT, host=HOST)
    home.wish(delete_user("alice"))
    with pytest.raises(Unauthenticated):
        await service.password("alice", "another password", host=HOST)


async def test_a_user_that_expires_is_refused_though_its_password_is_remembered(
    home: Any, service: SignInService
) -> None:
    home.add_user("alice", expires_s=int(home.wall_s) + 10)
    await service.password("alice", RIGHT, host=HOST)
    assert service.is_active_user("alice")
    home.wall_s += 10
    assert not service.is_active_user("alice")
    with pytest.raises(Unauthenticated):
        await service.password("alice", RIGHT, host=HOST)


async def test_users_of_a_file_sign_in_beside_those_of_the_mesh(home: Any, tmp_path: Path) -> None:
    write_users_file(tmp_path / "users.json", {"root": "root's own"})
    service = SignInService(Credentials.load(tmp_path / "users.json"), book=lambda: home.book)
    home.add_user("alice")
    assert (await service.password("root", "root's own", host=HOST)).name == "User:root"
    assert (await service.password("alice", RIGHT, host=HOST)).name == "User:alice"
    with pytest.raises(Unauthenticated):
        await service.password("root", RIGHT, host=HOST)


async def test_few_passwords_of_a_file_are_looked_at_together(
    home: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_users_file(tmp_path / "users.json", {"root": "root's own"})
    users = Credentials.load(tmp_path / "users.json")
    now = most = 0

    async def looked_at(_user: str, _password: str) -> bool:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0)
        now -= 1
        return False

    monkeypatch.setattr(users, "authenticate", looked_at)
    service = SignInService(users, book=lambda: home.book)
    guesses = [service.password("root", f"guess {number}", host=f"198.51.100.{number}") for number in range(12)]
    found = await asyncio.gather(*guesses, return_exceptions=True)
    assert {type(error) for error in found} == {Unauthenticated}
    assert most == CHECKS_AT_ONCE_MAX


async def test_failures_of_one_client_of_a_gateway_keep_no_other_client_waiting(
    home: Any, tmp_path: Path, service: SignInService
) -> None:
    """`service` keeps sleeps from taking time; who was let in before waits at no address, by a user of the file too."""
    write_users_file(tmp_path / "users.json", {"root": "root's own"})
    home.add_user("alice")
    service = SignInService(
        Credentials.load(tmp_path / "users.json"), book=lambda: home.book, monotonic_s=lambda: float(home.monotonic_s)
    )
    gateway = "127.0.0.1"
    root, alice = basic("root", "root's own"), basic("alice", RIGHT)
    assert (await service.caller(root, certificate="", host=gateway, reported="198.51.100.1")).name == "User:root"
    for name in ("root", "alice"):
        for _ in range(12):
            with pytest.raises(Unauthenticated):
                await service.caller(basic(name, "wrong"), certificate="", host=gateway, reported="198.51.100.66")
    waited = home.monotonic_s
    assert (await service.caller(root, certificate="", host=gateway, reported="198.51.100.66")).name == "User:root"
    assert (await service.caller(alice, certificate="", host=gateway, reported="198.51.100.2")).name == "User:alice"
    assert home.monotonic_s == waited


async def test_basic_and_bearer_headers_sign_in(home: Any, service: SignInService) -> None:
    home.add_user("alice")
    token = new_token()
    home.wish(put_token("alice", BearerToken(name="ci", hash=hash_token(token), expires_s=int(home.wall_s) + 60)))
    assert await service.header(basic("alice", RIGHT), host=HOST) == ALICE
    assert await service.header(f"Bearer {token}", host=HOST) == ALICE
    home.wall_s += 60
    with pytest.raises(Unauthenticated, match="wrong or expired token"):
        await service.header(f"Bearer {token}", host=HOST)


async def test_a_token_ends_with_its_user(home: Any, service: SignInService) -> None:
    home.add_user("alice")
    token = new_token()
    home.wish(put_token("alice", BearerToken(name="ci", hash=hash_token(token), expires_s=int(home.wall_s) + 60)))
    home.wish(put_user("alice", is_enabled=False))
    with pytest.raises(Unauthenticated):
        await service.header(f"Bearer {token}", host=HOST)


@pytest.mark.parametrize(
    "header", ["", "basic", "bearer", "bearer ", "bearer grt_x", "digest x", "basic !!!", "basic " + "A" * 9_000]
)
async def test_a_header_that_is_nothing_is_refused_without_repeating_it(
    home: Any, service: SignInService, header: str
) -> None:
    home.add_user("alice")
    with pytest.raises(Unauthenticated) as refused:
        await service.header(header, host=HOST)
    assert "grt_x" not in str(refused.value)


async def test_credentials_win_over_a_certificate_and_a_certificate_over_nothing(
    home: Any, service: SignInService
) -> None:
    home.add_user("alice")
    certificate = "User:machine"
    assert (await service.caller(basic("alice", RIGHT), certificate=certificate, host=HOST)).name == "User:alice"
    assert (await service.caller(None, certificate=certificate, host=HOST)).name == certificate
    with pytest.raises(Unauthenticated):
        await service.caller(None, certificate="", host=HOST)
    home.wish(put_user("alice", is_enabled=False))
    with pytest.raises(Unauthenticated, match="disabled"):
        await service.caller(None, certificate="User:alice", host=HOST)


async def test_scram_signs_users_in_and_shows_nobody_who_is_one(home: Any, service: SignInService) -> None:
    home.add_user("alice")
    client = ScramClient(mechanism=Mechanism.SCRAM_SHA_512, user="alice", password=RIGHT, nonce="abc")
    exchange = service.scram(Mechanism.SCRAM_SHA_512, client.first)
    assert exchange.finish(client.final(exchange.server_first)).startswith(b"v=")
    nobody = [service.scram(Mechanism.SCRAM_SHA_256, b"n,,n=nobody,r=abc").server_first for _ in range(2)]
    salts = {first.split(b",")[1] for first in nobody}
    assert len(salts) == 1 and len(base64.b64decode(salts.pop()[2:])) == 16
    known = service.scram(Mechanism.SCRAM_SHA_256, b"n,,n=alice,r=abc").server_first
    assert known.split(b",")[2] == nobody[0].split(b",")[2]  # the same iterations


async def test_a_disabled_user_has_the_salt_of_nobody(home: Any, service: SignInService) -> None:
    home.add_user("alice")
    before = service.scram(Mechanism.SCRAM_SHA_256, b"n,,n=alice,r=abc").server_first.split(b",")[1]
    home.wish(put_user("alice", is_enabled=False))
    assert service.scram(Mechanism.SCRAM_SHA_256, b"n,,n=alice,r=abc").server_first.split(b",")[1] != before


async def test_an_address_with_failures_waits_longer_each_time_and_is_not_locked_out(
    home: Any, service: SignInService
) -> None:
    home.add_user("alice")
    began = home.monotonic_s
    for _ in range(12):
        with pytest.raises(Unauthenticated):
            await service.password("alice", "wrong", host=HOST)
    assert home.monotonic_s - began > 3
    assert await service.password("alice", RIGHT, host=HOST) == ALICE
    waited = home.monotonic_s
    assert await service.password("alice", RIGHT, host="10.0.0.2") == Principal(name="User:alice", host="10.0.0.2")
    assert home.monotonic_s == waited


async def test_more_than_a_few_that_wait_at_one_address_are_refused_at_once(home: Any, service: SignInService) -> None:
    home.add_user("alice")
    for _ in range(10):
        with pytest.raises(Unauthenticated):
            await service.password("alice", "wrong", host=HOST)
    outcomes = await asyncio.gather(
        *(service.password("alice", f"wrong {n}", host=HOST) for n in range(40)), return_exceptions=True
    )
    assert {type(outcome) for outcome in outcomes} == {Unauthenticated, Busy}


async def test_refusals_are_written_with_the_name_of_a_user_only(
    home: Any, service: SignInService, refusals: Refusals
) -> None:
    home.add_user("alice")
    for user in ("alice", "my password typed here"):
        with pytest.raises(Unauthenticated):
            await service.password(user, "wrong", host=HOST, how="PLAIN")
    assert refusals.rows == [(HOST, "alice", "PLAIN"), (HOST, "", "PLAIN")]


async def test_sign_in_may_be_required_before_there_are_users(home: Any) -> None:
    service = SignInService(Credentials.load(None), book=lambda: home.book, always=True)
    with pytest.raises(Unauthenticated):
        await service.header(None, host=HOST)


async def test_who_did_not_have_to_sign_in_is_not_valid_once_there_are_users(home: Any, service: SignInService) -> None:
    anonymous = service.anonymous(HOST)
    assert service.is_still_valid(anonymous)
    home.add_user("alice")
    assert not service.is_still_valid(anonymous)


async def test_a_sign_in_stands_until_its_user_is_disabled_deleted_or_outlived(
    home: Any, service: SignInService
) -> None:
    home.add_user("alice")
    alice = await service.password("alice", RIGHT, host=HOST)
    certificate = await service.caller(None, certificate="User:alice", host=HOST)
    stranger = await service.caller(None, certificate="User:stranger", host=HOST)
    assert all(map(service.is_still_valid, (alice, certificate, stranger)))
    home.wish(put_user("alice", is_enabled=False, is_new=False))
    assert not service.is_still_valid(alice) and not service.is_still_valid(certificate)
    home.wish(put_user("alice", is_enabled=True, is_new=False))
    assert service.is_still_valid(alice) and service.is_still_valid(certificate)
    home.wish(delete_user("alice"))
    assert not service.is_still_valid(alice)
    assert service.is_still_valid(stranger)


async def test_a_sign_in_by_token_stands_until_the_token_is_gone_or_outlived(home: Any, service: SignInService) -> None:
    home.add_user("alice")
    token = new_token()
    row = BearerToken(name="ci", hash=hash_token(token), expires_s=int(home.wall_s) + 60)
    home.wish(put_token("alice", row))
    alice = await service.header(f"Bearer {token}", host=HOST)
    assert service.is_still_valid(alice)
    home.wall_s += 61
    assert not service.is_still_valid(alice)


async def test_addresses_of_one_ipv6_network_wait_for_each_others_failures(home: Any, service: SignInService) -> None:
    home.add_user("alice")
    for number in range(8):
        with pytest.raises(Unauthenticated):
            await service.password("alice", f"wrong {number}", host=f"2001:db8::{number:x}")
    began_s = home.monotonic_s
    with pytest.raises(Unauthenticated):
        await service.password("alice", "wrong again", host="2001:db8::ffff")
    assert home.monotonic_s - began_s >= 0.1
    began_s = home.monotonic_s
    with pytest.raises(Unauthenticated):
        await service.password("alice", "wrong again", host="2001:db8:1::1")
    assert home.monotonic_s == began_s
