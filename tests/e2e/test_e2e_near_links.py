"""There is no gRPC between brokers of one region: watched on the sockets of a region that runs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final

import pytest

from georelay.errors import BadRequest, GeorelayError
from georelay.ids import BrokerId
from georelay.wire.batch import RecordDraft, build_batch
from mesh.replication.link import Dial, Link
from mesh.replication.publish import Publish
from mesh.replication.settings import BrokerAddress
from region.log.filesystem import OsFileSystem
from region.multiraft.peer_links import PeerLinks

TOPIC: Final = "orders"
OLDER: Final = BrokerId(1001)
LISTENS: Final = "0A"  # a state in /proc/net/tcp*


def link_connections(bed: Any) -> int:
    """Return how many TCP connections with a link listener of these brokers the kernel knows of, ended ones too."""
    ports = {f"{int(broker.config.listen.link.rpartition(':')[2]):04X}" for broker in bed.brokers}
    tables = [Path("/proc/net", name) for name in ("tcp", "tcp6")]  # gRPC listens on 127.0.0.1 by an IPv6 socket
    rows = [line.split() for table in tables if table.exists() for line in table.read_text().splitlines()[1:]]
    return sum(row[1].rpartition(":")[2] in ports for row in rows if row[3] != LISTENS)


def near_links(broker: Any) -> set[BrokerId]:
    """Return the brokers whose links are open on the peer listener."""
    return {each.peer for each in broker.core.host.transport.linked}


async def publish_from_each(bed: Any) -> list[int]:
    """Publish one batch through every broker, two of which forward it; return the offsets."""
    offsets = []
    for broker in bed.brokers:
        raw = build_batch([RecordDraft(b"value")], timestamps_ms=1)
        publish = Publish.built(raw, received_ns=1, entry_region=1, lane="test")
        async with asyncio.timeout(10):
            while True:
                try:
                    stored = await broker.cluster.publish(TOPIC, 0, publish)
                    break
                except GeorelayError:  # its link to the leader is being opened
                    await asyncio.sleep(0.02)
        offsets.append(int(stored.base_offset))
    return offsets


async def test_brokers_of_one_region_forward_and_ask_without_a_connection_to_a_link_listener(region_bed: Any) -> None:
    async with region_bed.running([OsFileSystem() for _ in range(3)]) as bed:
        await bed.create_topic()
        assert await publish_from_each(bed) == [0, 1, 2]
        assert link_connections(bed) == 0
        leader = await bed.leader()
        assert near_links(leader) == {broker.config.broker_id for broker in bed.brokers if broker is not leader}


async def test_a_broker_of_a_version_without_near_links_works_in_the_region(
    region_bed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    dial, accept = PeerLinks.dial, PeerLinks.accept

    def dial_as_older(links: PeerLinks, target: BrokerAddress, *, otherwise: Dial) -> Link:
        assert links.transport is not None
        return otherwise(target) if links.transport.me == OLDER else dial(links, target, otherwise=otherwise)

    def accept_as_older(links: PeerLinks, *arguments: Any) -> Any:
        assert links.transport is not None
        if links.transport.me == OLDER:
            raise ValueError("unknown lane 3")
        return accept(links, *arguments)

    monkeypatch.setattr(PeerLinks, "dial", dial_as_older)
    monkeypatch.setattr(PeerLinks, "accept", accept_as_older)
    async with region_bed.running([OsFileSystem() for _ in range(3)]) as bed:
        await bed.create_topic()
        assert await publish_from_each(bed) == [0, 1, 2]
        assert link_connections(bed) > 0
        for broker in bed.brokers:
            for other in bed.brokers:
                if other is not broker:
                    with pytest.raises(BadRequest):  # asked and refused, whichever way the link goes
                        await broker.core._remote.ask(other.config.broker_id, "no such method", {}, timeout_s=5)
        older, *newer = bed.brokers
        assert near_links(older) == set() and OLDER not in near_links(newer[0]) | near_links(newer[1])
        assert [len(near_links(broker)) for broker in newer] == [1, 1]
