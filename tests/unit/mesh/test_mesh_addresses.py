"""Where a broker may be reached: every word is a hint, and what answers is kept."""

from __future__ import annotations

from georelay.clock import SystemClock
from georelay.ids import BrokerId, RegionNumber
from mesh.listening.addresses_core import Addresses, Source
from mesh.replication import frames as f
from mesh.replication.link import Link, LinkReceiver
from mesh.replication.outgoing_links import OutgoingLinks
from mesh.replication.settings import BrokerAddress, LinkSettings, MeshIdentity


def all_in_turn(addresses: Addresses[str], count: int) -> list[str]:
    dialled = []
    for _ in range(count):
        dialled.append(addresses.current)
        addresses.failed(addresses.current)
    return dialled


def test_each_address_is_dialled_in_turn_the_newest_word_first() -> None:
    addresses = Addresses("file", Source.CONFIGURATION)
    addresses.tell("log", Source.REGION)
    addresses.tell("gossip", Source.GOSSIP)
    assert all_in_turn(addresses, 6) == ["file", "gossip", "log"] * 2


def test_a_newer_word_changes_nothing_before_what_is_dialled_fails() -> None:
    addresses = Addresses("file", Source.CONFIGURATION)
    for word in ("a", "b", "c"):
        addresses.tell(word, Source.GOSSIP)
    assert addresses.current == "file"
    addresses.failed("file")
    assert addresses.current == "c"


def test_a_source_that_says_something_else_takes_back_what_it_said() -> None:
    addresses = Addresses("old", Source.CONFIGURATION)
    addresses.tell("new", Source.CONFIGURATION)
    assert not addresses.is_only
    assert all_in_turn(addresses, 3) == ["old", "new", "new"]
    assert addresses.is_only


def test_two_sources_of_one_address_are_one_address() -> None:
    addresses = Addresses("a", Source.CONFIGURATION)
    addresses.tell("a", Source.REGION)
    assert addresses.is_only
    addresses.tell("b", Source.GOSSIP)
    assert all_in_turn(addresses, 4) == ["a", "b", "a", "b"]


def test_dials_that_fail_together_skip_no_address() -> None:
    addresses = Addresses("a", Source.CONFIGURATION)
    addresses.tell("b", Source.REGION)
    for _ in ("control", "append", "bulk"):
        addresses.failed("a")
    assert addresses.current == "b"


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

    def answers_as(self, broker: int) -> None:
        assert self.receiver is not None
        region = RegionNumber(broker // 1000)
        self.receiver.frame_received(f.encode_frame(f.Open(2, "mesh", f"r{region}", region, BrokerId(broker))))


class Dialled:
    """The links of broker 2001 to region 1, and what they dialled."""

    def __init__(self) -> None:
        self.carriers: list[Carrier] = []
        self.links = OutgoingLinks(
            {RegionNumber(1): [BrokerAddress(broker_id=BrokerId(1001), address="file")]},
            identity=MeshIdentity(mesh_id="mesh", region="r2", region_number=RegionNumber(2), broker_id=BrokerId(2001)),
            clock=SystemClock(),
            settings=LinkSettings(),
            dial=self._dial,
        )
        self.links.of_region(RegionNumber(1))[0].want()

    def _dial(self, target: BrokerAddress) -> Link:
        self.carriers.append(Carrier(target.address))
        return self.carriers[-1]

    def tell(self, address: str, source: Source) -> None:
        self.links.know(RegionNumber(1), [BrokerAddress(broker_id=BrokerId(1001), address=address)], source)

    @property
    def dialled(self) -> list[str]:
        return [carrier.peer for carrier in self.carriers]


async def test_a_link_goes_through_the_addresses_until_the_broker_answers_that_is_looked_for() -> None:
    world = Dialled()
    world.tell("log", Source.REGION)
    world.tell("gossip", Source.GOSSIP)
    world.carriers[-1].close("refused")
    world.links.tick()
    world.carriers[-1].answers_as(1002)  # another broker has that address now
    world.links.tick()
    world.carriers[-1].answers_as(1001)
    assert world.dialled == ["file", "gossip", "log"]
    assert world.links.addresses() == {1001: "log"}


async def test_an_open_link_is_kept_whatever_is_said_and_dialled_again_where_it_was_lost() -> None:
    world = Dialled()
    world.carriers[-1].answers_as(1001)
    world.tell("log", Source.REGION)
    link = world.links.to_broker(1001)
    assert link is not None
    assert (link.is_open, world.dialled) == (True, ["file"])
    world.carriers[-1].close("reset")
    for _ in range(2):
        world.links.tick()
        world.carriers[-1].close("refused")
    assert world.dialled == ["file", "file", "log"]
