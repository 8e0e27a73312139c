"""Connections of links get the congestion control that was chosen, also those that gRPC hides."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import pytest

from georelay.errors import ConfigError
from mesh.listening import congestion_control
from mesh.listening.congestion_control import UNCHANGED_PERIODS_MAX, LinkSockets
from mesh.listening.link_ends_core import LinkEnd, LinkEnds, endpoint_of

CHOSEN = "reno"  # every kernel has it
apply = LinkSockets.apply


def algorithm(connection: socket.socket) -> str:
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0").decode()


@pytest.fixture
def pair() -> Iterator[tuple[int, socket.socket, socket.socket]]:
    """Yield the port of a listener and both ends of a connection to it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as dialled, listener.accept()[0] as accepted:
            for end in (dialled, accepted):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
            yield port, dialled, accepted


Pair = tuple[int, socket.socket, socket.socket]


def test_both_ends_of_a_link_get_it(pair: Pair) -> None:
    port, dialled, accepted = pair
    assert LinkSockets(CHOSEN, frozenset({port})).apply() == 2
    assert (algorithm(dialled), algorithm(accepted)) == (CHOSEN, CHOSEN)


def test_other_connections_are_left_alone(pair: Pair) -> None:
    _, dialled, _ = pair
    assert LinkSockets(CHOSEN, frozenset({1})).apply() == 0
    assert algorithm(dialled) == "cubic"


def test_a_connection_is_set_once(pair: Pair) -> None:
    port, dialled, _ = pair
    links = LinkSockets(CHOSEN, frozenset({port}))
    links.apply()
    dialled.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
    assert links.apply() == 0
    assert algorithm(dialled) == "cubic"


def test_the_metric_says_what_the_kernel_uses(pair: Pair) -> None:
    port, dialled, _ = pair
    links = LinkSockets("kernel", frozenset({port}))
    dialled.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, CHOSEN.encode())
    assert links.in_use() == {("", CHOSEN): 1, ("", "cubic"): 1}
    (family,) = links.collect()
    samples = {(row.labels["region"], row.labels["congestion_control"]): row.value for row in family.samples}
    assert samples == {("", CHOSEN): 1, ("", "cubic"): 1}


def test_an_algorithm_that_the_kernel_has_not_is_refused_at_the_start() -> None:
    with pytest.raises(ConfigError, match="nosuch"):
        LinkSockets("nosuch", frozenset({1}))


def test_auto_is_cubic_and_kernel_leaves_connections_as_they_are(pair: Pair) -> None:
    port, *_ = pair
    assert LinkSockets("auto", frozenset({port})).name == "cubic"
    assert LinkSockets("kernel", frozenset({port})).name == ""


def test_auto_is_the_kernels_default_where_cubic_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(congestion_control, "AUTO_CHOICE", "nosuch")
    assert LinkSockets("auto", frozenset({1})).name == ""


@pytest.fixture
async def channel() -> AsyncIterator[tuple[int, grpc.aio.Channel]]:
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as opened:
        await asyncio.wait_for(opened.channel_ready(), 10)
        yield port, opened
    await server.stop(None)


async def test_the_sockets_of_grpc_are_reached(channel: tuple[int, grpc.aio.Channel]) -> None:
    port, _ = channel
    links = LinkSockets(CHOSEN, frozenset({port}))
    assert links.apply() == 2
    assert links.in_use() == {("", CHOSEN): 2}


async def test_a_connection_made_later_is_found(pair: Pair) -> None:
    port, dialled, _ = pair
    links = LinkSockets(CHOSEN, frozenset({port}))
    links.start()
    try:
        async with asyncio.timeout(5):
            while algorithm(dialled) != CHOSEN:
                await asyncio.sleep(0.01)
    finally:
        await links.stop()


