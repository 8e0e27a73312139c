"""Brokers from the configuration and from gossip, put together without sockets or clocks."""

from __future__ import annotations

import dataclasses

from gateway.routing.endpoints import BrokerEndpoints, RegionEndpoints
from gateway.routing.known_brokers_core import BROKERS_MAX, FORGOTTEN_AFTER_S, KnownBrokers
from georelay.ids import BrokerId, RegionNumber
from georelay.limits import REGIONS_MAX
from mesh.gossip.directory_core import BrokerRow


def row(broker: int, region: str = "", host: str = "127.0.0.1", **changes: object) -> BrokerRow:
    made = BrokerRow(
        broker=BrokerId(broker),
        region=region or f"r{broker // 1000}",
        kafka=f"{host}:{broker}",
        grpc=f"{host}:{broker + 1}",
        admin=f"{host}:{broker + 2}",
    )
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]


def known(*configured: RegionEndpoints) -> KnownBrokers:
    return KnownBrokers(configured, may_dial=lambda address: address.startswith("127."))


def ids(brokers: KnownBrokers) -> dict[str, list[int]]:
    return {region.name: [int(broker.id) for broker in region.brokers] for region in brokers.regions()}


def test_the_pool_tells_of_the_own_region_and_the_directory_of_the_others() -> None:
    brokers = known()
    brokers.pool_changed([row(1001), row(1002)], 0.0)
    brokers.directory_told([row(2001), row(1001), row(4001)], 1.0, rtt_s=None)
    assert ids(brokers) == {"r1": [1001, 1002], "r2": [2001], "r4": [4001]}


def test_what_a_broker_says_of_itself_counts_more_than_what_another_says() -> None:
    brokers = known()
    brokers.pool_changed([row(1001, kafka="127.0.0.1:7")], 0.0)
    brokers.directory_told([row(1001), row(1001, has_left=True)], 1.0, rtt_s=None)
    assert brokers.regions()[0].brokers[0].kafka == "127.0.0.1:7"


def test_a_broker_that_has_left_is_gone_and_one_that_comes_back_is_there() -> None:
    brokers = known()
    brokers.pool_changed([row(1001)], 0.0)
    brokers.directory_told([row(2001)], 0.0, rtt_s=None)
    brokers.pool_changed([row(1001, has_left=True)], 1.0)
    brokers.directory_told([row(2001, has_left=True)], 1.0, rtt_s=None)
    assert ids(brokers) == {}
    brokers.directory_told([row(2001)], 2.0, rtt_s=None)
    assert ids(brokers) == {"r2": [2001]}


def test_a_broker_that_is_not_told_of_any_more_stays_for_ten_minutes_of_directories() -> None:
    brokers = known()
    brokers.directory_told([row(2001), row(3001)], 0.0, rtt_s=None)
    brokers.directory_told([row(3001)], FORGOTTEN_AFTER_S, rtt_s=None)
    assert ids(brokers) == {"r2": [2001], "r3": [3001]}
    brokers.directory_told([row(3001)], FORGOTTEN_AFTER_S + 1, rtt_s=None)
    assert ids(brokers) == {"r3": [3001]}


def test_silence_of_all_tellers_takes_nothing_away() -> None:
    brokers = known()
    brokers.directory_told([row(2001)], 0.0, rtt_s=None)
    brokers.pool_changed([], 100 * FORGOTTEN_AFTER_S)
    assert ids(brokers) == {"r2": [2001]}


def test_the_configuration_wins_and_gossip_adds() -> None:
    fixed = BrokerEndpoints(id=BrokerId(1001), kafka="127.0.0.1:1", grpc="127.0.0.1:2", admin="127.0.0.1:3")
    brokers = known(RegionEndpoints(name="us", number=RegionNumber(1), brokers=(fixed,)))
    brokers.directory_told(
        [row(1001, "us"), row(1002, "us"), row(1003, "eu"), row(2001, "us"), row(2002, "eu")], 0.0, rtt_s=None
    )
    assert ids(brokers) == {"us": [1001, 1002], "eu": [2002]}
    assert brokers.regions()[0].brokers[0] == fixed
    assert brokers.refused[BrokerId(1003)] == "region 1 is us, not eu"
    assert brokers.refused[BrokerId(2001)] == "region us has another number than 2"


def test_an_address_that_may_not_be_dialed_in_plain_text_is_refused_and_named() -> None:
    brokers = known()
    brokers.directory_told([row(1001), row(2001, admin="10.0.0.1:3")], 0.0, rtt_s=None)
    assert ids(brokers) == {"r1": [1001]}
    assert "10.0.0.1:3 is not a loopback address" in brokers.refused[BrokerId(2001)]


def test_regions_and_brokers_are_bounded() -> None:
    brokers = known()
    brokers.directory_told([row(number * 1000 + 1) for number in range(1, REGIONS_MAX + 5)], 0.0, rtt_s=None)
    assert len(brokers.regions()) == REGIONS_MAX
    brokers = known()
    brokers.directory_told([row(1000 + number) for number in range(1, BROKERS_MAX + 5)], 0.0, rtt_s=None)
    assert len(brokers.regions()[0].brokers) == BROKERS_MAX


def test_estimates_of_other_regions_go_over_the_broker_that_told_them() -> None:
    brokers = known()
    brokers.pool_changed([row(1001, rtt_s=0.001), row(1002)], 0.0)
    brokers.directory_told([row(2001, rtt_s=0.07), row(3001)], 0.0, rtt_s=0.001)
    assert brokers.estimates_ns() == {1001: 1_000_000, 2001: 71_000_000}
