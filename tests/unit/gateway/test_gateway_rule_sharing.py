"""What operators decide at one gateway holds at every gateway of the mesh, through the brokers of all regions."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.routing.client_book_core import ClientKey
from gateway.routing.region_view_core import RegionView
from gateway.routing.router import Router
from gateway.routing.rule_sharer import RuleSharer
from gateway.routing.rules_core import Kind
from georelay.errors import BadRequest, Unavailable
from georelay.fields import FieldError
from georelay.ids import RegionNumber
from mesh.distance.rule_set_core import BY_CHARS_MAX, RULES_MAX, Rule, RuleSet
from mesh.gossip.directory_core import PAGE_BYTES_MAX
from mesh.gossip.query_core import is_meant
from mesh.gossip.rule_pages_core import RULES_QUERY, answer, question, read_page
from mesh.gossip.view import MemberStatus, MemberView
from region.broker.rule_relay import RULES_FILE, WANTED_S, RuleRelay, _read

NUMBERS = {"us": RegionNumber(1), "eu": RegionNumber(2)}


class Pool:
    """One region's pool: names, tags, and who answers."""

    def __init__(self) -> None:
        self.tags: dict[str, dict[str, str]] = {}
        self.answers: dict[str, Callable[[bytes], bytes | None]] = {}
        self.asked = 0

    def members(self) -> list[MemberView]:
        return [
            MemberView(name=name, address=("h", 1), status=MemberStatus.ALIVE, tags=tags)
            for name, tags in self.tags.items()
        ]

    async def query(
        self, name: str, payload: bytes = b"", *, filters: Sequence[bytes] = (), timeout_s: float = 0.0
    ) -> Any:
        assert name == RULES_QUERY
        self.asked += 1
        meant = [each for each in self.answers if is_meant(filters, name=each, tags={}, match=lambda *_: False)]
        found = {each: self.answers[each](payload) for each in meant}
        return SimpleNamespace(answers={each: raw for each, raw in found.items() if raw is not None})


class Gateway:
    def __init__(self, mesh: Mesh, pool: Pool) -> None:
        self._mesh = mesh
        self.router = Router(RegionView([]), monotonic_ns=lambda: int(mesh.now_s * 1e9))
        self.rules = self.router.rules
        self.sharer = RuleSharer(self.router, pool=pool, mesh="m", wall_us=lambda: int(mesh.now_s * 1e6))

    def decides(self, kind: Kind, subject: str, value: str, by: str = "User:ann") -> None:
        now_s = self._mesh.now_s
        self.rules.make(kind, subject, value, now_us=int(now_s * 1e6), now_s=now_s, by=by)

    def told(self) -> list[tuple[str, str, str]]:
        return [(rule.kind, rule.subject, rule.value) for rule in self.rules.in_force()]


class Mesh:
    """Two regions of one broker and two gateways each."""

    def __init__(self, disks: Path) -> None:
        self.disks = disks
        self.now_s = 100.0
        self.is_cut = False
        self.requests = 0
        for name in NUMBERS:
            (disks / name).mkdir(exist_ok=True)
        self.pools = {name: Pool() for name in NUMBERS}
        self.relays = {name: self._relay(name) for name in NUMBERS}
        self.gateways: dict[tuple[str, int], Gateway] = {}
        for name in NUMBERS:
            for number in (1, 2):
                self.starts(name, number)

    def _relay(self, region: str) -> RuleRelay:
        rows = [SimpleNamespace(name=name, number=number) for name, number in NUMBERS.items()]
        topology: Any = SimpleNamespace(data_regions=rows)
        pool = self.pools[region]
        relay = RuleRelay(
            own=region,
            mesh="m",
            pool=pool,
            topology=lambda: topology,
            request=self.request,
            directory=self.disks / region,
            monotonic_s=lambda: self.now_s,
        )
        broker = str(NUMBERS[region] * 1000 + 1)
        address = dict.fromkeys(("kafka", "grpc", "admin"), "h:1")
        pool.tags[broker] = {"cl": "m", "rg": region, "role": "broker", "id": broker, **address}
        pool.answers[broker] = relay.answer
        return relay

    def starts(self, region: str, number: int) -> Gateway:
        gateway = self.gateways[region, number] = Gateway(self, self.pools[region])
        self.pools[region].tags[f"gateway-{number}"] = {"cl": "m", "rg": region, "role": "gateway"}
        self.pools[region].answers[f"gateway-{number}"] = gateway.sharer.answer
        return gateway

    async def request(self, region: RegionNumber, method: str, body: dict[str, Any], *, timeout_s: float) -> Any:
        self.requests += 1
        if self.is_cut:
            raise Unavailable("cut")
        return SimpleNamespace(body=self.relays[next(n for n, r in NUMBERS.items() if r == region)].serve(body))

    async def turn(self) -> None:
        """Let everybody look once, as they do every five seconds."""
        for gateway in self.gateways.values():
            await gateway.sharer.look()
        for relay in self.relays.values():
            await relay.look()
        self.now_s += 5

    async def turns(self, count: int = 3) -> None:
        for _ in range(count):
            await self.turn()


