"""Pools of 5, 30 and 50 members in virtual time: joining, failing, refuting, splitting, leaving."""

from __future__ import annotations

import statistics

import pytest

from mesh.gossip.member import MemberState
from mesh.gossip.timing import LAN, TUNED_WAN, WAN, Timing
from tests.property.gossip.gossip_pool import Host, Pool
from tests.tiers import first


def settled(seed: int, count: int, timing: Timing = LAN, **options: object) -> Pool:
    """Return a pool where all know all, a little later."""
    pool = Pool(seed, timing=timing, **options)  # type: ignore[arg-type]
    pool.storm(count, over_s=0.5)
    pool.run(0.5)
    pool.run_until(pool.all_see, limit_s=40.0)
    pool.run(3 * timing.probe_interval_s)
    return pool


@pytest.mark.parametrize(
    ("count", "timing", "limit_s"),
    [(5, LAN, 1.0), (30, LAN, 3.0), (20, WAN, 4.0), pytest.param(50, LAN, 3.0, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("seed", first(1, [1, 2, 3]))
def test_a_storm_of_joins_through_one_seed_ends_with_all_knowing_all(
    count: int, timing: Timing, limit_s: float, seed: int
) -> None:
    pool = Pool(seed, timing=timing)
    pool.storm(count, over_s=0.5)
    pool.run(0.5)
    assert pool.run_until(pool.all_see, limit_s=limit_s) <= limit_s
    assert pool.news("DEAD") == []


def test_chained_joins_all_converge_with_the_second_exchange() -> None:
    for seed in range(20):
        pool = Pool(seed)
        pool.add("m0")
        for number in range(1, 5):
            pool.run(0.3)
            pool.add(f"m{number}", via=f"m{number - 1}")
        assert pool.run_until(pool.all_see, limit_s=4.0) <= 4.0


# (members, timing, first declared from..to, all know by): docs/protocol/gossip.md has the measured table.
DETECTION = [
    (5, LAN, 4.0, 16.0, 17.0),
    pytest.param(30, LAN, 5.0, 12.0, 13.0, marks=pytest.mark.slow),
    pytest.param(50, LAN, 6.0, 14.0, 15.0, marks=pytest.mark.slow),
    (20, WAN, 38.0, 62.0, 64.0),
    (15, TUNED_WAN, 8.0, 16.0, 17.0),
]


@pytest.mark.parametrize(("count", "timing", "soonest_s", "latest_s", "all_s"), DETECTION)
@pytest.mark.parametrize("seed", first(1, [1, 2]))
def test_a_killed_member_is_declared_dead_in_its_time(
    count: int, timing: Timing, soonest_s: float, latest_s: float, all_s: float, seed: int
) -> None:
    pool = settled(seed, count, timing)
    killed_at = pool.now
    pool.kill("m1")
    pool.run_until(pool.all_see, limit_s=all_s)
    first_s = min(row.at for row in pool.news("DEAD", "m1")) - killed_at
    assert soonest_s <= first_s <= latest_s
    assert {row.name for row in pool.news("DEAD")} == {"m1"}


def test_a_fifth_of_the_pool_killed_at_once_is_found_by_all() -> None:
    pool = settled(3, 30)
    pool.kill(*(f"m{number}" for number in range(5, 11)))
    assert pool.run_until(pool.all_see, limit_s=20.0) > 4.0
    assert {row.name for row in pool.news("DEAD")} == {f"m{number}" for number in range(5, 11)}


@pytest.mark.parametrize(("count", "seed"), first(1, [(5, 1), (10, 3), (30, 3), (5, 2), (50, 4)]))
def test_five_percent_loss_makes_no_false_failure_in_three_minutes(count: int, seed: int) -> None:
    pool = settled(seed, count, loss=0.05, doubled=0.05, delay_s=(0.0001, 0.05))
    pool.run(180.0)
    assert pool.news("DEAD") == []
    assert all(host.states().keys() == pool.hosts.keys() for host in pool.up())


def test_the_tuned_profile_fails_nobody_at_320_ms_round_trip_with_one_percent_loss() -> None:
    pool = settled(5, 15, TUNED_WAN, loss=0.01, delay_s=(0.0003, 0.16))
    pool.run(180.0)
    assert pool.news("DEAD") == []


@pytest.mark.parametrize("seed", first(2, range(6)))
def test_a_member_stalled_for_five_seconds_is_suspected_and_refutes(seed: int) -> None:
    pool = settled(seed, 5)
    stalled = pool.hosts["m2"]
    before = stalled.memberlist.incarnation
    pool.stall("m2", 5.0)
    pool.run(4.99)
    others = [host for host in pool.up() if host is not stalled]
    assert any(host.states()["m2"] is MemberState.SUSPECT for host in others)
    pool.run(0.05)
    assert stalled.memberlist.awareness >= 4  # it knows that it was away: its own probes get longer
    pool.run_until(pool.all_see, limit_s=10.0)
    assert stalled.memberlist.incarnation > before
    pool.run(30.0)
    assert pool.news("DEAD") == []
    assert stalled.memberlist.awareness == 0


def test_a_member_stalled_for_long_is_declared_dead_and_comes_back_by_itself() -> None:
    pool = settled(1, 5)
    pool.stall("m2", 40.0)
    pool.run(39.0)
    assert {row.name for row in pool.news("DEAD")} == {"m2"}
    assert pool.hosts["m2"].alive() == {f"m{number}" for number in range(5)}
    # After gossip_to_dead nobody calls it any more: it calls itself, by its own probes and exchanges.
    pool.run_until(pool.all_see, limit_s=40.0)
    assert {row.name for row in pool.news("DEAD")} == {"m2"}


def test_a_restart_with_an_incarnation_of_the_clock_is_back_at_once() -> None:
    pool = settled(1, 5)
    address = pool.hosts["m1"].address
    pool.kill("m1")
    pool.run_until(lambda: len(pool.news("DEAD", "m1")) >= 4, limit_s=40.0)
    pool.add("m1", via="m0", incarnation=1_700_000_000, address=address)
    assert pool.run_until(pool.all_see, limit_s=2.0) <= 2.0


def test_a_restart_with_a_low_incarnation_is_back_by_refuting_its_own_death() -> None:
    pool = settled(1, 5)
    address = pool.hosts["m1"].address
    pool.kill("m1")
    pool.run_until(lambda: len(pool.news("DEAD", "m1")) >= 4, limit_s=40.0)
    pool.add("m1", via="m0", incarnation=0, address=address)
    pool.run_until(pool.all_see, limit_s=5.0)
    assert pool.hosts["m1"].memberlist.incarnation > 1


def test_a_restart_elsewhere_after_a_crash_gets_its_name_back_after_the_reclaim_time() -> None:
    pool = settled(1, 5)
    killed = pool.now
    pool.kill("m1")
    pool.run_until(lambda: len(pool.news("DEAD", "m1")) >= 4, limit_s=40.0)
    died = pool.now
    pool.add("m1", via="m0", incarnation=int(killed))
    pool.run(2.0)
    assert pool.news("NameConflict", "m1") != []
    pool.run_until(pool.all_see, limit_s=90.0)
    assert pool.now - died >= 25.0


def half(pool: Pool) -> set[Host]:
    return {host for number, host in enumerate(pool.hosts.values()) if number % 2}


@pytest.mark.parametrize(("count", "seed"), first(1, [(12, 1), (30, 1), (30, 2)]))
def test_a_split_in_halves_fails_the_other_half_and_heals_by_itself(count: int, seed: int) -> None:
    pool = settled(seed, count)
    odd = half(pool)
    pool.is_cut = lambda a, b: (a in odd) != (b in odd)
    names = {host.name for host in odd}
    others = pool.hosts.keys() - names
    pool.run_until(
        lambda: all(host.sees(names if host in odd else others) for host in pool.up()),
        limit_s=45.0,
    )
    pool.is_cut = lambda a, b: False
    # Whoever hears that it is dead refutes at once; whom no rumour reaches waits for exchanges of states. The layer
    # above dials the failed again every 30 s, so that it never takes this long.
    assert pool.run_until(pool.all_see, limit_s=120.0) < 120.0


def test_a_one_way_cut_of_one_pair_fails_nobody() -> None:
    pool = settled(1, 5)
    one, two = pool.hosts["m1"], pool.hosts["m2"]
    pool.is_cut = lambda a, b: a is one and b is two
    pool.run(120.0)
    assert pool.news("DEAD") == []
    assert one.memberlist.awareness == 0  # others reached it: nobody's health is blamed


def test_a_broken_udp_path_with_tcp_intact_fails_nobody() -> None:
    pool = settled(1, 3)
    one, two = pool.hosts["m1"], pool.hosts["m2"]
    pool.loss_between = lambda a, b: 1.0 if b is two or a is two else 0.0
    pool.run(60.0)
    assert pool.news("DEAD", "m2") == []
    assert one.memberlist.counts["probe.tcp_only"] > 0


@pytest.mark.parametrize("count", first(1, [5, 30]))
def test_a_graceful_leave_is_known_as_one_within_seconds(count: int) -> None:
    pool = settled(1, count)
    leaver = pool.hosts["m3"]
    leaver.memberlist.leave(pool.now)
    pool.perform(leaver)
    pool.run_until(lambda: pool.news("BroadcastSent", "m3")[-1:] != [], limit_s=5.0)
    others = [host for host in pool.up() if host is not leaver]
    took_s = pool.run_until(lambda: all(host.states().get("m3") is MemberState.LEFT for host in others), limit_s=3.0)
    pool.kill("m3")
    pool.run(60.0)
    assert took_s < 3.0
    assert pool.news("DEAD") == []


@pytest.mark.parametrize("count", first(1, [20, 50]))
def test_new_tags_reach_all_members_within_seconds(count: int) -> None:
    pool = settled(2, count)
    took = []
    for number in range(5):
        changer = pool.hosts[f"m{number}"]
        changer.memberlist.set_meta(b"tags %d" % number, pool.now)
        pool.perform(changer)

        def told(name: str = changer.name, wanted: bytes = b"tags %d" % number) -> bool:
            known = [host.memberlist.member(name) for host in pool.up()]
            return all(member is not None and member.meta == wanted for member in known)

        took.append(pool.run_until(told, limit_s=5.0))
    assert statistics.median(took) < 2.0


def test_a_sealed_and_labelled_pool_works_and_strangers_are_not_heard() -> None:
    pool = Pool(1, keys=(b"k" * 32, b"o" * 16), label="mesh-1")
    pool.storm(5, over_s=0.5)
    pool.run(0.5)
    pool.run_until(pool.all_see, limit_s=4.0)
    stranger = pool.add("stranger")
    stranger.keyring = None
    for host in pool.up():
        stranger.memberlist.packet_received(b"\x00\x80", host.address, pool.now)
    pool.hosts["m0"].memberlist.counts.clear()
    pool._arrive(pool.hosts["m0"], b"\x00" + b"x" * 60, stranger.address)
    assert pool.hosts["m0"].refused_packets == 1
    assert "stranger" not in pool.hosts["m0"].states()


def test_round_trips_measured_by_the_pool_place_the_regions() -> None:
    pool = Pool(4, timing=TUNED_WAN)
    matrix = {(0, 1): 0.035, (0, 2): 0.075, (1, 2): 0.060}

    def one_way_s(a: Host, b: Host) -> float:
        low, high = sorted((int(a.name[1:]) % 3, int(b.name[1:]) % 3))
        return matrix.get((low, high), 0.0003)

    pool.delay_between = one_way_s
    pool.storm(9, over_s=0.5)
    pool.run(150.0)
    misses = []
    hosts = pool.up()
    for a in hosts:
        for b in hosts:
            rtt_s = 2 * one_way_s(a, b)
            if rtt_s > 0.01:
                guess_s = a.above.coordinates.coordinate.distance_s(b.above.coordinates.coordinate)
                misses.append(abs(guess_s - rtt_s) / rtt_s)
    assert statistics.median(misses) < 0.15
    assert pool.news("DEAD") == []


@pytest.mark.parametrize("count", first(1, [10, 30]))
def test_a_quiet_pool_is_quiet(count: int) -> None:
    pool = settled(1, count)
    pool.run(5.0)
    before = sum(host.packets_sent for host in pool.up())
    pool.run(60.0)
    per_member = (sum(host.packets_sent for host in pool.up()) - before) / 60.0 / count
    assert per_member < 2.6  # one ping and one ack per second, rarely more
