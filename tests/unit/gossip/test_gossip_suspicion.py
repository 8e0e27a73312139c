"""How long a suspect may defend itself, and how our own health stretches our probes."""

from __future__ import annotations

import pytest

from mesh.gossip.awareness_core import Awareness
from mesh.gossip.suspicion_core import Suspicion, SuspicionBounds, suspicion_bounds, suspicion_timeout_s
from mesh.gossip.timing import LAN, LOCAL, TUNED_WAN, WAN, Timing, named


@pytest.mark.parametrize(
    ("timing", "members", "confirmations", "min_s"),
    [
        (LAN, 2, 0, 4.0),
        (LAN, 3, 0, 4.0),
        (LAN, 4, 2, 4.0),
        (LAN, 10, 2, 4.0),
        (LAN, 100, 2, 8.0),
        (WAN, 20, 4, 39.031),
        (WAN, 5, 0, 30.0),
        (LOCAL, 3, 1, 3.0),
        (TUNED_WAN, 9, 3, 7.5),
    ],
)
def test_bounds_follow_the_pool(timing: Timing, members: int, confirmations: int, min_s: float) -> None:
    bounds = suspicion_bounds(timing, members)
    assert bounds.confirmations == confirmations
    assert bounds.min_s == pytest.approx(min_s, abs=0.001)
    assert bounds.max_s == pytest.approx(6 * bounds.min_s)


@pytest.mark.parametrize(("confirmed", "timeout_s"), [(0, 30.0), (1, 16.0), (2, 7.81), (3, 2.0)])
def test_a_suspicion_gets_shorter_with_each_accuser(confirmed: int, timeout_s: float) -> None:
    # 30 - 28 * ln(c + 1) / ln(4), to the millisecond below
    bounds = SuspicionBounds(confirmations=3, min_s=2.0, max_s=30.0)
    assert suspicion_timeout_s(bounds, confirmed) == pytest.approx(timeout_s)


def test_without_others_to_confirm_the_shortest_time_holds() -> None:
    assert suspicion_timeout_s(SuspicionBounds(confirmations=0, min_s=2.0, max_s=12.0), 0) == 2.0


def test_only_new_accusers_up_to_the_bound_confirm() -> None:
    suspicion = Suspicion(accuser="a", bounds=SuspicionBounds(confirmations=2, min_s=4.0, max_s=24.0), now=100.0)
    assert suspicion.deadline == 124.0
    assert not suspicion.confirm("a")
    assert suspicion.confirm("b")
    assert not suspicion.confirm("b")
    assert 104.0 < suspicion.deadline < 124.0
    assert suspicion.confirm("c")
    assert suspicion.deadline == 104.0
    assert not suspicion.confirm("d")


def test_a_deferred_suspicion_does_not_end_earlier_by_a_confirmation() -> None:
    suspicion = Suspicion(accuser="a", bounds=SuspicionBounds(confirmations=1, min_s=4.0, max_s=24.0), now=100.0)
    suspicion.defer(110.0)
    assert suspicion.deadline == 124.0
    suspicion.confirm("b")
    assert suspicion.deadline == 110.0


def test_health_stays_in_its_bounds_and_stretches_periods() -> None:
    awareness = Awareness(8)
    awareness.apply(-3)
    assert (awareness.score, awareness.scaled_s(1.5)) == (0, 1.5)
    awareness.apply(+3)
    assert awareness.scaled_s(1.5) == 6.0
    awareness.apply(+99)
    assert awareness.score == 7


def test_state_exchanges_get_rarer_from_33_members_on() -> None:
    assert [LAN.push_pull_after_s(n) for n in (1, 32, 33, 64, 65, 4096)] == [30, 30, 60, 60, 90, 240]


def test_profiles_are_found_by_name() -> None:
    assert named("tuned-wan") is TUNED_WAN
    with pytest.raises(ValueError, match="tuned-wan"):
        named("moon")


@pytest.mark.parametrize("timing", [LAN, WAN, LOCAL, TUNED_WAN])
def test_a_probe_has_time_left_for_helpers(timing: Timing) -> None:
    assert 0 < timing.probe_timeout_s < timing.probe_interval_s
