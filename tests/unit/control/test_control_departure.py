"""A region leaves only when the others have what it holds, or by force."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from georelay.errors import HomeUnreachable, PolicyViolation, UnknownTopic
from georelay.fields import JsonObject
from georelay.ids import BrokerId, Epoch, Offset, RegionNumber, StreamKey, region_of
from mesh.home.home_row import HomeRow, MoveKind, Moving
from region.control import drain_heard
from region.control.departure import Departure
from region.control.drain_heard import DrainHeard, answer_heard
from region.control.leader_duties import ControlDuties
from region.control.regions_part import RegionsPart, founded
from region.controller.mesh_rows import RegionRow, RegionState
from region.controller.topic import Homes, TopicDefinition
from region.coordination.coordinators import INTERNAL_TOPIC
from region.homes.home_requests import Answers, LogEnds, answer_json, read_question

US, EU, AP, QUORUM = (RegionNumber(number) for number in (1, 2, 3, 4))
EVERY, ONE, GROUPS = b"e" * 16, b"o" * 16, b"g" * 16


def topic(name: str, topic_id: bytes, homes: Homes) -> TopicDefinition:
    return TopicDefinition(
        name=name,
        topic_id=topic_id,
        partitions=2,
        replication_factor=1,
        homes=homes,
        home=RegionNumber(0 if homes is Homes.EVERY else 1),
        retention_ms=-1,
        retention_bytes=-1,
        config=(),
        index=1,
    )


@pytest.fixture(autouse=True)
def nobody_waits_for_news(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain_heard, "WAIT_S", 0.0)


class Mesh:
    """Regions us, eu (leaves), ap and a witness; `ends` says where each region's logs of eu's streams end."""

    def __init__(self) -> None:
        self.regions = RegionsPart()
        names = {US: "us", EU: "eu", AP: "ap", QUORUM: "quorum"}
        rows = [
            RegionRow(number=number, name=name, brokers=(BrokerId(number * 1000 + 1),), witness=number == QUORUM)
            for number, name in names.items()
        ]
        self.regions.restore(founded("mesh", rows))
        self.ends: dict[RegionNumber, dict[int, int]] = {region: {0: 10, 1: 0} for region in (US, EU, AP)}
        self.silent: set[RegionNumber] = set()
        self.asked: list[tuple[RegionNumber, StreamKey, int]] = []
        self.proposed: list[JsonObject] = []
        topics = [topic("orders", EVERY, Homes.EVERY), topic("one", ONE, Homes.ONE)]
        self.homes: dict[StreamKey, RegionNumber] = {}  # of streams that were moved
        self.is_moving = False
        self.one_ends: dict[RegionNumber, tuple[int, int]] = dict.fromkeys((US, EU, AP), (1, 10))  # epoch, committed
        self.open_at: set[RegionNumber] = set()  # where streams of eu have open transactions
        self.says_transactions = True
        self.deaf: set[RegionNumber] = set()  # whose brokers have not heard of anything
        self.heard_by: list[BrokerId] = []
        self.duties = ControlDuties(self)  # type: ignore[arg-type]
        self.topics = topics
        self.departure = Departure(
            topics=lambda: iter(topics),
            regions=self.regions,
            ask=self.ask,
            moved=self.moved,
            heard=DrainHeard(
                me=BrokerId(1001), rows=self.known, ask=self.ask_broker, envelope=lambda body: {"body": body}
            ),
        )
        self.duties.departure = self.departure

    def moved(self, key: StreamKey) -> HomeRow | None:
        """Return the row of a stream that was moved, in epoch 2."""
        home = self.homes.get(key)
        if home is None:
            return None
        first = HomeRow.first(
            key.topic_id, key.partition, home=home, regions=(US, EU, AP), digest=b"d" * 16, origin=key.origin
        )
        table = ((Epoch(1), Offset(0)), (Epoch(2), Offset(0)))
        homes = ((Epoch(1), EU), (Epoch(2), home))
        moving = Moving(move_id="m", kind=MoveKind.PLANNED, epoch=Epoch(3), target=AP) if self.is_moving else None
        last = Epoch(3 if self.is_moving else 2)
        return replace(first, epoch=Epoch(2), table=table, homes=homes, last_epoch=last, moving=moving, index=7)

    def known(self) -> dict[RegionNumber, RegionRow]:
        """Return what us knows of the regions."""
        return {row.number: row for row in self.regions.rows()}

    async def ask_broker(
        self, broker: BrokerId, method: str, body: Mapping[str, Any], *, timeout_s: float
    ) -> JsonObject:
        self.heard_by.append(broker)
        if region_of(broker) in self.silent:
            raise HomeUnreachable(f"broker {broker} cannot be reached")
        rows = {} if region_of(broker) in self.deaf else self.known()
        return {"ok": answer_heard(rows, body["body"])}

    async def ask(self, region: RegionNumber, method: str, body: JsonObject, *, timeout_s: float) -> Mapping[str, Any]:
        if region in self.silent:
            raise HomeUnreachable(f"no broker of region {region} can be reached")
        answers: Answers = {}
        for row in read_question(method, body).rows:
            self.asked.append((region, row.key, row.until))  # type: ignore[union-attr]
            end = self.ends[region].get(row.key.partition)
            epoch = 1 if self.moved(row.key) is None else 2
            if row.key.topic_id == ONE:
                epoch, end = self.one_ends[region]
            asks = row.with_transactions and self.says_transactions  # type: ignore[union-attr]
            ends = LogEnds(
                epoch=Epoch(epoch), next_offset=Offset(end or 0), high_watermark=Offset(end or 0), log_start=Offset(0),
                has_open_transactions=(region in self.open_at and row.key.topic_id == EVERY) if asks else None,
            )  # fmt: skip
            answers = {**answers, row.key: UnknownTopic("not here") if end is None else ends}
        return answer_json(answers)

    async def propose(self, part: str, command: JsonObject) -> JsonObject:
        self.proposed.append(command)
        return self.regions.apply(command, index=9, append_us=1)

    async def remove(self, **body: Any) -> JsonObject:
        return await self.duties.methods["region.remove"]({"number": 2, **body}, BrokerId(1001))


async def test_a_region_whose_streams_are_whole_elsewhere_leaves() -> None:
    mesh = Mesh()
    mesh.regions.apply({"do": "drain", "number": 2}, index=5, append_us=1)
    assert (await mesh.remove())["lost"] == []
    assert mesh.regions.row(EU).state is RegionState.REMOVED  # type: ignore[union-attr]


async def test_streams_of_every_home_are_asked_for_and_no_witness_is() -> None:
    mesh = Mesh()
    await mesh.departure.lacking(EU)
    every = {StreamKey(EVERY, origin, partition) for origin in (US, EU, AP) for partition in (0, 1)}
    assert {key for _, key, _ in mesh.asked} == {*every, *(StreamKey(ONE, RegionNumber(0), p) for p in (0, 1))}
    assert {region for region, _, _ in mesh.asked} == {US, EU, AP}
    own = {(key.partition, until) for region, key, until in mesh.asked if region != EU and key.origin == EU}
    assert own == {(0, 10)}


async def test_records_that_a_region_lacks_keep_it_and_are_named() -> None:
    mesh = Mesh()
    mesh.regions.apply({"do": "drain", "number": 2}, index=5, append_us=1)
    mesh.ends[AP][0] = 7
    del mesh.ends[US][0]
    with pytest.raises(PolicyViolation, match="orders partition 0: offsets 7 to 9 are not in region ap") as refused:
        await mesh.remove()
    assert "offsets 0 to 9 are not in region us" in str(refused.value)
    assert not mesh.proposed


@pytest.mark.parametrize(("silent", "says"), [(EU, "what only it holds"), (AP, "what it lacks")])
async def test_silence_of_the_region_or_of_another_keeps_it(silent: RegionNumber, says: str) -> None:
    mesh = Mesh()
    mesh.regions.apply({"do": "drain", "number": 2}, index=5, append_us=1)
    mesh.silent = {silent}
    with pytest.raises(PolicyViolation, match=says):
        await mesh.remove()


async def test_force_removes_it_and_says_what_was_lost() -> None:
    mesh = Mesh()
    mesh.regions.apply({"do": "drain", "number": 2}, index=5, append_us=1)
    mesh.ends[AP][0] = 7
    assert (await mesh.remove(force=True))["lost"] == ["orders partition 0: offsets 7 to 9 are not in region ap"]
    assert mesh.proposed == [{"do": "remove", "number": 2, "row_index": 5}]


async def test_a_region_that_was_not_drained_is_refused_before_anybody_is_asked() -> None:
    mesh = Mesh()
    with pytest.raises(PolicyViolation, match="drain eu' first"):
        await mesh.remove(force=True)
    assert not mesh.asked


@pytest.mark.parametrize("force", [False, True])
async def test_a_region_that_was_kept_and_drained_again_while_it_was_asked_about_stays(*, force: bool) -> None:
    mesh = Mesh()
    mesh.regions.apply({"do": "drain", "number": 2}, index=5, append_us=1)
    plain = mesh.propose

    async def propose(part: str, command: JsonObject) -> JsonObject:
        mesh.regions.apply({"do": "keep", "number": 2}, index=6, append_us=1)  # another leader was asked to
        mesh.regions.apply({"do": "drain", "number": 2}, index=7, append_us=1)
        return await plain(part, command)

    mesh.propose = propose  # type: ignore[method-assign]
    with pytest.raises(PolicyViolation, match="changed while the others were asked: ask again"):
        await mesh.remove(force=force)
    assert mesh.regions.row(EU).state is RegionState.DRAINING  # type: ignore[union-attr]


async def test_a_removal_that_says_nothing_of_the_row_is_applied_as_by_an_older_leader() -> None:
    mesh = Mesh()
    mesh.regions.apply({"do": "drain", "number": 2}, index=5, append_us=1)
    mesh.regions.apply({"do": "remove", "number": 2}, index=6, append_us=1)
    assert mesh.regions.row(EU).state is RegionState.REMOVED  # type: ignore[union-attr]


# --- transactions ---------------------------------------------------------------------------------------


async def test_open_transactions_of_its_own_streams_keep_a_region_until_they_end() -> None:
    mesh = Mesh()
    mesh.regions.apply({"do": "drain", "number": 2}, index=5, append_us=1)
    mesh.open_at = {EU}
    with pytest.raises(PolicyViolation, match="orders partition 0: transactions are open in region eu"):
        await mesh.remove()
    assert not mesh.proposed
    mesh.open_at = set()
    assert (await mesh.remove())["lost"] == []


async def test_open_transactions_of_streams_that_are_at_home_elsewhere_keep_no_region() -> None:
    mesh = Mesh()
    mesh.regions.apply({"do": "drain", "number": 2}, index=5, append_us=1)
    mesh.open_at = {US, AP}
    assert await mesh.departure.lacking(EU) == []


async def test_a_region_that_does_not_say_whether_transactions_are_open_stays() -> None:
    mesh = Mesh()
    mesh.says_transactions = False
    assert any("does not say whether transactions are open" in line for line in await mesh.departure.lacking(EU))


# --- coordinators -------------------------------------------------------------------------------------


async def test_groups_that_are_at_home_there_keep_a_region_however_many_copies_there_are() -> None:
    mesh = Mesh()
    mesh.topics.append(topic(INTERNAL_TOPIC, GROUPS, Homes.EVERY))
    mesh.regions.apply({"do": "drain", "number": 2}, index=5, append_us=1)
    with pytest.raises(PolicyViolation, match="home move --groups-of eu") as refused:
        await mesh.remove()
    assert f"{INTERNAL_TOPIC} partition 0" in str(refused.value)
    assert f"{INTERNAL_TOPIC} partition 1" not in str(refused.value)  # never kept anything
    assert not mesh.proposed


async def test_groups_that_were_moved_away_keep_nobody() -> None:
    mesh = Mesh()
    mesh.topics.append(topic(INTERNAL_TOPIC, GROUPS, Homes.EVERY))
    mesh.homes = {StreamKey(GROUPS, EU, partition): US for partition in (0, 1)}
    mesh.regions.apply({"do": "drain", "number": 2}, index=5, append_us=1)
    assert (await mesh.remove())["lost"] == []


async def test_groups_that_came_home_again_count_as_if_they_never_left() -> None:
    mesh = Mesh()
    mesh.topics.append(topic(INTERNAL_TOPIC, GROUPS, Homes.EVERY))
    mesh.homes = {StreamKey(GROUPS, EU, 0): EU}
    assert any("--groups-of eu" in line for line in await mesh.departure.lacking(EU))


# --- who has heard of it ------------------------------------------------------------------------------


async def test_a_region_whose_broker_has_not_heard_that_it_leaves_stays() -> None:
    mesh = Mesh()
    mesh.regions.apply({"do": "drain", "number": 2}, index=5, append_us=1)
    mesh.deaf = {EU}
    with pytest.raises(PolicyViolation, match="broker 2001 may not know that region eu leaves"):
        await mesh.remove()
    assert not mesh.proposed
    mesh.deaf = set()
    assert (await mesh.remove())["lost"] == []


async def test_a_home_elsewhere_that_has_not_heard_of_it_keeps_the_region_too() -> None:
    mesh = Mesh()
    mesh.regions.apply({"do": "drain", "number": 2}, index=5, append_us=1)
    mesh.deaf = {AP}
    with pytest.raises(PolicyViolation, match="broker 3001 may not know that region eu leaves"):
        await mesh.remove()
    assert 4001 not in mesh.heard_by  # a witness stores nothing and counts nobody


async def test_news_of_an_earlier_drain_is_none_of_this_one() -> None:
    mesh = Mesh()
    mesh.regions.apply({"do": "drain", "number": 2}, index=5, append_us=1)
    earlier = mesh.known()
    mesh.regions.apply({"do": "keep", "number": 2}, index=6, append_us=1)
    mesh.regions.apply({"do": "drain", "number": 2}, index=7, append_us=1)
    mesh.known = lambda: earlier  # type: ignore[method-assign]
    assert any("2001 may not know" in line for line in await mesh.departure.lacking(EU))


async def test_a_region_that_never_said_which_brokers_it_has_is_not_known_to_have_heard() -> None:
    mesh = Mesh()
    mesh.regions.apply({"do": "add", "number": 5, "name": "sa", "seeds": [], "witness": False}, index=4, append_us=1)
    mesh.ends[RegionNumber(5)] = {0: 10, 1: 0}
    mesh.one_ends[RegionNumber(5)] = (1, 10)
    mesh.regions.apply({"do": "drain", "number": 2}, index=5, append_us=1)
    assert await mesh.departure.lacking(EU) == ["region sa has not said which brokers it has"]


async def test_a_dead_region_leaves_by_force_and_its_brokers_are_named() -> None:
    mesh = Mesh()
    mesh.regions.apply({"do": "drain", "number": 2}, index=5, append_us=1)
    mesh.silent = {EU}
    lost = (await mesh.remove(force=True))["lost"]
    assert isinstance(lost, list)
    assert any("broker 2001 may not know" in line for line in lost)


async def test_regions_change_one_after_the_other() -> None:
    mesh = Mesh()
    mesh.regions.apply({"do": "drain", "number": 2}, index=5, append_us=1)
    removing = asyncio.ensure_future(mesh.remove())
    await asyncio.sleep(0)
    with pytest.raises(PolicyViolation, match="left the mesh"):
        await mesh.duties.methods["region.keep"]({"number": 2}, BrokerId(1001))
    assert (await removing)["lost"] == []


# --- streams of homes that stay -----------------------------------------------------------------------


async def test_records_of_a_home_that_stays_have_to_be_in_every_region_that_stays() -> None:
    mesh = Mesh()
    mesh.regions.apply({"do": "drain", "number": 2}, index=5, append_us=1)
    mesh.one_ends[AP] = (1, 8)
    with pytest.raises(PolicyViolation, match="one partition 0: offsets 8 to 9 are not in region ap"):
        await mesh.remove()


async def test_what_the_leaving_region_has_beyond_the_answer_of_the_home_counts() -> None:
    mesh = Mesh()
    mesh.regions.apply({"do": "drain", "number": 2}, index=5, append_us=1)
    mesh.one_ends[EU] = (1, 12)  # who answered for us was just deposed
    lines = await mesh.departure.lacking(EU)
    assert "one partition 0: offsets 10 to 11 are not in region us" in lines


async def test_a_branch_of_an_older_epoch_is_no_copy() -> None:
    mesh = Mesh()
    mesh.homes = {StreamKey(ONE, RegionNumber(0), 0): US}
    mesh.regions.apply({"do": "drain", "number": 2}, index=5, append_us=1)
    mesh.one_ends = {US: (2, 10), EU: (1, 99), AP: (1, 12)}
    lines = await mesh.departure.lacking(EU)
    assert lines[0] == "one partition 0: region ap is in epoch 1 of it, its home in epoch 2"


@pytest.mark.parametrize(
    ("is_moving", "epoch", "says"), [(True, 2, "its home is moving"), (False, 1, "it has not begun its epoch")]
)
async def test_a_home_that_is_on_its_way_keeps_the_region(is_moving: bool, epoch: int, says: str) -> None:
    mesh = Mesh()
    mesh.homes = {StreamKey(ONE, RegionNumber(0), 0): US}
    mesh.is_moving = is_moving
    mesh.one_ends[US] = (epoch, 10)
    mesh.regions.apply({"do": "drain", "number": 2}, index=5, append_us=1)
    assert any(says in line for line in await mesh.departure.lacking(EU))