async def test_sockets_are_listed_only_where_something_was_opened_or_closed_and_now_and_then(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = pair[0]
    listed: list[int] = []

    def counted(links: LinkSockets) -> int:
        listed.append(apply(links))
        return listed[-1]

    monkeypatch.setattr(LinkSockets, "apply", counted)
    links = LinkSockets(CHOSEN, frozenset({port}))
    for _ in range(2 * UNCHANGED_PERIODS_MAX):
        await links.look()
    assert len(listed) == 2
    with socket.create_connection(("127.0.0.1", port)) as new:
        await links.look()
        assert algorithm(new) == CHOSEN
    await links.look()
    assert len(listed) == 4


async def test_a_connection_in_the_place_of_another_one_is_found_after_some_periods(pair: Pair) -> None:
    port, _, _ = pair
    links = LinkSockets(CHOSEN, frozenset({port}))
    with socket.create_connection(("127.0.0.1", port)):
        await links.look()
    with socket.create_connection(("127.0.0.1", port)) as other:
        for _ in range(UNCHANGED_PERIODS_MAX):
            await links.look()
        assert algorithm(other) == CHOSEN


# --- by region ----------------------------------------------------------------------------------------


def ends_of(port: int, dialled: socket.socket) -> list[LinkEnd]:
    """Return both ends of one connection as a broker sees them that dials itself under two names."""
    return [
        LinkEnd("eu", f"127.0.0.1:{port}", True),
        LinkEnd("ap", f"ipv4:127.0.0.1:{dialled.getsockname()[1]}", False),
    ]


def test_each_end_gets_what_was_chosen_for_the_region_at_the_other_end(pair: Pair) -> None:
    port, dialled, accepted = pair
    ends = ends_of(port, dialled)
    links = LinkSockets("auto", frozenset({port}), by_region={"eu": CHOSEN}, ends=lambda: ends)
    assert links.apply() == 2
    assert (algorithm(dialled), algorithm(accepted)) == (CHOSEN, "cubic")
    assert links.in_use() == {("eu", CHOSEN): 1, ("ap", "cubic"): 1}


def test_a_connection_is_set_again_when_its_region_becomes_known(pair: Pair) -> None:
    port, dialled, accepted = pair
    ends: list[LinkEnd] = []
    links = LinkSockets("auto", frozenset({port}), by_region={"ap": CHOSEN}, ends=lambda: ends)
    assert links.apply() == 2
    assert algorithm(accepted) == "cubic"
    ends += ends_of(port, dialled)
    assert links.apply() == 1
    assert (algorithm(dialled), algorithm(accepted)) == ("cubic", CHOSEN)
    assert links.apply() == 0


def test_a_region_that_shall_have_the_kernels_choice_gets_back_what_the_kernel_gave(pair: Pair) -> None:
    port, dialled, accepted = pair
    ends: list[LinkEnd] = []
    links = LinkSockets(CHOSEN, frozenset({port}), by_region={"ap": "kernel"}, ends=lambda: ends)
    links.apply()
    assert (algorithm(dialled), algorithm(accepted)) == (CHOSEN, CHOSEN)
    ends += ends_of(port, dialled)
    links.apply()
    assert (algorithm(dialled), algorithm(accepted)) == (CHOSEN, "cubic")


def test_what_a_dialled_address_uses_is_what_the_kernel_says(pair: Pair) -> None:
    port, dialled, accepted = pair
    ends = ends_of(port, dialled)
    links = LinkSockets("auto", frozenset({port}), ends=lambda: ends)
    links.apply()
    dialled.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, CHOSEN.encode())  # by somebody else
    address = f"127.0.0.1:{port}"
    assert links.in_use_by([address, "127.0.0.1:1", "nowhere"]) == {address: CHOSEN}
    assert algorithm(accepted) == "cubic"


def test_an_algorithm_for_a_region_that_the_kernel_has_not_is_refused_at_the_start() -> None:
    with pytest.raises(ConfigError, match="nosuch"):
        LinkSockets("auto", frozenset({1}), by_region={"eu": "nosuch"})


