"""What exchanges prove about another clock. Times in milliseconds of one true time line."""

from __future__ import annotations

import pytest

from mesh.clock.clock_core import DRIFT_PPM_MAX, PeerClock
from mesh.clock.estimate import ClockEstimate, Exchange

MS = 1_000_000
S = 1_000 * MS
EPOCH_NS = 1_700_000_000 * S
BOOTED_NS = 5 * S  # our monotonic clock at true time 0


def exchange(
    at_ms: float,
    *,
    ahead_ms: float = 0.0,
    out_ms: float = 10.0,
    back_ms: float = 10.0,
    hosts_us: tuple[int, int] = (-1, -1),
) -> Exchange:
    """An exchange that begins at `at_ms` with a peer whose clock is `ahead_ms` ahead of ours."""
    t1, t2 = at_ms, at_ms + out_ms
    t4 = t2 + back_ms
    return Exchange(
        t1_ns=EPOCH_NS + int(t1 * MS),
        t2_ns=EPOCH_NS + int((t2 + ahead_ms) * MS),
        t3_ns=EPOCH_NS + int((t2 + ahead_ms) * MS),
        t4_ns=EPOCH_NS + int(t4 * MS),
        monotonic1_ns=BOOTED_NS + int(t1 * MS),
        monotonic4_ns=BOOTED_NS + int(t4 * MS),
        host_error_us=hosts_us[0],
        peer_host_error_us=hosts_us[1],
        spread_us=0,
    )


def estimate(clock: PeerClock, at_ms: float, *, wall_ahead_ms: float = 0.0) -> ClockEstimate | None:
    return clock.estimate(
        wall_ns=EPOCH_NS + int((at_ms + wall_ahead_ms) * MS), monotonic_ns=BOOTED_NS + int(at_ms * MS)
    )


def known(clock: PeerClock, at_ms: float, *, wall_ahead_ms: float = 0.0) -> ClockEstimate:
    found = estimate(clock, at_ms, wall_ahead_ms=wall_ahead_ms)
    assert found is not None
    return found


def test_nothing_is_known_before_the_first_exchange() -> None:
    assert estimate(PeerClock(), 0) is None


def test_the_stamps_of_one_exchange_give_theta_and_delta() -> None:
    one = exchange(0, ahead_ms=80, out_ms=12, back_ms=8)
    assert (one.theta_ns, one.delta_ns) == (82 * MS, 20 * MS)  # half the asymmetry of 4 ms is invisible


def test_one_exchange_bounds_the_offset_by_half_the_round_trip() -> None:
    clock = PeerClock()
    clock.exchanged(exchange(0, ahead_ms=-80, out_ms=10, back_ms=10))
    found = known(clock, 20)
    assert found.offset_us == -80_000
    assert 10_000 <= found.error_us <= 10_000 + 2 * 20 + 3  # and what 20 ms of drift may add, during and since


def test_however_unequal_the_ways_are_the_truth_is_within_the_bound() -> None:
    for out_ms in (0.0, 0.1, 5.0, 19.9, 20.0):
        clock = PeerClock()
        clock.exchanged(exchange(0, ahead_ms=33, out_ms=out_ms, back_ms=20 - out_ms))
        found = known(clock, 20)
        assert abs(found.offset_us - 33_000) <= found.error_us


def test_a_short_round_trip_tightens_what_a_long_one_said() -> None:
    clock = PeerClock()
    clock.exchanged(exchange(0, ahead_ms=7, out_ms=1, back_ms=1))
    clock.exchanged(exchange(1_000, ahead_ms=7, out_ms=90, back_ms=10))
    found = known(clock, 1_100)
    assert found.error_us < 3_000
    assert abs(found.offset_us - 7_000) <= found.error_us


