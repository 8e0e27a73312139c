"""What a gateway measured of its clients reaches the gateways of other regions, through the brokers of both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.routing.broker_health import Probe
from gateway.routing.client_book_core import ClientBook, ClientKey
from gateway.routing.distance_core import Leg, Source
from gateway.routing.distance_sharer import DistanceSharer
from gateway.routing.endpoints import BrokerEndpoints, RegionEndpoints
from gateway.routing.far_book_core import FarBook, own_rows
from gateway.routing.region_view_core import RegionView
from gateway.routing.router import Router
from georelay.errors import BadRequest, Unavailable
from georelay.ids import RegionNumber, broker_id
from mesh.distance.kernel_sample import KernelSample
from mesh.distance.prefix_core import Prefix, prefix_of
from mesh.distance.prefix_table_core import HEAD, ROWS_MAX, PrefixDistance, PrefixTable, PrefixTableFault, merge
from mesh.gossip.distance_pages_core import FAR_QUERY, OWN_QUERY, PagesRead
from mesh.gossip.query_core import is_meant
from mesh.gossip.view import MemberStatus, MemberView
from region.broker.distance_relay import KEEP_S, WANTED_S, DistanceRelay

NUMBERS = {"us": RegionNumber(1), "eu": RegionNumber(2)}


def test_the_bytes_of_a_prefix_table_are_those_of_its_description() -> None:
    rows = [
        PrefixDistance(Prefix(bytes.fromhex("20010db80001")), 150.26, 6, 59),
        PrefixDistance(Prefix(bytes([10, 1, 2])), 35.0, 2),
        PrefixDistance(Prefix(bytes([10, 1, 2])), 99.0, 1),
        PrefixDistance(Prefix(bytes([10, 1, 3])), 35.0, 2, 60),
    ]
    assert PrefixTable.of(rows).raw.hex() == "707401" + "040a0102000000015e0200" + "0620010db8000105df063b"


def test_a_prefix_table_has_the_prefixes_heard_of_last_and_a_merged_one_the_youngest() -> None:
    rows = [PrefixDistance(Prefix(b"\x0a" + n.to_bytes(2, "big")), 10, 1, n % 60) for n in range(ROWS_MAX + 100)]
    table = PrefixTable.of(rows)
    assert len(table) == ROWS_MAX and table.find(rows[-1].prefix) is None
    whole = merge([table, PrefixTable.of(rows[ROWS_MAX:])])
    assert len(whole) == ROWS_MAX and max(row.age_min for row in whole) == 57
    with pytest.raises(PrefixTableFault, match="rows"):
        PrefixTable.read(HEAD + bytes(11 * (ROWS_MAX + 1)))


def test_pages_that_do_not_fit_each_other_are_refused() -> None:
    page = PrefixTable.of(PrefixDistance(Prefix(bytes([10, 0, n])), 10, 1) for n in range(78)).page(b"", 78)
    for pages in ([page, page], [b"x"], [page + page]):
        reading = PagesRead()
        *good, bad = pages
        for each in good:
            reading.take(each)
        with pytest.raises(PrefixTableFault):
            reading.take(bad)


class Pool:
    """One region's pool: names, tags, and who answers which query."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, str]] = {}
        self.answers: dict[tuple[str, str], Callable[[bytes], bytes | None]] = {}
        self.asked = 0

    def members(self) -> list[MemberView]:
        return [
            MemberView(name=name, address=("h", 1), status=MemberStatus.ALIVE, tags=tags)
            for name, tags in self.rows.items()
        ]

    async def query(
        self, name: str, payload: bytes = b"", *, filters: Sequence[bytes] = (), timeout_s: float = 0.0
    ) -> Any:
        self.asked += 1
        meant = [each for each in self.rows if is_meant(filters, name=each, tags={}, match=lambda *_: False)]
        found = {each: self.answers[each, name](payload) for each in meant if (each, name) in self.answers}
        return SimpleNamespace(answers={each: raw for each, raw in found.items() if raw is not None})


class Region:
    """A region with a broker and a gateway that is in it."""

    def __init__(self, mesh: Mesh, name: str) -> None:
        self.pool, self.book, self.far = Pool(), ClientBook(), FarBook()
        self.router = Router(mesh.view(name), monotonic_ns=lambda: int(mesh.now_s * 1e9))
        self.sharer = DistanceSharer(self.router, self.book, self.far, pool=self.pool, region=name, mesh="m")
        topology: Any = SimpleNamespace(
            data_regions=[SimpleNamespace(name=each, number=number) for each, number in NUMBERS.items()]
        )
        self.relay = DistanceRelay(
            own=name,
            mesh="m",
            pool=self.pool,
            topology=lambda: topology,
            request=mesh.request,
            monotonic_s=lambda: mesh.now_s,
        )
        number = str(NUMBERS[name] * 1000 + 1)
        address = dict.fromkeys(("kafka", "grpc", "admin"), "h:1")
        self.pool.rows[number] = {"cl": "m", "rg": name, "role": "broker", "id": number, **address}
        self.pool.rows["gateway-1"] = {"cl": "m", "rg": name, "role": "gateway"}
        self.pool.answers = {(number, FAR_QUERY): self.relay.answer, ("gateway-1", OWN_QUERY): self.sharer.answer}


