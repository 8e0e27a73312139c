"""What is known to be out of order is refused at once, as not stored. Time is an argument."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from typing import Any, cast

import pytest

from georelay.clock import Clock
from georelay.errors import HomeUnreachable, NotLeader, OutcomeUnknown, OutOfOrderSequence
from georelay.ids import BrokerId, Epoch, Offset, RegionNumber, StreamKey
from georelay.lane_core import LaneLimits
from georelay.outage_core import Outage
from mesh.replication import frames as f
from mesh.replication.faults import to_fault
from mesh.replication.forwarder import Forwarder
from mesh.replication.link import Link, LinkReceiver
from mesh.replication.outgoing_links import OutgoingLinks
from mesh.replication.ports import Published
from mesh.replication.publish import Publish
from mesh.replication.settings import BrokerAddress, LinkSettings, MeshIdentity
from region.api.coalescer import OUTAGE_NS, Coalescer, NewRecord

MS = 1_000_000
US, EU = RegionNumber(1), RegionNumber(2)
SETTINGS = LinkSettings()


def test_an_outage_is_known_after_it_was_seen_for_long_enough_and_not_when_it_is_over() -> None:
    outage = Outage(100 * MS)
    seen = []
    for now_ms in (0, 60, 120):
        outage.seen(now_ms * MS)
        seen.append(outage.is_known(now_ms * MS))
    assert seen == [False, False, True]
    outage.over()
    outage.seen(130 * MS)
    assert not outage.is_known(131 * MS)


def test_what_was_not_seen_for_long_is_another_outage() -> None:
    outage = Outage(100 * MS)
    outage.seen(0)
    outage.seen(100 * MS)
    assert outage.is_known(700 * MS)
    assert not outage.is_known(701 * MS)
    outage.seen(701 * MS)
    assert not outage.is_known(701 * MS)


class Time(Clock):
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now_ns = 0

    def monotonic_ns(self) -> int:
        return self.now_ns

    def wall_ns(self) -> int:
        return self.now_ns


class Carrier:
    """A link whose other end the test plays."""

    peer_names = None
    gather_ms = 2
    is_writable = True

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.receiver: LinkReceiver | None = None

    def quiet_ns(self) -> None: ...

    def met(self) -> None: ...

    def start(self, receiver: LinkReceiver) -> None:
        self.receiver = receiver

    def send(self, frame: bytes) -> None: ...

    def close(self, reason: str) -> None:
        receiver, self.receiver = self.receiver, None
        if receiver is not None:
            receiver.link_closed(reason)

    def says(self, part: f.Part) -> None:
        assert self.receiver is not None
        self.receiver.frame_received(f.encode_frame(part))


class Publisher:
    """A broker of eu that publishes to us; the test is us."""

    def __init__(self) -> None:
        self.time = Time()
        self.carriers: list[Carrier] = []
        self.links = OutgoingLinks(
            {US: [BrokerAddress(broker_id=BrokerId(1001), address="us")]},
            identity=MeshIdentity(mesh_id="mesh", region="eu", region_number=EU, broker_id=BrokerId(2001)),
            clock=self.time,
            settings=SETTINGS,
            dial=self._dial,
        )
        self.forwarder = Forwarder(self.links, clock=self.time, settings=SETTINGS, region_name=lambda _: "us")
        self.links.on_opened.append(self.forwarder.link_opened)

    def _dial(self, target: BrokerAddress) -> Link:
        self.carriers.append(Carrier(target.address))
        return self.carriers[-1]

    def publish(self, lane: Hashable = "lane") -> asyncio.Future[Published]:
        publish = Publish(cast("Any", None), b"batch", 1, EU, lane)
        return self.forwarder.forward(StreamKey(bytes(16), RegionNumber(0), 0), publish, region=US)

    def wait(self, ms: int, *, is_down: bool = False) -> None:
        """Let time pass, tick by tick; `is_down`: every dial is refused, else links are kept alive."""
        for _ in range(0, ms, SETTINGS.redial_ms):
            self.time.now_ns += SETTINGS.redial_ms * MS
            carrier = self.carriers[-1]
            if is_down:
                carrier.close("refused")
            elif carrier.receiver is not None:
                carrier.says(f.Heartbeat(0))
            self.links.tick()
            self.forwarder.tick()

    def open(self) -> None:
        self.carriers[-1].says(f.Open(2, "mesh", "us", US, BrokerId(1001)))

    def answer(self, part: f.Part) -> None:
        self.carriers[-1].says(part)

    def refuse_newest(self) -> None:
        """us answers that nobody leads the partition, as far as it knows."""
        self.answer(f.ForwardFailed(self.forwarder._request_number, to_fault(NotLeader(leader=-1))))


async def test_a_home_that_no_link_reaches_is_waited_for_once_and_then_refuses_at_once() -> None:
    world = Publisher()
    first = world.publish()
    world.wait(SETTINGS.dead_after_ms - SETTINGS.redial_ms, is_down=True)
    assert not first.done()
    world.wait(2 * SETTINGS.redial_ms, is_down=True)
    for refused in (first, world.publish(), world.publish("another client")):
        assert refused.done()
        with pytest.raises(
            HomeUnreachable, match=r"region us.*nothing was stored.*georelay status.*failover --region us"
        ):
            await refused


async def test_what_was_on_its_way_when_the_link_broke_is_unknown_and_what_comes_later_is_not_stored() -> None:
    world = Publisher()
    first = world.publish()
    world.open()
    world.wait(2_000, is_down=True)
    with pytest.raises(OutcomeUnknown):
        await first
    later = world.publish()
    assert isinstance(later.exception() if later.done() else None, HomeUnreachable)


async def test_as_soon_as_a_link_is_open_it_is_published_again() -> None:
    world = Publisher()
    lost = world.publish()
    world.wait(2_000, is_down=True)
    with pytest.raises(HomeUnreachable):
        await lost
    world.open()
    stored = world.publish()
    world.answer(f.Forwarded(world.forwarder._request_number, Epoch(1), Offset(7), 0, Offset(0)))
    assert (await stored).base_offset == 7


async def test_a_stream_that_nobody_leads_is_waited_for_once_and_then_refused_with_the_answer() -> None:
    world = Publisher()
    first = world.publish()
    world.open()
    number = world.forwarder._request_number
    for _ in range(SETTINGS.leaderless_ms // SETTINGS.redial_ms):
        assert not first.done()
        world.answer(f.ForwardFailed(number, to_fault(NotLeader(leader=-1))))
        world.wait(SETTINGS.redial_ms)
    world.answer(f.ForwardFailed(number, to_fault(NotLeader(leader=-1))))
    again = world.publish("another client")
    world.refuse_newest()
    for refused in (first, again):
        with pytest.raises(NotLeader, match=r"no broker of region us.*nothing was stored.*georelay status"):
            await refused
    stored = world.publish()
    world.answer(f.Forwarded(world.forwarder._request_number, Epoch(1), Offset(0), 0, Offset(0)))
    await stored
    waits = world.publish()
    world.refuse_newest()
    assert not waits.done()  # another election is waited for
    waits.cancel()


async def test_a_batch_called_out_of_order_goes_again_behind_the_refused_one_that_it_leaves_out() -> None:
    world = Publisher()
    batches = [world.publish(), world.publish()]
    world.open()
    first, second = world.forwarder._request_number - 1, world.forwarder._request_number
    world.answer(f.ForwardFailed(first, to_fault(NotLeader(leader=1001))))
    world.answer(f.ForwardFailed(second, to_fault(OutOfOrderSequence("sequence 1, 0 was expected"))))
    assert not any(batch.done() for batch in batches)
    for number in (first, second):
        world.answer(f.Forwarded(number, Epoch(1), Offset(number), 0, Offset(0)))
    assert [(await batch).base_offset for batch in batches] == [first, second]


async def test_a_record_on_its_way_when_its_home_is_lost_is_told_unknown_once_that_is_known_and_names_the_region() -> (
    None
):
    world = Publisher()
    began_ns = world.time.now_ns
    limits = LaneLimits(patience_ns=OUTAGE_NS, backoff_ns=0)
    coalescer = Coalescer(
        cast("Any", Forwarding(world)),
        entry_region=2,
        wall_ns=lambda: 1,
        monotonic_ns=world.time.monotonic_ns,
        limits=limits,
    )
    (future,) = coalescer.publish("orders", 0, [NewRecord(b"v")])
    await turns()
    world.open()
    assert world.forwarder._windows[US].batches == 1  # sent, and not answered
    while not future.done():
        world.wait(SETTINGS.redial_ms, is_down=True)
        await turns()
    assert world.time.now_ns - began_ns <= (SETTINGS.dead_after_ms + 2 * SETTINGS.redial_ms) * MS
    with pytest.raises(OutcomeUnknown, match=r"may be stored.*region us.*cannot be reached"):
        await future
    await coalescer.close()


class Forwarding:
    """A cluster of which every partition has its home in us."""

    def __init__(self, world: Publisher) -> None:
        self.world = world

    async def allocate_producer_id(self) -> int:
        return 1

    def publish(self, name: str, partition: int, publish: Any) -> Any:
        del name, partition
        return self.world.publish(publish.lane)


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)
