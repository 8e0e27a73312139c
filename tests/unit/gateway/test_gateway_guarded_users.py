"""Who guesses at the users file of a gateway is slowed down as at a broker, and keeps nobody else waiting."""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from gateway import guarded_users
from georelay import credentials
from georelay.credentials import Credentials, basic, write_users_file
from georelay.errors import Busy, GeorelayError, Unauthenticated, Unavailable
from mesh.listening.sign_in_failures_core import DELAY_S, FREE, WAITING_MAX
from tests.unit.gateway import test_gateway_sign_in
from tests.unit.gateway.test_gateway_sign_in import ANN

broker = test_gateway_sign_in.broker
make = test_gateway_sign_in.make

ROOT = basic("root", "root's own")
HERE, THERE = "2001:db8::1", "198.51.100.7"
SignIn = Callable[..., Awaitable[str]]


class Scrypt:
    """Looks at passwords quickly, and knows at how many and at how many at a time."""

    def __init__(self) -> None:
        self.checks = self.most = self._now = 0
        self.pause_s = 0.0
        self._lock = threading.Lock()

    def __call__(self, password: str, salt: bytes) -> bytes:
        with self._lock:
            self.checks += 1
            self._now += 1
            self.most = max(self.most, self._now)
        time.sleep(self.pause_s)
        with self._lock:
            self._now -= 1
        return hashlib.sha256(salt + password.encode()).digest()


@pytest.fixture
def scrypt(monkeypatch: pytest.MonkeyPatch) -> Scrypt:
    fake = Scrypt()
    monkeypatch.setattr(credentials, "_scrypt", fake)
    return fake


@pytest.fixture
def users(scrypt: Scrypt, tmp_path: Path) -> Credentials:
    write_users_file(tmp_path / "users.json", {"root": "root's own"})
    scrypt.checks = scrypt.most = 0
    return Credentials.load(tmp_path / "users.json")


@pytest.fixture
def sign_in(make: Any, users: Credentials) -> SignIn:
    """Sign in at a gateway with a file; its clock stands still, so that no failure is forgotten."""
    by: SignIn = make(users).authenticate_header
    return by


def guess(number: int, name: str = "root") -> str:
    return basic(name, f"guess {number}")


async def fail(sign_in: SignIn, count: int, name: str = "root") -> None:
    """Let sign-ins of a name fail, one after the other."""
    for number in range(count):
        with pytest.raises(Unauthenticated):
            await sign_in(guess(number, name), HERE)


async def lasts_s(signing_in: Awaitable[str]) -> float:
    begun_s = time.monotonic()
    with pytest.raises(GeorelayError):
        await signing_in
    return time.monotonic() - begun_s


async def test_guesses_that_come_all_at_once_are_looked_at_a_few_at_a_time_and_most_not_at_all(
    sign_in: SignIn, scrypt: Scrypt
) -> None:
    scrypt.pause_s = 0.005
    outcomes = await asyncio.gather(*(sign_in(guess(n), HERE) for n in range(200)), return_exceptions=True)
    refused = [outcome for outcome in outcomes if isinstance(outcome, Busy)]
    assert (scrypt.checks, len(refused)) == (WAITING_MAX, 200 - WAITING_MAX)
    assert scrypt.most <= guarded_users.CHECKS_AT_ONCE_MAX
    assert {type(outcome) for outcome in outcomes} == {Busy, Unauthenticated}


async def test_names_tried_from_one_address_are_bounded_as_well(sign_in: SignIn, scrypt: Scrypt) -> None:
    calls = (sign_in(guess(n, f"name-{n}"), f"2001:db8::{n:x}") for n in range(150))
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert scrypt.checks == 100
    assert sum(isinstance(outcome, Busy) for outcome in outcomes) == 50


async def test_after_a_few_failures_the_next_password_waits_at_that_address_alone(
    sign_in: SignIn, scrypt: Scrypt
) -> None:
    await fail(sign_in, FREE)
    assert await lasts_s(sign_in(guess(99), HERE)) >= DELAY_S
    assert await lasts_s(sign_in(guess(98), "2001:db8::2")) >= 2 * DELAY_S  # the /64 is one address
    async with asyncio.timeout(3 * DELAY_S):  # here it would be four
        assert await sign_in(ROOT, THERE) == "root"


async def test_who_was_let_in_before_waits_for_nobodys_failures(make: Any, users: Credentials, scrypt: Scrypt) -> None:
    gateway = make(users)
    sign_in: SignIn = gateway.authenticate_header
    assert [await sign_in(who, HERE) for who in (ROOT, ANN)] == ["root", "User:ann"]
    await asyncio.gather(fail(sign_in, FREE + 2), fail(sign_in, FREE + 2, "ann"))
    gateway._remembered.clear()  # what is remembered of every answer, for REMEMBERED_S
    checks = scrypt.checks
    async with asyncio.timeout(3 * DELAY_S):
        assert [await sign_in(who, HERE) for who in (ROOT, ANN)] == ["root", "User:ann"]
    assert scrypt.checks == checks


async def test_whom_a_broker_knows_has_not_failed_and_many_at_once_are_judged_once(
    make: Any, users: Credentials, scrypt: Scrypt, broker: Any
) -> None:
    gateway = make(users)
    calls = (gateway.authenticate_header(ANN, HERE) for _ in range(50))
    assert await asyncio.gather(*calls) == ["User:ann"] * 50
    assert (scrypt.checks, len(broker.asked), len(gateway._users._failures)) == (1, 1, 0)
    await fail(gateway.authenticate_header, 1, "ann")
    assert len(gateway._users._failures) == 2  # of the name there, and of the address


async def test_a_guess_that_no_broker_could_judge_has_failed(make: Any, users: Credentials) -> None:
    sign_in: SignIn = make(users, brokers=[]).authenticate_header
    for number in range(FREE):
        with pytest.raises(Unavailable):
            await sign_in(guess(number), HERE)
    assert await lasts_s(sign_in(guess(99), HERE)) >= DELAY_S


async def test_who_leaves_before_the_answer_has_failed_as_well(sign_in: SignIn, scrypt: Scrypt) -> None:
    scrypt.pause_s = 0.01
    for number in range(FREE):
        leaving = asyncio.ensure_future(sign_in(guess(number), HERE))
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
    async with asyncio.timeout(5):
        while scrypt.checks < FREE:
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)  # the broker is asked
    assert await lasts_s(sign_in(guess(99), HERE)) >= DELAY_S


async def test_a_line_that_is_too_long_is_refused(
    sign_in: SignIn, scrypt: Scrypt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guarded_users, "CHECKS_IN_LINE_MAX", 6)
    scrypt.pause_s = 0.02
    calls = (sign_in(guess(0), f"192.0.2.{n}") for n in range(10))
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert sum(isinstance(outcome, Busy) for outcome in outcomes) == 4


async def test_what_no_user_of_the_file_can_have_sent_is_for_brokers_alone(
    sign_in: SignIn, scrypt: Scrypt, broker: Any
) -> None:
    for other in ("bearer grt_1", "basic ?", basic("x" * 129, "y"), basic("root", "y" * 1_025)):
        with pytest.raises(Unauthenticated):
            await sign_in(other, HERE)
        assert broker.asked[-1] == other
    assert scrypt.checks == 0


async def test_a_gateway_that_ends_ends_what_is_being_judged(make: Any, users: Credentials, scrypt: Scrypt) -> None:
    gateway = make(users)
    scrypt.pause_s = 0.2
    waiting = asyncio.ensure_future(gateway.authenticate_header(guess(1), HERE))
    await asyncio.sleep(0.05)
    await gateway.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting
