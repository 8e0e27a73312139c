"""One region asked about streams while some of its brokers are cut off from the others: who answers for which."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from georelay.errors import HomeUnreachable, NotLeader, OffsetOutOfRange, Unavailable
from georelay.fields import JsonObject
from georelay.ids import BrokerId, Epoch, Offset, RegionNumber, StreamKey
from region.homes import asking
from region.homes.agent import HomeAgent
from region.homes.asking import RegionAsker
from region.homes.home_requests import PROMISE_METHOD, PrefixEnd, PromiseAsked, asked_json, read_answers

TWO = RegionNumber(2)
ELSEWHERE = BrokerId(1001)
PREFIX = PrefixEnd(offset=Offset(5), digest=b"d" * 16)
TABLE = ((Epoch(1), Offset(0)),)


def key(partition: int) -> StreamKey:
    return StreamKey(b"a" * 16, RegionNumber(0), partition)


def question(partition: int) -> PromiseAsked:
    return PromiseAsked(key=key(partition), new_epoch=Epoch(2), table=TABLE)


class Led:
    """A stream that this broker leads; it holds nothing of the history when it was deleted."""

    is_leader = True

    def __init__(self, *, is_deleted: bool = False) -> None:
        self.is_deleted = is_deleted

    async def promise(self, **_: Any) -> PrefixEnd:
        if self.is_deleted:
            raise OffsetOutOfRange("deleted")
        return PREFIX


class Region:
    """Brokers of one region; those in `cut_off` reach no other of it. Asked as links ask: each in turn (Requests)."""

    def __init__(self, leaders: Mapping[int, int], *, brokers: int = 3) -> None:
        self.leaders = leaders  # broker by partition; 0 for none
        self.cut_off: set[int] = set()
        self.asked: list[tuple[int, int]] = []  # broker, streams
        self.agents = {number: self._agent(number) for number in range(2001, 2001 + brokers)}
        self.streams: dict[tuple[int, int], Any] = {(broker, partition): Led() for partition, broker in leaders.items()}

    def _agent(self, me: int) -> HomeAgent:
        def leader_of(stream: StreamKey) -> int:
            leader = self.leaders[stream.partition]
            return leader if leader and (leader == me or me not in self.cut_off) else -1

        async def ask(broker: BrokerId, method: str, body: Mapping[str, Any], *, timeout_s: float) -> JsonObject:
            if {me, int(broker)} & self.cut_off:
                raise HomeUnreachable(f"broker {broker} cannot be reached")
            return await self.agents[broker].handle(method, body, from_broker=BrokerId(me))

        return HomeAgent(
            me=BrokerId(me), hosted=lambda stream: self.streams.get((me, stream.partition)), leader_of=leader_of,
            ask=ask,
        )  # fmt: skip

    async def ask(self, region: RegionNumber, method: str, body: JsonObject, *, timeout_s: float) -> Mapping[str, Any]:
        refusal: Exception | None = None
        for number, agent in self.agents.items():
            rows = body["rows"]
            assert isinstance(rows, list)
            self.asked.append((number, len(rows)))
            try:
                return await agent.handle(method, body, from_broker=ELSEWHERE)
            except (NotLeader, Unavailable) as error:
                refusal = error
        assert refusal is not None
        raise refusal


async def test_a_broker_that_is_cut_off_from_its_region_does_not_answer_for_it() -> None:
    region = Region({0: 2002, 1: 2003})
    region.cut_off = {2001}
    told = await RegionAsker(TWO, region.ask).about(PROMISE_METHOD, [question(0), question(1)])
    assert told == {key(0): PREFIX, key(1): PREFIX}


async def test_what_one_broker_cannot_answer_another_one_of_the_region_is_asked() -> None:
    region = Region({0: 2001, 1: 2003})
    region.cut_off = {2001}  # it still leads a stream
    told = await RegionAsker(TWO, region.ask).about(PROMISE_METHOD, [question(0), question(1)])
    assert told == {key(0): PREFIX, key(1): PREFIX}
    assert region.asked == [(2001, 2), (2001, 1), (2002, 1)]


async def test_a_stream_without_a_leader_is_answered_so_and_the_others_are_asked_once() -> None:
    region = Region({0: 2001, 1: 0})
    told = await RegionAsker(TWO, region.ask).about(PROMISE_METHOD, [question(0), question(1)])
    assert told[key(0)] == PREFIX
    assert isinstance(told[key(1)], Unavailable) and "no leader" in str(told[key(1)])
    assert [streams for _, streams in region.asked] == [2, 1, 1, 1]


async def test_an_answer_that_every_broker_would_give_is_asked_of_one() -> None:
    region = Region({0: 2001})
    region.streams[2001, 0] = Led(is_deleted=True)
    told = await RegionAsker(TWO, region.ask).about(PROMISE_METHOD, [question(0)])
    assert isinstance(told[key(0)], OffsetOutOfRange)
    assert region.asked == [(2001, 1)]


async def test_a_page_without_any_answer_keeps_no_other_page_of_the_region_from_being_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(asking, "WAVE_STREAMS_MAX", 1)
    region = Region(dict.fromkeys(range(20), 0) | {19: 2001})
    told = await RegionAsker(TWO, region.ask).about(PROMISE_METHOD, [question(partition) for partition in range(20)])
    assert told[key(19)] == PREFIX


async def test_a_broker_tells_another_one_of_its_region_what_it_cannot_answer_row_by_row() -> None:
    region = Region({0: 0, 1: 0})
    body = asked_json([question(0), question(1)], local=True)
    answer = await region.agents[2001].handle(PROMISE_METHOD, body, from_broker=BrokerId(2002))
    assert set(read_answers(PROMISE_METHOD, answer, asked=[key(0), key(1)])) == {key(0), key(1)}
