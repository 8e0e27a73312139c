"""Geo levels over links: protocol versions, forwarded publishes, sessions that count, watermarks that are told."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from georelay.durability import Durability
from georelay.errors import NotEnoughRegions, PolicyViolation
from georelay.ids import Epoch, Offset, RegionNumber
from mesh.replication import link_endpoint
from mesh.replication.level import REGION_LEVEL, AskedLevel
from mesh.replication.ports import Published
from mesh.replication.publish import Publish

GEO = AskedLevel(durability=Durability(2), deadline_ms=700, needs_live=True)


class CountedRegions:
    """Remembers what sessions tell; tells one watermark."""

    def __init__(self) -> None:
        self.acks: list[tuple[int, int, int]] = []
        self.listeners: list[Any] = []
        self.gone: list[int] = []
        self.watermark: tuple[int, Offset] | None = None
        self.heard: list[tuple[int, int]] = []

    def joined(self, region: RegionNumber, session: Any, listener: Any) -> None:
        self.listeners.append(listener)
        listener.watermark_moved()

    def left(self, region: RegionNumber, session: Any) -> None:
        self.gone.append(region)

    def acknowledged(self, region: RegionNumber, *, epoch: Epoch, offset: Offset) -> None:
        self.acks.append((region, epoch, offset))

    def watermark_to_tell(self) -> tuple[int, Offset] | None:
        return self.watermark

    def told(self, k: int, watermark: Offset) -> None:
        self.heard.append((k, watermark))


def forward(two_regions: Any, key: Any, level: AskedLevel = GEO) -> asyncio.Future[Published]:
    publish = Publish(cast("Any", None), b"v", 1, 2, lane="one", level=level)
    future = two_regions.mirror.links.forward(key, publish, region=RegionNumber(1))
    assert isinstance(future, asyncio.Future)
    return future


async def test_a_mirror_counts_from_its_first_acknowledgement_and_is_told_watermarks(
    two_regions: Any, until: Any, memory_log: Any, key: Any
) -> None:
    home, mirror = memory_log(), memory_log()
    home.geo, mirror.geo = CountedRegions(), CountedRegions()
    home.geo.watermark = (3, Offset(0))
    two_regions.home.logs[key] = home
    two_regions.mirror.links.mirror_started(mirror)
    await until(lambda: home.geo.acks == [(2, 1, 0)])  # a matching HELLO: nothing yet, but it is there
    home.sequence(b"v")
    await until(lambda: home.geo.acks[-1] == (2, 1, 1))
    home.geo.watermark = (3, Offset(1))
    home.geo.listeners[0].watermark_moved()
    await until(lambda: mirror.geo.heard == [(3, 0), (3, 1)])
    home.geo.listeners[0].watermark_moved()  # no news: nothing is sent
    await two_regions.wire.cut()
    await until(lambda: home.geo.gone == [2])
    assert mirror.geo.heard == [(3, 0), (3, 1)]


async def test_a_mirror_in_an_older_epoch_does_not_count(
    two_regions: Any, until: Any, memory_log: Any, key: Any
) -> None:
    home, mirror = memory_log(), memory_log()
    home.geo, mirror.geo = CountedRegions(), CountedRegions()
    for number in range(3):
        home.sequence(b"v%d" % number)
    home.begin_epoch(Epoch(2), Offset(3))
    two_regions.home.logs[key] = home
    two_regions.mirror.links.mirror_started(mirror)
    await until(lambda: mirror.epoch == 2 and home.geo.acks)
    assert {epoch for _, epoch, _ in home.geo.acks} == {2}  # what it acknowledged while it was in epoch 1 is not there
    assert home.geo.acks[-1] == (2, 2, 3)


async def test_a_forwarded_publish_carries_its_level_and_what_it_reached(
    two_regions: Any, memory_log: Any, key: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[AskedLevel] = []

    def publish_forwarded(_: Any, batch: bytes, **given: Any) -> asyncio.Future[Published]:
        asked.append(given["level"])
        future: asyncio.Future[Published] = asyncio.get_running_loop().create_future()
        regions = (RegionNumber(1), RegionNumber(2))
        future.set_result(
            Published(
                epoch=Epoch(1), base_offset=Offset(7), append_us=5, regions=regions, level=2, is_pending=len(asked) > 1
            )
        )
        return future

    monkeypatch.setattr(type(two_regions.home), "publish_forwarded", staticmethod(publish_forwarded))
    stored = await forward(two_regions, key)
    assert (stored.base_offset, stored.level, stored.regions, stored.is_pending) == (7, 2, (1, 2), False)
    assert (await forward(two_regions, key)).is_pending
    assert asked == [GEO, GEO]


@pytest.mark.parametrize(
    ("level", "version", "is_told"), [(REGION_LEVEL, 2, True), (GEO, 2, True), (REGION_LEVEL, 1, False)]
)
async def test_a_forwarded_publish_says_that_its_home_was_isolated_to_whoever_understands_it(
    two_regions: Any,
    memory_log: Any,
    key: Any,
    monkeypatch: pytest.MonkeyPatch,
    level: AskedLevel,
    version: int,
    is_told: bool,
) -> None:
    def publish_forwarded(_: Any, batch: bytes, **given: Any) -> asyncio.Future[Published]:
        future: asyncio.Future[Published] = asyncio.get_running_loop().create_future()
        future.set_result(Published(epoch=Epoch(1), base_offset=Offset(7), append_us=5, is_isolated=True))
        return future

    monkeypatch.setattr(type(two_regions.home), "publish_forwarded", staticmethod(publish_forwarded))
    monkeypatch.setattr(link_endpoint.LinkEndpoint, "peer_version", property(lambda _endpoint: version))
    stored = await forward(two_regions, key, level)
    home = (RegionNumber(1),)
    assert stored == Published(epoch=Epoch(1), base_offset=Offset(7), append_us=5, regions=home, is_isolated=is_told)


async def test_a_forwarded_publish_names_the_region_that_stored_it(two_regions: Any, memory_log: Any, key: Any) -> None:
    two_regions.home.logs[key] = memory_log()
    assert (await forward(two_regions, key, REGION_LEVEL)).regions == (1,)


async def test_what_waits_as_the_topic_says_is_judged_by_the_home_and_not_where_it_came_in(
    two_regions: Any, key: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[AskedLevel] = []

    def publish_forwarded(_: Any, batch: bytes, **given: Any) -> asyncio.Future[Published]:
        asked.append(given["level"])
        future: asyncio.Future[Published] = asyncio.get_running_loop().create_future()
        future.set_result(Published(epoch=Epoch(1), base_offset=Offset(7), append_us=5))
        return future

    monkeypatch.setattr(type(two_regions.home), "publish_forwarded", staticmethod(publish_forwarded))
    as_topic = AskedLevel(deadline_ms=700, needs_live=True, as_topic=True)
    await forward(two_regions, key, as_topic)
    assert asked == [as_topic]


async def test_a_refusal_of_the_home_arrives_as_it_is(two_regions: Any, key: Any) -> None:
    two_regions.home.publish_errors.append(NotEnoughRegions("1 is reached now"))
    with pytest.raises(NotEnoughRegions, match="1 is reached"):
        await forward(two_regions, key)


async def test_a_home_of_version_1_is_spoken_to_in_version_1_and_never_asked_for_a_geo_level(
    two_regions: Any, until: Any, memory_log: Any, key: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It refuses an OPEN of version 2, as brokers of before do; then the dialler offers version 1."""
    real = link_endpoint.refuse_peer

    def refuse(own: Any, peer: Any, *names: Any) -> tuple[str, str] | None:
        if own.region_number == 1 and peer.protocol_version != 1:
            return "VERSION", f"link protocol {peer.protocol_version}, this broker speaks 1"
        return real(own, peer, *names)

    monkeypatch.setattr(link_endpoint, "refuse_peer", refuse)
    home, mirror = memory_log(), memory_log()
    home.geo, mirror.geo = CountedRegions(), CountedRegions()
    home.geo.watermark = (3, Offset(1))
    two_regions.home.logs[key] = home
    two_regions.mirror.links.mirror_started(mirror)
    home.sequence(b"v")
    await until(lambda: mirror.high_watermark == 1)
    (link,) = [link for link in two_regions.mirror.links._outgoing.all() if link.is_open]
    assert link.peer_version == 1
    with pytest.raises(PolicyViolation, match="older version"):
        await forward(two_regions, key)
    assert (await forward(two_regions, key, AskedLevel())).base_offset == 1  # the lane goes on
    assert two_regions.home.published == [b"v"]
    assert mirror.geo.heard == []