def test_a_port_that_only_gossip_told_is_a_links_port(pair: Pair) -> None:
    port, dialled, _ = pair
    ends = [LinkEnd("eu", f"127.0.0.1:{port}", True)]
    links = LinkSockets(CHOSEN, frozenset({1}), ends=lambda: ends)
    assert links.apply() == 1
    assert algorithm(dialled) == CHOSEN


async def test_brokers_with_names_are_known_by_their_addresses(pair: Pair) -> None:
    port, dialled, _ = pair
    ends = [LinkEnd("eu", f"localhost:{port}", True), LinkEnd("ap", f"nowhere.invalid:{port}", True)]
    links = LinkSockets("auto", frozenset({port}), by_region={"eu": CHOSEN}, ends=lambda: ends)
    links.start()
    try:
        async with asyncio.timeout(10):
            while algorithm(dialled) != CHOSEN:
                await asyncio.sleep(0.01)
    finally:
        await links.stop()
    assert links.in_use_by([f"localhost:{port}"]) == {f"localhost:{port}": CHOSEN}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("10.0.0.1:80", ("10.0.0.1", 80)),
        ("[::1]:80", ("::1", 80)),
        ("ipv4:10.0.0.1:53100", ("10.0.0.1", 53100)),
        ("ipv6:%5B::1%5D:53100", ("::1", 53100)),
        ("[::ffff:10.0.0.1]:80", ("10.0.0.1", 80)),
        ("Broker-1.EU.example:80", ("broker-1.eu.example", 80)),
        ("unix:/tmp/socket", None),
        ("10.0.0.1", None),
        ("host:port", None),
        ("", None),
    ],
)
def test_an_endpoint_has_one_spelling(text: str, found: tuple[str, int] | None) -> None:
    assert endpoint_of(text) == found


def test_a_port_that_two_regions_share_says_nothing_and_addresses_do() -> None:
    ends = [
        LinkEnd("eu", "10.0.1.1:9094", True),
        LinkEnd("ap", "ap-1:9094", True),
        LinkEnd("us", "10.0.3.1:9095", True),
    ]
    known = LinkEnds(ends, {"ap-1": ["10.0.2.1"]})
    peers = [("10.0.1.1", 9094), ("10.0.2.1", 9094), ("10.0.9.9", 9094), ("10.0.9.9", 9095), ("10.0.9.9", 1)]
    assert [known.region_of(peer) for peer in peers] == ["eu", "ap", "", "us", ""]
    assert known.ports == {9094, 9095}


async def test_a_look_without_descriptors_is_not_the_last_one(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    port, dialled, _ = pair
    links, looked = LinkSockets(CHOSEN, frozenset({port})), asyncio.Event()

    def none_left() -> int:
        looked.set()
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(congestion_control, "PERIOD_S", 0.01)
    with monkeypatch.context() as scarce:
        scarce.setattr(congestion_control, "descriptor_count", none_left)
        links.start()
        await looked.wait()
    async with asyncio.timeout(5):
        while algorithm(dialled) != CHOSEN:
            await asyncio.sleep(0.01)
    await links.stop()


async def test_a_broker_knows_both_ends_of_its_links_and_shows_what_they_use(
    two_regions: Any, until: Any, memory_log: Any, key: Any
) -> None:
    home, mirror = two_regions.home.links, two_regions.mirror.links
    two_regions.home.logs[key] = memory_log()
    mirror.mirror_started(memory_log())
    await until(lambda: home.ends(str) and mirror.is_linked(1))
    (dialled,) = mirror.ends(str)
    assert dialled == LinkEnd("1", f"127.0.0.1:{two_regions.wire.port}", True)
    (accepted,) = home.ends(str)
    assert (accepted.region, accepted.is_dialled) == ("2", False)
    assert endpoint_of(accepted.address) is not None
    links = LinkSockets("auto", frozenset(), by_region={"1": CHOSEN}, ends=lambda: mirror.ends(str))
    links.apply()
    mirror.congestion_controls = links.in_use_by
    row = next(row for row in mirror.links() if "open" in row)
    assert (row["region"], row["congestion_control"]) == (1, CHOSEN)
