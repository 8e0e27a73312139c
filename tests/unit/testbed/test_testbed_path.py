"""One direction between two regions, on a clock of the test's own."""

from __future__ import annotations

import random
import statistics

import pytest

from mesh.testbed.path_core import Path, PathSettings

MS = 1_000_000
NEVER = -1


def path(**settings: int | bool) -> Path:
    return Path(PathSettings(**settings), random.Random(1))  # type: ignore[arg-type]


def test_a_packet_arrives_after_exactly_the_delay() -> None:
    assert path(delay_us=35_000).admit(1_000 * MS, 200) == 1_035 * MS


def test_a_cut_path_lets_nothing_in_and_counts_it() -> None:
    cut = path(is_cut=True)
    assert cut.admit(0, 200) == NEVER
    assert (cut.counters.cut, cut.counters.bytes) == (1, 0)


def test_the_share_of_lost_packets_is_the_one_asked_for() -> None:
    lossy = path(loss_ppm=10_000)
    for number in range(100_000):
        lossy.admit(number * MS, 200)
    assert 0.009 < lossy.counters.lost / 100_000 < 0.011


def test_everything_is_lost_at_a_loss_of_one() -> None:
    lossy = path(loss_ppm=1_000_000)
    assert [lossy.admit(number, 1) for number in range(100)] == [NEVER] * 100


def test_packets_wait_for_each_other_in_front_of_a_capped_wire() -> None:
    capped = path(delay_us=10_000, rate_bits_s=8_000_000)  # 1000 bytes take 1 ms
    assert [capped.admit(0, 1_000) for _ in range(3)] == [11 * MS, 12 * MS, 13 * MS]


def test_a_capped_wire_that_was_idle_saves_nothing_up() -> None:
    capped = path(rate_bits_s=8_000_000)
    capped.admit(0, 1_000)
    assert capped.admit(50 * MS, 1_000) == 51 * MS


def test_a_packet_that_would_wait_too_long_is_dropped() -> None:
    capped = path(rate_bits_s=8_000_000, queue_us=2_000)
    arrivals = [capped.admit(0, 1_000) for _ in range(5)]
    assert arrivals == [1 * MS, 2 * MS, 3 * MS, NEVER, NEVER]
    assert capped.counters.queue_full == 2


def test_jitter_has_the_deviation_asked_for_and_does_not_move_the_mean() -> None:
    jittery = path(delay_us=50_000, jitter_us=2_000)
    delays = [jittery.admit(number * MS, 200) - number * MS for number in range(100_000)]
    assert statistics.mean(delays) / MS == pytest.approx(50.2, abs=0.4)  # order costs a little after a step down
    assert statistics.pstdev(delays) / MS == pytest.approx(2.0, abs=0.3)


def test_jitter_never_reorders_packets() -> None:
    jittery = path(delay_us=5_000, jitter_us=4_000)
    arrivals = [jittery.admit(number * 100_000, 200) for number in range(50_000)]
    assert arrivals == sorted(arrivals)


def test_jitter_never_makes_a_packet_arrive_before_it_left() -> None:
    jittery = path(delay_us=100, jitter_us=5_000)
    for number in range(20_000):
        now_ns = number * 10 * MS
        assert jittery.admit(now_ns, 200) >= now_ns


def test_jitter_moves_slowly() -> None:
    jittery = path(delay_us=50_000, jitter_us=2_000)
    delays = [jittery.admit(number * MS, 200) - number * MS for number in range(19)]
    assert len(set(delays[1:])) == 1


def test_a_path_that_became_shorter_does_not_make_packets_wait_for_those_of_the_longer() -> None:
    changed = path(delay_us=10_000_000)
    changed.admit(0, 200)
    changed.change(PathSettings(delay_us=10_000))
    assert changed.admit(1 * MS, 200) == 11 * MS


def test_large_packets_are_not_wanted_where_they_would_be_lost_or_queued_as_one() -> None:
    assert PathSettings(loss_ppm=1).needs_single_packets
    assert PathSettings(rate_bits_s=1).needs_single_packets
    assert not PathSettings(delay_us=1, jitter_us=1, is_cut=True).needs_single_packets