async def test_a_dialler_that_is_too_old_for_the_mesh_is_refused_and_reads_why(two_regions: Any, until: Any) -> None:
    two_regions.home.links.too_old = lambda peer: f"broker {peer.broker_id} is too old" if peer.region == "r2" else ""
    two_regions.mirror.links._outgoing.all()[0].want()
    await until(lambda: two_regions.mirror.links._outgoing.all()[0].last_failure)
    (link,) = two_regions.mirror.links._outgoing.all()
    assert link.last_failure == "refused: LEVEL: broker 2001 is too old"
    assert set(two_regions.home.links.counters.peers_refused) == {"LEVEL"}  # by its name, not as "other"
    two_regions.home.links.too_old = lambda _peer: ""  # it was upgraded
    await until(lambda: link.is_open)


async def test_a_dialler_of_version_1_is_answered_in_version_1(
    two_regions: Any, until: Any, memory_log: Any, key: Any
) -> None:
    for link in two_regions.mirror.links._outgoing.all():
        link._offer = 1
    home, mirror = memory_log(), memory_log()
    home.geo, mirror.geo = CountedRegions(), CountedRegions()
    home.geo.watermark = (3, Offset(0))
    two_regions.home.logs[key] = home
    two_regions.mirror.links.mirror_started(mirror)
    await until(lambda: home.geo.listeners)
    home.sequence(b"v")
    await until(lambda: mirror.high_watermark == 1)
    assert [link._endpoint.peer_version for link in two_regions.home.links._incoming] == [1]
    assert mirror.geo.heard == []
