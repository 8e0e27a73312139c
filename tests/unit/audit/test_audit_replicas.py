"""Every replica of every region: who is asked, how often, and how the one that differs is named."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from georelay.cli.audit import details, digest_lines, result_of, stream_line
from georelay.clock import SystemClock
from georelay.errors import BadRequest, GeorelayError, HomeUnreachable, PolicyViolation, Unavailable
from georelay.fields import FieldError
from georelay.ids import BrokerId, RegionNumber, StreamKey
from region.api.audit_http import verdict_json
from region.audit import audit_core
from region.audit.agent import AuditAgent
from region.audit.audit_core import StreamAudit
from region.audit.auditor import Auditor, NamedStream, StreamName
from region.audit.questions import (
    DIGESTS_METHOD,
    REPLICA_METHOD,
    REPLICAS_METHOD,
    DigestsAsked,
    answer_json,
    brokers_json,
    read_answers,
    read_brokers,
    read_digests,
    read_replica,
    read_replicas,
    replica_json,
    replicas_json,
)
from region.audit.values import OFFSETS_MAX, FindingState, StreamVerdict, VerdictState

Model = Any  # the mesh of this folder's conftest
KEY = StreamKey(bytes(range(16)), RegionNumber(0), 3)
NAME = StreamName(topic="orders", origin=0, partition=3)
BROKERS = {1: (1001, 1002, 1003), 2: (2002, 2001, 2003), 3: (3001,)}  # leaders first
NAMES = {1: "us", 2: "eu", 3: "ap"}


class Copies:
    """The replicas of three regions behind one broker of each; counts who was asked what."""

    def __init__(self, logs: Mapping[int, Any]) -> None:
        self.logs = logs
        self.asked: list[tuple[int, str]] = []
        self.away: dict[int, GeorelayError] = {}  # by region or broker
        self.agent = AuditAgent(
            me=BrokerId(1001),
            hosted=lambda _key: None,
            leader_of=lambda _key: 1001,
            replicas_of=lambda _key: [BrokerId(row) for row in BROKERS[1]],
            ask=self._ask_broker,
            clock=SystemClock(),
        )

    def _say(self, broker: int, body: Mapping[str, Any]) -> Mapping[str, Any]:
        rows, named, _ = read_replica(body)
        assert named == broker
        self.asked.append((broker, REPLICA_METHOD))
        if broker in self.away:
            raise self.away[broker]
        return answer_json({row.key: self.logs[broker].view(row.at) for row in rows})

    async def _ask_broker(
        self, broker: BrokerId, method: str, body: Mapping[str, Any], *, timeout_s: float
    ) -> Mapping[str, Any]:
        assert (method, body["local"]) == (REPLICA_METHOD, True)
        return self._say(broker, body)

    async def ask_region(self, region: RegionNumber, method: str, body: Any, *, timeout_s: float) -> Mapping[str, Any]:
        if region in self.away:
            raise self.away[region]
        if method == REPLICAS_METHOD:
            self.asked.append((region, method))
            return brokers_json({key: [BrokerId(row) for row in BROKERS[region]] for key in read_replicas(body)})
        assert (method, body["local"]) == (REPLICA_METHOD, False)
        return self._say(body["broker"], body)

    async def verdict(self) -> tuple[StreamVerdict, int]:
        """Audit every replica; return what came out, and how many requests that took."""
        stream = NamedStream(name=NAME, key=KEY, home=RegionNumber(1))
        regions = [RegionNumber(row) for row in BROKERS]
        auditor = Auditor(
            own=RegionNumber(1),
            agent=self.agent,
            streams=lambda _topic: [stream],
            regions=lambda: regions,
            ask=self.ask_region,
        )
        page = await auditor.page("orders", replicas=True)
        ((_, verdict),) = page.verdicts
        return verdict, page.requests


@pytest.fixture
def copies(mesh: Model, monkeypatch: pytest.MonkeyPatch) -> Copies:
    made = Copies({broker: mesh.log(3, 2, 2, 4) for some in BROKERS.values() for broker in some})
    here = made.agent._copies_here

    async def own(rows: Any) -> Any:
        """Answer for broker 1001, which holds no stream in this test."""
        made.asked.append((1001, REPLICA_METHOD))
        assert here is not None
        return {row.key: made.away.get(1001) or made.logs[1001].view(row.at) for row in rows}

    monkeypatch.setattr(made.agent, "_copies_here", own)
    return made


async def test_every_replica_is_asked_once_when_all_are_the_same(copies: Copies) -> None:
    verdict, requests = await copies.verdict()
    assert verdict.state is VerdictState.AGREES
    assert [(row.region, row.broker) for row in verdict.findings] == [
        (region, broker) for region, some in BROKERS.items() for broker in sorted(some)
    ]
    assert requests == 3 + 7  # where the replicas are, then one question to each
    assert sorted(copies.asked) == sorted(
        [
            (2, REPLICAS_METHOD),
            (3, REPLICAS_METHOD),
            *((row, REPLICA_METHOD) for some in BROKERS.values() for row in some),
        ]
    )
    (reference,) = (row for row in verdict.findings if row.state is FindingState.REFERENCE)
    assert reference.broker == 1001  # the home's leader


async def test_a_follower_that_differs_is_named_with_its_region_and_where(mesh: Model, copies: Copies) -> None:
    copies.logs = {**copies.logs, 2003: mesh.log(3, 2, 2, 4, changed=1)}
    verdict, _ = await copies.verdict()
    assert [(row.region, row.broker) for row in verdict.findings if row.state is FindingState.DIVERGED] == [(2, 2003)]
    assert verdict.divergence is not None
    assert (verdict.divergence.first, verdict.divergence.last) == (3, 4)
    row = dict(verdict_json(NAME, verdict, NAMES.__getitem__))
    assert stream_line(row)["notes"] == "eu/2003 diverged"
    assert details(row) == [
        "orders/3: eu/2003: other records from 3",
        "orders/3: first divergence in epoch 1, offsets 3..4",
    ]
    digests = {line["region"]: line["digest"] for line in digest_lines(row)}
    assert list(digests) == ["ap/3001", "eu/2001", "eu/2002", "eu/2003", "us/1001", "us/1002", "us/1003"]
    assert len(set(digests.values())) == 2
    assert result_of([row]) == "diverged"


async def test_a_difference_among_many_records_takes_few_questions_to_each_replica(mesh: Model, copies: Copies) -> None:
    same, other = mesh.log(*[1] * 5_000), mesh.log(*[1] * 5_000, changed=1234)
    copies.logs = {broker: other if broker in (2001, 3001) else same for some in BROKERS.values() for broker in some}
    verdict, _ = await copies.verdict()
    assert verdict.divergence is not None
    assert verdict.divergence.first == 1234
    assert [row.broker for row in verdict.findings if row.state is FindingState.DIVERGED] == [2001, 3001]
    asked = [broker for broker, method in copies.asked if method == REPLICA_METHOD]
    assert max(asked.count(broker) for broker in set(asked)) <= 8


async def test_a_replica_that_is_behind_agrees(mesh: Model, copies: Copies) -> None:
    copies.logs = {**copies.logs, 1003: mesh.log(3)}
    verdict, _ = await copies.verdict()
    row = dict(verdict_json(NAME, verdict, NAMES.__getitem__))
    assert (stream_line(row)["result"], stream_line(row)["notes"]) == ("agrees", "us/1003 8 records behind")


async def test_a_broker_that_is_away_makes_the_audit_incomplete_and_is_named(copies: Copies) -> None:
    copies.away[1002] = HomeUnreachable("no link to broker 1002")
    verdict, _ = await copies.verdict()
    assert verdict.state is VerdictState.INCOMPLETE
    (silent,) = (row for row in verdict.findings if row.state is FindingState.NO_ANSWER)
    assert (silent.region, silent.broker, silent.reason) == (1, 1002, "HOME_UNREACHABLE: no link to broker 1002")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (HomeUnreachable("away"), "HOME_UNREACHABLE: away"),
        (BadRequest("method 'audit.replicas' is unknown"), "cannot be audited yet"),
    ],
)
async def test_a_region_whose_replicas_nobody_knows_is_named_and_never_taken_for_equal(
    copies: Copies, error: GeorelayError, reason: str
) -> None:
    copies.away[3] = error
    verdict, _ = await copies.verdict()
    assert verdict.state is VerdictState.INCOMPLETE
    assert (verdict.findings[-1].region, verdict.findings[-1].broker) == (3, None)
    assert reason in verdict.findings[-1].reason


async def test_a_region_without_a_replica_is_named(copies: Copies, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BROKERS, 3, ())
    verdict, _ = await copies.verdict()
    assert verdict.state is VerdictState.INCOMPLETE
    assert verdict.findings[-1].reason == "no broker of this region is known to hold a replica"


# --- what a broker answers ----------------------------------------------------------------------------


async def test_a_broker_says_which_brokers_of_its_region_hold_replicas_its_leader_first(copies: Copies) -> None:
    answer = await copies.agent.handle(REPLICAS_METHOD, replicas_json([KEY]), from_broker=BrokerId(2001))
    assert read_brokers(answer, asked=[KEY], region=RegionNumber(1)) == {KEY: (1001, 1002, 1003)}


async def test_a_question_for_another_broker_is_passed_on_inside_the_region(copies: Copies) -> None:
    body = replica_json([DigestsAsked(key=KEY)], broker=BrokerId(1003))
    answer = await copies.agent.handle(REPLICA_METHOD, body, from_broker=BrokerId(2001))
    told = read_answers(answer, asked=[DigestsAsked(key=KEY)])[KEY]
    assert not isinstance(told, GeorelayError)
    assert told.end == 11
    assert copies.asked == [(1003, REPLICA_METHOD)]


async def test_a_question_for_a_broker_of_another_region_is_refused(copies: Copies) -> None:
    body = replica_json([DigestsAsked(key=KEY)], broker=BrokerId(2001))
    with pytest.raises(BadRequest):
        await copies.agent.handle(REPLICA_METHOD, body, from_broker=BrokerId(3001))
    body = replica_json([DigestsAsked(key=KEY)], broker=BrokerId(1001), local=True)
    with pytest.raises(PolicyViolation):
        await copies.agent.handle(REPLICA_METHOD, body, from_broker=BrokerId(3001))


async def test_a_broker_answers_for_a_replica_that_it_does_not_lead(mesh: Model) -> None:
    class Follower:
        is_leader = False
        key = KEY

        class disk:  # noqa: N801
            is_damaged = False

    agent = AuditAgent(
        me=BrokerId(1002),
        hosted=lambda _key: Follower(),  # type: ignore[arg-type, return-value]
        leader_of=lambda _key: 1001,
        ask=lambda *_a, **_k: pytest.fail("nobody else is asked"),
        clock=SystemClock(),
    )
    assert agent._copy(KEY).is_leader is False
    Follower.disk.is_damaged = True
    with pytest.raises(Unavailable):
        agent._copy(KEY)
    body = replica_json([DigestsAsked(key=KEY)], broker=BrokerId(1002), local=True)
    answer = await agent.handle(REPLICA_METHOD, body, from_broker=BrokerId(1001))
    assert isinstance(read_answers(answer, asked=[DigestsAsked(key=KEY)])[KEY], Unavailable)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"rows": []},
        {"rows": [], "local": False},
        {"rows": [], "local": False, "broker": "1001"},
        {"rows": [], "local": False, "broker": 2**40},
        {"rows": [], "local": False, "broker": 1001, "more": 1},
        {"rows": 3, "local": False, "broker": 1001},
    ],
)
async def test_garbage_for_a_replica_is_a_bad_request(copies: Copies, body: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        await copies.agent.handle(REPLICA_METHOD, body, from_broker=BrokerId(1002))


@pytest.mark.parametrize("brokers", [[1001, 1001], [2001], [0], ["1001"], [True], list(range(1001, 1066))])
def test_a_region_names_only_brokers_of_its_own_and_each_once(brokers: list[Any]) -> None:
    with pytest.raises(FieldError):
        read_brokers(brokers_json({KEY: brokers}), asked=[KEY], region=RegionNumber(1))


def test_a_stream_that_was_not_asked_for_is_refused() -> None:
    other = StreamKey(bytes(16), RegionNumber(0), 0)
    with pytest.raises(FieldError):
        read_brokers(brokers_json({other: []}), asked=[KEY], region=RegionNumber(1))
    with pytest.raises(FieldError):
        read_replicas(replicas_json([KEY, KEY]))


def test_leaders_and_replicas_are_asked_in_different_words() -> None:
    """A broker that knows no replicas answers the whole question with an error, and never with its leaders' logs."""
    body = replica_json([DigestsAsked(key=KEY)], broker=BrokerId(1001))
    with pytest.raises(FieldError):
        read_digests(body)
    assert DIGESTS_METHOD not in (REPLICA_METHOD, REPLICAS_METHOD)


def test_nobody_is_asked_for_more_offsets_at_a_time_than_a_broker_takes(mesh: Model) -> None:
    """With very many replicas that all differ elsewhere, the reference is asked in several rounds."""
    brokers = [1000 + row for row in range(1, 121)]
    logs = {row: mesh.log(*[1] * 400, changed=3 * (row - 1000) if row > 1001 else None) for row in brokers}
    audit = StreamAudit(KEY, home=RegionNumber(1), regions=brokers, by_broker=True, preferred=1001)
    most = 0
    while wanted := audit.wanted():
        most = max(most, *(len(at) for at in wanted.values()))
        audit.told({who: logs[who].view(at) for who, at in wanted.items()})
    verdict = audit.verdict()
    assert most <= OFFSETS_MAX
    assert audit.rounds <= 3 * audit_core.POINTS
    assert verdict.divergence is not None
    assert verdict.divergence.first == 6
    assert sum(row.state is FindingState.DIVERGED for row in verdict.findings) == 119
