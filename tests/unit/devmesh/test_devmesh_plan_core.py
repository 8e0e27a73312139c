"""The layout of a development mesh where no process is started: addresses, blocks of ports, wishes that are refused."""

from __future__ import annotations

import itertools

import pytest

from georelay.errors import ConfigError
from region.devmesh.plan_core import (
    DEV_REGIONS_MAX,
    PORT_MAX,
    Hosts,
    check_block,
    check_brokers_per_region,
    check_same_mesh,
    new_record,
    parse_regions,
    plan,
    port_count,
)

RECORD = new_record(mesh_id="m", regions=("us", "eu"), brokers_per_region=3, base_port=21_000)


def test_names_of_regions_are_taken_in_their_order_and_without_spaces() -> None:
    assert parse_regions("us, eu ,ap") == ("us", "eu", "ap")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "'' is not a region name"),
        ("us,,eu", "'' is not a region name"),
        ("US", "'US' is not a region name"),
        ("us,eu,us", "a name is there twice in 'us,eu,us'"),
        (",".join(f"r{number}" for number in range(DEV_REGIONS_MAX + 1)), "17 regions; one machine runs at most 16"),
    ],
)
def test_a_list_of_regions_that_cannot_be_is_refused_with_what_is_wrong(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_regions(text)


def test_one_machine_runs_as_many_regions_as_its_limit() -> None:
    assert len(parse_regions(",".join(f"r{number}" for number in range(DEV_REGIONS_MAX)))) == DEV_REGIONS_MAX


@pytest.mark.parametrize("count", [0, 2, 4, 6, 7])
def test_a_number_of_brokers_without_a_majority_worth_having_is_refused(count: int) -> None:
    with pytest.raises(ConfigError, match=f"{count} is not 1, 3 or 5"):
        check_brokers_per_region(count)


def test_one_three_and_five_brokers_are_taken() -> None:
    for count in (1, 3, 5):
        check_brokers_per_region(count)


@pytest.mark.parametrize(
    ("regions", "brokers"), [(("us",), 3), (("eu", "us"), 3), (("us", "eu", "ap"), 3), (("us", "eu"), 1)]
)
def test_another_mesh_is_not_started_on_the_data_of_the_recorded_one(regions: tuple[str, ...], brokers: int) -> None:
    check_same_mesh(RECORD, regions=("us", "eu"), brokers_per_region=3, directory="d")
    with pytest.raises(ConfigError, match="d holds a mesh of --regions us,eu --brokers-per-region 3"):
        check_same_mesh(RECORD, regions=regions, brokers_per_region=brokers, directory="d")


def test_a_block_of_ports_ends_with_the_last_port_and_needs_no_privilege() -> None:
    check_block(1024, 10)
    check_block(PORT_MAX - 9, 10)
    for base in (1023, PORT_MAX - 8, -1):
        with pytest.raises(ConfigError, match=f"{base} does not leave 10 ports; use 1024..{PORT_MAX - 9}, or 0"):
            check_block(base, 10)


@pytest.mark.parametrize(("regions", "brokers"), [(1, 1), (1, 5), (3, 1), (3, 5)])
def test_a_mesh_takes_each_port_of_its_block_once(regions: int, brokers: int) -> None:
    names = tuple(f"r{number}" for number in range(regions))
    record = new_record(mesh_id="m", regions=names, brokers_per_region=brokers, base_port=30_000)
    mesh = plan(record)
    rows = [(b.kafka, b.grpc, b.peers, b.link, b.admin, b.text, b.lan, b.wan) for b in mesh.brokers]
    gateway = mesh.gateway
    addresses = [*itertools.chain(*rows), gateway.http, gateway.kafka, gateway.grpc, gateway.text, gateway.lan]
    ports = sorted(int(address.removeprefix("127.0.0.1:")) for address in addresses)
    assert record.port_count == port_count(regions, brokers) == len(ports)
    assert ports == list(range(30_000, 30_000 + len(ports)))


def test_in_a_test_bed_every_broker_listens_at_its_own_address_only() -> None:
    places = {
        (name, number): f"198.18.{at}.{number}" for at, name in enumerate(("us", "eu"), 1) for number in (1, 2, 3)
    }
    mesh = plan(RECORD, Hosts(gateway="198.19.0.1", brokers=places))
    assert {broker.name: broker.host for broker in mesh.brokers} == {
        f"{name}-{number}": host for (name, number), host in places.items()
    }
    for broker in mesh.brokers:
        listeners = (broker.kafka, broker.grpc, broker.peers, broker.admin, broker.text, broker.lan, broker.wan)
        assert {address.rpartition(":")[0] for address in listeners} == {broker.host}
    assert {address.rpartition(":")[0] for address in (mesh.gateway.http, mesh.gateway.kafka, mesh.gateway.lan)} == {
        "198.19.0.1"
    }


def test_numbers_of_regions_count_from_one_and_the_next_one_was_never_given_out() -> None:
    assert (RECORD.regions, RECORD.next_region_number) == ((("us", 1), ("eu", 2)), 3)
    assert [(region.name, region.number) for region in plan(RECORD).regions] == [("us", 1), ("eu", 2)]