async def test_what_is_decided_at_one_gateway_holds_at_all_of_them_and_so_does_taking_it_back(tmp_path: Path) -> None:
    mesh = Mesh(tmp_path)
    mesh.gateways["us", 1].decides(Kind.DRAIN, "us", "clients")
    mesh.gateways["eu", 2].decides(Kind.PIN, "billing-7", "eu")
    await mesh.turns(4)
    both = [("drain", "us", "clients"), ("pin", "billing-7", "eu")]
    assert [gateway.told() for gateway in mesh.gateways.values()] == [both] * 4
    assert mesh.gateways["eu", 1].router.rules.draining_since_s("us") is not None
    mesh.gateways["eu", 1].decides(Kind.DRAIN, "us", "")
    await mesh.turns(4)
    assert [gateway.told() for gateway in mesh.gateways.values()] == [both[1:]] * 4
    assert mesh.gateways["us", 1].router.rules.draining_since_s("us") is None


async def test_a_gateway_that_starts_again_learns_what_was_decided_and_who_decided_it(tmp_path: Path) -> None:
    mesh = Mesh(tmp_path)
    mesh.gateways["us", 1].decides(Kind.FREEZE, "switching", "frozen")
    await mesh.turns()
    del mesh.pools["us"].tags["gateway-2"], mesh.pools["us"].answers["gateway-2"]
    again = mesh.starts("us", 1)
    assert not again.rules.is_frozen
    await again.sharer.look()
    assert again.rules.is_frozen and again.rules.in_force()[0].by == "User:ann"


async def test_decisions_outlive_the_end_of_all_brokers_and_gateways_and_so_does_taking_one_back(
    tmp_path: Path,
) -> None:
    mesh = Mesh(tmp_path)
    mesh.gateways["us", 1].decides(Kind.DRAIN, "us", "clients")
    mesh.gateways["us", 1].decides(Kind.PIN, "billing-7", "eu")
    await mesh.turns(4)
    mesh.gateways["eu", 1].decides(Kind.DRAIN, "us", "")
    await mesh.turns(4)
    again = Mesh(tmp_path)
    await again.gateways["eu", 2].sharer.look()
    await again.gateways["us", 2].sharer.look()
    assert [again.gateways[region, 2].told() for region in NUMBERS] == [[("pin", "billing-7", "eu")]] * 2
    again.gateways["us", 2].rules.merge([Rule("drain", "us", "clients", int(100e6))], now_us=int(200e6), now_s=200.0)
    assert again.gateways["us", 2].rules.draining_since_s("us") is None, "what was taken back came back"


async def test_of_a_file_that_is_damaged_nothing_is_taken_and_what_others_tell_is_kept_again(tmp_path: Path) -> None:
    mesh = Mesh(tmp_path)
    mesh.gateways["us", 1].decides(Kind.FREEZE, "switching", "frozen")
    await mesh.turns()
    for raw in (b"", b"\xff", b'{"v":2,"rules":[]}', b'{"v":1,"rules":[{"k":"pin"}]}'):
        (tmp_path / "us" / RULES_FILE).write_bytes(raw)
        again = Mesh(tmp_path)
        assert again.relays["us"].serve({"known": ""}) == {"rules": []}
        await again.turns()
        assert again.gateways["us", 2].rules.is_frozen, "eu has told it"
        assert Mesh(tmp_path).relays["us"].serve({"known": ""})["rules"], "it is not kept again"