class Mesh:
    """Two regions, 80 ms apart."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.is_cut = False
        self.requests = 0
        self.views: dict[str, RegionView] = {}
        self.regions = {name: Region(self, name) for name in NUMBERS}

    def view(self, near: str) -> RegionView:
        brokers = {name: broker_id(number, 1) for name, number in NUMBERS.items()}
        view = RegionView(
            [
                RegionEndpoints(
                    name=name, number=number, brokers=(BrokerEndpoints(id=brokers[name], kafka="", grpc="", admin=""),)
                )
                for name, number in NUMBERS.items()
            ]
        )
        self.views[near] = view
        self.probe()
        return view

    def probe(self) -> None:
        for near, view in self.views.items():
            for name, number in NUMBERS.items():
                rtt_ns = 200_000 if name == near else 80_000_000
                for _ in range(6):
                    view.on_probe(
                        broker_id(number, 1), Probe.OK, now_ns=int(self.now_s * 1e9), rtt_ns=rtt_ns, warm=True
                    )

    async def request(self, region: RegionNumber, method: str, body: dict[str, Any], *, timeout_s: float) -> Any:
        self.requests += 1
        if self.is_cut:
            raise Unavailable("cut")
        name = next(name for name, number in NUMBERS.items() if number == region)
        return SimpleNamespace(body=self.regions[name].relay.serve(body))

    async def turn(self, *, later_s: float = KEEP_S) -> None:
        """Let everybody look once, as they do every minute."""
        self.probe()
        for region in self.regions.values():
            await region.sharer.look()
        for region in self.regions.values():
            await region.relay.look()
        self.now_s += later_s


def saw(region: Region, address: str, rtt_ms: float, now_s: float = 0.0) -> None:
    sample = KernelSample(srtt_ms=rtt_ms, min_rtt_ms=rtt_ms, last_ack_s=0)
    region.book.saw(ClientKey("c", address), sample, now_s)


async def test_a_client_of_us_is_as_far_from_eu_as_the_neighbours_that_eu_has_measured() -> None:
    mesh = Mesh()
    us, eu = mesh.regions["us"], mesh.regions["eu"]
    for number in range(100):  # two pages
        for host in range(3):
            saw(eu, f"10.0.{number}.{host}", 20.0 + number)
    saw(us, "10.0.7.9", 70.0)
    for _ in range(4):
        await mesh.turn()
    mesh.probe()
    far = us.far.of("10.0.7.9", mesh.now_s)
    assert [(name, row.rtt_ms, row.addresses) for name, row in far.items()] == [("eu", 27.0, 3)]
    assert 0 < far["eu"].age_min <= 4
    found = us.book.estimates(ClientKey("c", "10.0.7.9"), us.router.legs(), far, mesh.now_s - 200)
    assert (found["eu"].source, found["eu"].rtt_ms) == (Source.PREFIX, 27.0)
    assert found["us"].source is Source.KERNEL  # whatever others say of the way to here
    assert us.far.of("10.9.9.9", mesh.now_s) == us.far.of("unix", mesh.now_s) == {}


async def test_what_is_not_renewed_grows_old_and_is_gone_after_an_hour() -> None:
    mesh = Mesh()
    us, eu = mesh.regions["us"], mesh.regions["eu"]
    saw(eu, "10.0.7.1", 20)
    for _ in range(4):
        await mesh.turn()
    mesh.is_cut = True
    assert us.far.of("10.0.7.9", mesh.now_s)
    for _ in range(10):
        await mesh.turn(later_s=299)
    assert us.far.of("10.0.7.9", mesh.now_s)["eu"].age_min > 45
    for _ in range(5):
        await mesh.turn(later_s=299)
    assert us.far.of("10.0.7.9", mesh.now_s) == {}


async def test_nobody_is_asked_for_what_nobody_wants() -> None:
    mesh = Mesh()
    us, eu = mesh.regions["us"], mesh.regions["eu"]
    await us.relay.look()
    assert (mesh.requests, us.pool.asked, eu.pool.asked) == (0, 0, 0)
    await us.sharer.look()
    for _ in range(3):  # within KEEP_S: once
        await us.relay.look()
    assert mesh.requests == 1
    mesh.now_s += WANTED_S + 1
    await us.relay.look()
    await eu.relay.look()
    assert mesh.requests == 1 and eu.pool.asked == 0


async def test_a_gateway_that_is_not_in_its_region_tells_nothing() -> None:
    book = ClientBook()
    book.saw(ClientKey("c", "10.0.7.1"), KernelSample(srtt_ms=20, min_rtt_ms=20, last_ack_s=0), 0)
    near = list(own_rows(book, Leg(rtt_ms=1.9), 60.0))
    assert near == [PrefixDistance(prefix_of("10.0.7.1"), 20.0, 1, 1)]  # type: ignore[arg-type]
    for leg in (None, Leg(rtt_ms=2.1), Leg(rtt_ms=1, is_measured=False)):
        assert list(own_rows(book, leg, 0.0)) == []


async def test_what_is_no_table_is_refused_in_one_line_and_changes_nothing() -> None:
    mesh = Mesh()
    us = mesh.regions["us"]
    us.far.took("eu", PrefixTable.of([PrefixDistance(Prefix(b"\x0a\0\7"), 20, 3)]), 0.0)
    us.pool.answers["1001", FAR_QUERY] = lambda _: b"something else"
    us.pool.answers["gateway-1", OWN_QUERY] = lambda _: b"something else"
    await us.sharer.look()
    us.relay.serve({})
    await us.relay.look()
    assert us.far.of("10.0.7.1", 0.0)["eu"].rtt_ms == 20
    with pytest.raises(BadRequest):
        us.relay.serve({"x": 1})
