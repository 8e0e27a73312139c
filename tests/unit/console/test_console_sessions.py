"""Sessions of browsers end, and change nothing without their second number."""

from __future__ import annotations

from itertools import count

import pytest

from gateway.console import sessions as module
from gateway.console.sessions import IDLE_S, LIFE_S, Sessions
from georelay.errors import Busy


class World:
    def __init__(self) -> None:
        self.now_s = 1_000.0
        numbers = count()
        self.sessions = Sessions(
            monotonic_s=lambda: self.now_s, random_hex=lambda size: f"{next(numbers):0{2 * size}x}"
        )

    def begin(self, *, user: str = "User:ann", is_read_only: bool = False) -> str:
        return self.sessions.begin(user=user, authorization="Basic YQ==", is_read_only=is_read_only)[0]


def test_a_cookie_finds_its_session_and_no_other_text_does() -> None:
    world = World()
    cookie = world.begin()
    found = world.sessions.find(cookie)
    assert found is not None
    assert (found.user, found.authorization) == ("User:ann", "Basic YQ==")
    assert world.sessions.find("") is world.sessions.find(cookie[:-1]) is world.sessions.find("\udcff") is None


def test_a_session_ends_when_nobody_asks_and_after_its_life_in_any_case() -> None:
    world = World()
    cookie = world.begin()
    world.now_s += IDLE_S + 1
    assert world.sessions.find(cookie) is None
    cookie = world.begin()
    for _ in range(int(LIFE_S / IDLE_S) * 2):
        world.now_s += IDLE_S / 2
        assert world.sessions.find(cookie) is not None
    world.now_s += IDLE_S / 2
    assert world.sessions.find(cookie) is None


def test_only_the_second_number_lets_a_session_change_something() -> None:
    world = World()
    session = world.sessions.find(world.begin())
    assert session is not None
    assert session.may_change(session.token)
    assert not session.may_change("")
    assert not session.may_change("ü")
    looking = world.sessions.find(world.begin(is_read_only=True))
    assert looking is not None
    assert not looking.may_change(looking.token)


def test_there_are_so_many_sessions_and_ended_ones_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SESSIONS_MAX", 2)
    world = World()
    cookies = [world.begin(), world.begin()]
    with pytest.raises(Busy):
        world.begin()
    world.sessions.end(cookies[0])
    world.begin()
    world.now_s += IDLE_S + 1
    world.begin()


def test_who_signs_in_again_and_again_takes_no_place_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SESSIONS_MAX", 4)
    monkeypatch.setattr(module, "SESSIONS_OF_USER_MAX", 2)
    world = World()
    bob = world.begin(user="User:bob")
    first, second = world.begin(), world.begin()
    world.now_s += 1
    assert world.sessions.find(first) is not None
    third = world.begin()
    assert [world.sessions.find(cookie) is not None for cookie in (bob, first, second, third)] == [
        True,
        True,
        False,
        True,
    ]