async def test_a_disk_that_takes_nothing_is_tried_again(tmp_path: Path) -> None:
    mesh = Mesh(tmp_path)
    (tmp_path / "us").rmdir()
    mesh.gateways["us", 1].decides(Kind.FREEZE, "switching", "frozen")
    await mesh.turns()
    assert mesh.gateways["us", 2].rules.is_frozen
    (tmp_path / "us").mkdir()
    await mesh.turn()
    assert (tmp_path / "us" / RULES_FILE).exists()


async def test_regions_that_were_cut_decide_on_their_own_and_agree_afterwards(tmp_path: Path) -> None:
    mesh = Mesh(tmp_path)
    await mesh.turns()
    mesh.is_cut = True
    mesh.gateways["us", 1].decides(Kind.PIN, "a", "us")
    await mesh.turns()
    mesh.gateways["eu", 1].decides(Kind.PIN, "a", "eu")
    await mesh.turns()
    pins = {place: gateway.rules.pin(ClientKey("a", "10.0.0.1")) for place, gateway in mesh.gateways.items()}
    assert pins == {("us", 1): "us", ("us", 2): "us", ("eu", 1): "eu", ("eu", 2): "eu"}
    mesh.is_cut = False
    await mesh.turns(4)
    assert {gateway.rules.pin(ClientKey("a", "10.0.0.1")) for gateway in mesh.gateways.values()} == {"eu"}


async def test_brokers_that_no_gateway_asks_ask_nobody(tmp_path: Path) -> None:
    mesh = Mesh(tmp_path)
    mesh.now_s += WANTED_S + 1
    for relay in mesh.relays.values():
        await relay.look()
    assert mesh.requests == sum(pool.asked for pool in mesh.pools.values()) == 0


async def test_what_is_no_rule_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    mesh = Mesh(tmp_path)
    gateway = mesh.gateways["us", 1]
    for raw in (b"{}", b'{"next":"","rules":[{"k":"pin"}]}', b'{"next":"a","rules":[]}', b"\xff"):
        mesh.pools["us"].answers["1001"] = mesh.pools["us"].answers["gateway-2"] = lambda _, raw=raw: raw  # type: ignore[misc]
        await gateway.sharer.look()
        mesh.relays["us"].serve({"known": ""})
        await mesh.relays["us"].look()
        with pytest.raises(FieldError):
            read_page(raw)
    assert gateway.told() == [] and mesh.relays["us"].serve({"known": ""}) == {"rules": []}
    with pytest.raises(BadRequest):
        mesh.relays["us"].serve({})
    assert answer(b"", RuleSet()) is answer(b"no question", RuleSet()) is None


def test_a_full_set_of_the_longest_rules_comes_over_in_pages_and_an_equal_one_is_not_sent() -> None:
    rng = random.Random(1)
    longest = [
        Rule("abcdefghijklmnop", "\\" * 124 + f"{number:04}", '"' * 40, (1 << 53) - 1, "\U0001f600" * BY_CHARS_MAX)
        for number in range(RULES_MAX)
    ]
    rng.shuffle(longest)
    held, found, after = RuleSet(longest), list[Rule](), "none"
    while after:
        raw = answer(question(RuleSet(), "" if after == "none" else after), held)
        assert raw is not None and len(raw) <= PAGE_BYTES_MAX
        rules, after = read_page(raw)
        assert rules, "a rule does not fit into a page"
        found += rules
    known, _ = RuleSet().merged(found, now_us=1 << 53)
    assert known.rules == held.rules
    assert read_page(answer(question(known), held) or b"") == ([], "")


@pytest.mark.parametrize("raw", [b"[" * 200_000, b'{"v":1,"v":1,"rules":[]}', b'{"v":1,"rules":[{"by":"\\ud800"}]}'])
def test_a_file_of_decisions_that_is_damaged_keeps_no_broker_from_starting(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / RULES_FILE).write_bytes(raw)
    assert _read(tmp_path / RULES_FILE).rules == ()
