"""How a room is shared: whoever comes next finds some, and what goes makes it again."""

from __future__ import annotations

import pytest

from region.coordination.shares_core import NOBODY, Room, Shares, text_bytes


def fill(shares: Shares, principal: str) -> int:
    """Take one after the other until it is refused; return what the principal holds."""
    while shares.look(principal, 1) is Room.FREE:
        shares.add(principal, 1)
    return shares.held_by(principal)


def test_each_that_fills_its_share_leaves_half_of_the_rest_to_the_next() -> None:
    shares = Shares(64)
    assert [fill(shares, f"p{number}") for number in range(6)] == [32, 16, 8, 4, 2, 1]
    assert shares.left("late") == 0
    shares.add("p0", -2)
    assert (shares.look("p1", 1), shares.look("late", 1)) == (Room.OWN_SHARE_FULL, Room.FREE)


@pytest.mark.parametrize("growth", [0, -5])
def test_what_does_not_grow_fits_into_a_room_that_is_full(growth: int) -> None:
    shares = Shares(10)
    shares.add(NOBODY, 12)
    assert shares.look("p", growth) is Room.FREE
    assert shares.look("p", 1) is Room.FULL


def test_nobody_is_bounded_by_the_room_alone() -> None:
    shares = Shares(10)
    assert (fill(shares, NOBODY), shares.left(NOBODY), shares.look(NOBODY, 1)) == (10, 0, Room.FULL)


def test_what_is_on_its_way_counts_for_its_principal_and_for_the_room() -> None:
    shares, on_its_way = Shares(10), Shares(10)
    on_its_way.add("p", 4)
    assert shares.look("p", 1, on_its_way=on_its_way) is Room.FREE
    assert shares.look("p", 2, on_its_way=on_its_way) is Room.OWN_SHARE_FULL
    assert shares.look("q", 3, on_its_way=on_its_way) is Room.FREE


def test_a_principal_is_let_in_for_exactly_what_is_left_to_it() -> None:
    for held in range(12):
        for others in range(12):
            shares = Shares(20)
            shares.add("p", held)
            shares.add("q", others)
            left = shares.left("p")
            assert left == 0 or shares.look("p", left) is Room.FREE
            assert shares.look("p", left + 1) is not Room.FREE


@pytest.mark.parametrize(("text", "size"), [("abc", 3), ('"\\', 4), ("\x00\n", 8), ("ü€", 5), ("", 0)])
def test_a_text_takes_what_json_makes_of_it(text: str, size: int) -> None:
    assert text_bytes(text) == size
