"""The loop that decides what share of clients a region wants elsewhere."""

from __future__ import annotations

from mesh.distance.shed_core import SHED_MAX, TARGET, ShedLoop, share_from


def settle(natural: float, *, delay: int = 4, steps: int = 200) -> list[float]:
    """Play a region whose clients follow the share after some periods; returns how busy it was."""
    loop, shares, busy = ShedLoop(), [0.0] * delay, []
    for _ in range(steps):
        busy.append(natural * (1 - shares[-delay]))
        shares.append(loop.step(busy[-1]))
    return busy


def test_an_overloaded_region_is_below_its_capacity_within_a_minute_and_stays_there() -> None:
    for natural in (1.1, 1.2, 1.5, 1.7):
        busy = settle(natural)
        assert all(share <= 1.0 for share in busy[7:]), natural
        assert max(busy[-50:]) - min(busy[-50:]) < 0.02  # settled, no swing
        assert abs(busy[-1] - TARGET) < 0.08


def test_a_region_that_is_not_busy_sheds_nobody() -> None:
    loop = ShedLoop()
    for _ in range(10):
        loop.step(1.5)
    assert loop.share > 0.5
    for _ in range(100):
        loop.step(0.4)
    assert loop.share == 0.0


def test_no_number_however_wild_moves_the_share_out_of_its_range() -> None:
    loop = ShedLoop()
    for busy in (1e9, float("inf"), -5.0):
        assert 0.0 <= loop.step(busy) <= SHED_MAX


def test_what_a_broker_says_is_a_share_or_nothing() -> None:
    assert share_from("0.125") == 0.125
    assert share_from(None) is share_from("") is share_from("much") is share_from("nan") is None
    assert (share_from("-1"), share_from("inf")) == (0.0, SHED_MAX)