def test_the_bound_grows_while_nobody_answers_until_nothing_is_known() -> None:
    clock = PeerClock()
    clock.exchanged(exchange(0))
    errors = [known(clock, at).error_us for at in (20, 1_020, 60_020)]
    assert errors[1] - errors[0] == DRIFT_PPM_MAX
    assert errors[2] - errors[0] == 60 * DRIFT_PPM_MAX
    assert estimate(clock, 1_000_000) is None


def test_a_drift_is_fitted_and_carried_on() -> None:
    clock = PeerClock()
    for second in range(60):
        clock.exchanged(exchange(second * 1_000, ahead_ms=5 + second * 0.05, out_ms=19, back_ms=19))  # 50 ppm
    found = known(clock, 59_040)
    assert found.drift_ppm == pytest.approx(50, abs=0.5)
    assert found.offset_us == pytest.approx(5_000 + 59 * 50, abs=10)


def test_the_estimate_follows_the_shortest_round_trips_not_the_mean() -> None:
    clock = PeerClock()
    for second in range(60):
        queued = 0 if second % 6 == 0 else 30  # on one way only
        clock.exchanged(exchange(second * 1_000, ahead_ms=3, out_ms=19 + queued, back_ms=19))
    assert known(clock, 59_070).offset_us == pytest.approx(3_000, abs=20)


def test_a_peer_whose_clock_was_set_is_believed_from_then_on() -> None:
    clock = PeerClock()
    for second in range(10):
        clock.exchanged(exchange(second * 1_000, ahead_ms=0))
    clock.exchanged(exchange(10_000, ahead_ms=80))
    found = known(clock, 10_020)
    assert (clock.steps, found.offset_us) == (1, 80_000)


def test_our_own_clock_being_set_moves_the_answer_and_nothing_else() -> None:
    clock = PeerClock()
    for second in range(10):
        clock.exchanged(exchange(second * 1_000, ahead_ms=12))
    before, after = known(clock, 9_020), known(clock, 9_020, wall_ahead_ms=500)
    assert after.offset_us == before.offset_us - 500_000
    assert (after.error_us, clock.steps) == (before.error_us, 0)


def test_two_hosts_that_know_their_error_tighten_the_bound() -> None:
    clock = PeerClock()
    clock.exchanged(exchange(0, ahead_ms=0.3, out_ms=60, back_ms=90, hosts_us=(400, 600)))
    found = known(clock, 150)
    assert (found.offset_us, clock.host_contradicts) == (0, False)
    assert 1_000 <= found.error_us <= 1_200


@pytest.mark.parametrize("hosts_us", [(-1, 600), (400, -1)])
def test_one_host_that_knows_nothing_of_itself_leaves_the_round_trip(hosts_us: tuple[int, int]) -> None:
    clock = PeerClock()
    clock.exchanged(exchange(0, out_ms=60, back_ms=90, hosts_us=hosts_us))
    assert known(clock, 150).error_us >= 75_000


def test_a_host_that_contradicts_the_exchanges_is_not_believed() -> None:
    clock = PeerClock()
    clock.exchanged(exchange(0, ahead_ms=80, out_ms=5, back_ms=5, hosts_us=(400, 600)))
    found = known(clock, 10)
    assert (found.offset_us, clock.host_contradicts) == (80_000, True)


@pytest.mark.parametrize(
    "change",
    [
        {"t3_ns": EPOCH_NS},
        {"monotonic4_ns": BOOTED_NS - 1},
        {"monotonic4_ns": BOOTED_NS + 60 * S},
        {"t2_ns": -(2**63)},
        {"t3_ns": 2**63 - 1},
    ],
    ids=["answered-before-asked", "negative", "too-long", "smallest", "largest"],
)
def test_stamps_that_cannot_be_are_refused_and_change_nothing(change: dict[str, int]) -> None:
    clock = PeerClock()
    clock.exchanged(exchange(0))
    before = known(clock, 20)
    one = exchange(1_000)
    values = {name: getattr(one, name) for name in Exchange.__slots__} | change
    assert not clock.exchanged(Exchange(**values))
    assert (known(clock, 20), clock.refused) == (before, 1)
