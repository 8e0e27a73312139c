"""A region leaves only when the others have what it holds, or by force."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from georelay.errors import HomeUnreachable, PolicyViolation, UnknownTopic
from georelay.fields import JsonObject
from georelay.ids import BrokerId, Epoch, Offset, RegionNumber, StreamKey
from region.control.departure import Departure
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


class Mesh:
    """Regions us, eu (leaves), ap and a witness; `ends` says where each region's logs of eu's streams end."""

    def __init__(self) -> None:
        self.regions = RegionsPart()
        names = {US: "us", EU: "eu", AP: "ap", QUORUM: "quorum"}
        rows = [RegionRow(number=number, name=name, witness=number == QUORUM) for number, name in names.items()]
        self.regions.restore(founded("mesh", rows))
        self.ends: dict[RegionNumber, dict[int, int]] = {region: {0: 10, 1: 0} for region in (US, EU, AP)}
        self.silent: set[RegionNumber] = set()
        self.asked: list[tuple[RegionNumber, StreamKey, int]] = []
        self.proposed: list[JsonObject] = []
        topics = [topic("orders", EVERY, Homes.EVERY), topic("one", ONE, Homes.ONE)]
        self.homes: dict[StreamKey, RegionNumber] = {}  # of streams that were moved
        self.duties = ControlDuties(self)  # type: ignore[arg-type]
        self.topics = topics
        self.departure = Departure(
            topics=lambda: iter(topics),
            regions=self.regions,
            ask=self.ask,
            home_of=lambda key: self.homes.get(key, RegionNumber(0)),
        )
        self.duties.departure = self.departure

    async def ask(self, region: RegionNumber, method: str, body: JsonObject, *, timeout_s: float) -> Mapping[str, Any]:
        if region in self.silent:
            raise HomeUnreachable(f"no broker of region {region} can be reached")
        answers: Answers = {}
        for row in read_question(method, body).rows:
            self.asked.append((region, row.key, row.until))  # type: ignore[union-attr]
            end = self.ends[region].get(row.key.partition)
            ends = LogEnds(
                epoch=Epoch(1), next_offset=Offset(end or 0), high_watermark=Offset(end or 0), log_start=Offset(0)
            )
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


async def test_only_its_own_streams_of_topics_with_many_homes_are_asked_for_and_no_witness_is() -> None:
    mesh = Mesh()
    await mesh.departure.lacking(EU)
    assert {key for _, key, _ in mesh.asked} == {StreamKey(EVERY, EU, 0), StreamKey(EVERY, EU, 1)}
    assert {region for region, _, _ in mesh.asked} == {US, EU, AP}
    assert {(key.partition, until) for region, key, until in mesh.asked if region != EU} == {(0, 10)}


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
    assert mesh.proposed == [{"do": "remove", "number": 2}]


async def test_a_region_that_was_not_drained_is_refused_before_anybody_is_asked() -> None:
    mesh = Mesh()
    with pytest.raises(PolicyViolation, match="drain eu' first"):
        await mesh.remove(force=True)
    assert not mesh.asked


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


async def test_groups_that_were_moved_away_keep_nobody_and_their_streams_are_not_asked_for() -> None:
    mesh = Mesh()
    mesh.topics.append(topic(INTERNAL_TOPIC, GROUPS, Homes.EVERY))
    mesh.homes = {StreamKey(GROUPS, EU, partition): US for partition in (0, 1)}
    mesh.regions.apply({"do": "drain", "number": 2}, index=5, append_us=1)
    assert (await mesh.remove())["lost"] == []
    assert all(key.topic_id != GROUPS for _, key, _ in mesh.asked)


async def test_groups_that_came_home_again_count_as_if_they_never_left() -> None:
    mesh = Mesh()
    mesh.topics.append(topic(INTERNAL_TOPIC, GROUPS, Homes.EVERY))
    mesh.homes = {StreamKey(GROUPS, EU, 0): EU}
    assert any("--groups-of eu" in line for line in await mesh.departure.lacking(EU))
