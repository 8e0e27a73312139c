"""Who is asked, by whom, and what is made of silence; the HTTP form and the lines of the command."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from georelay.cli.audit import details, digest_lines, result_of, silent, stream_line, summary
from georelay.clock import SystemClock
from georelay.errors import BadRequest, Busy, GeorelayError, HomeUnreachable, PolicyViolation, UnknownTopic
from georelay.ids import BrokerId, RegionNumber, StreamKey
from region.api.audit_http import name_text, parse_name, verdict_json
from region.audit.agent import AuditAgent
from region.audit.auditor import Auditor, NamedStream, StreamName
from region.audit.questions import DEEP_METHOD, DIGESTS_METHOD, DigestsAsked, answer_json, digests_json, read_digests
from region.audit.values import FindingState, VerdictState

Model = Any  # the mesh of this folder's conftest
KEYS = [StreamKey(bytes(range(16)), RegionNumber(0), row) for row in range(5)]
ME = BrokerId(1001)


def agent_of(views: Mapping[int, Any], *, leader: int = 1001) -> AuditAgent:
    """Return an agent that leads nothing itself and asks broker 1002, which answers from `views`."""

    async def ask(broker: BrokerId, method: str, body: Mapping[str, Any], *, timeout_s: float) -> Mapping[str, Any]:
        assert (broker, method, body["local"]) == (1002, DIGESTS_METHOD, True)
        rows, _ = read_digests(body)
        return answer_json({row.key: views[1].view(row.at) for row in rows})

    return AuditAgent(me=ME, hosted=lambda _key: None, leader_of=lambda _key: leader, ask=ask, clock=SystemClock())


def auditor_of(mesh: Model, logs: Mapping[int, Any], *, keys: list[StreamKey] = KEYS) -> tuple[Auditor, list[Any]]:
    asked: list[Any] = []

    async def ask(region: RegionNumber, method: str, body: Any, *, timeout_s: float) -> Mapping[str, Any]:
        asked.append((region, method, len(body["rows"])))
        if region in mesh.silent:
            raise mesh.silent[region]
        rows, _ = read_digests(body)
        return answer_json({row.key: logs[region].view(row.at) for row in rows})

    named = [
        NamedStream(name=StreamName(topic="orders", origin=0, partition=key.partition), key=key, home=RegionNumber(1))
        for key in keys
    ]

    def streams(topic: str | None) -> list[NamedStream]:
        if topic not in (None, "orders"):
            raise UnknownTopic(f"topic '{topic}' is unknown")
        return named

    regions = [RegionNumber(row) for row in sorted({*logs, *mesh.silent})]
    agent = agent_of(logs, leader=1002)
    return Auditor(own=RegionNumber(1), agent=agent, streams=streams, regions=lambda: regions, ask=ask), asked


async def test_all_streams_of_a_page_go_into_one_request_to_each_region(mesh: Model) -> None:
    logs = {row: mesh.log(3, 1, 4) for row in (1, 2, 3)}
    auditor, asked = auditor_of(mesh, logs)
    page = await auditor.page("orders")
    assert asked == [(2, DIGESTS_METHOD, 5), (3, DIGESTS_METHOD, 5)]
    assert (len(page.verdicts), page.is_last, page.total, page.requests) == (5, True, 5, 3)
    assert all(verdict.state is VerdictState.AGREES for _, verdict in page.verdicts)


async def test_pages_follow_each_other(mesh: Model) -> None:
    auditor, _ = auditor_of(mesh, {row: mesh.log(1) for row in (1, 2)})
    seen, after = [], None
    while True:
        page = await auditor.page(None, after=after, limit=2)
        seen += [name.partition for name, _ in page.verdicts]
        after = page.verdicts[-1][0]
        if page.is_last:
            break
    assert seen == [0, 1, 2, 3, 4]


async def test_topics_that_the_caller_may_not_describe_are_left_out(mesh: Model) -> None:
    auditor, asked = auditor_of(mesh, {row: mesh.log(1) for row in (1, 2)})
    page = await auditor.page(None, may=lambda _topic: False)
    assert (page.verdicts, page.total, asked) == ((), 0, [])


async def test_a_region_that_cannot_be_reached_is_named_and_asked_once(mesh: Model) -> None:
    mesh.unreachable(3)
    auditor, asked = auditor_of(mesh, {1: mesh.log(3, 3), 2: mesh.log(3)})
    page = await auditor.page("orders")
    assert [row for row in asked if row[0] == 3] == [(3, DIGESTS_METHOD, 5)]
    for _, verdict in page.verdicts:
        assert verdict.state is VerdictState.INCOMPLETE
        assert verdict.findings[2].state is FindingState.NO_ANSWER


@pytest.mark.parametrize("error", [BadRequest("method 'audit.digests' is unknown"), HomeUnreachable("away")])
async def test_an_older_region_is_no_divergence(mesh: Model, error: GeorelayError) -> None:
    mesh.silent[2] = error
    auditor, _ = auditor_of(mesh, {1: mesh.log(3)})
    page = await auditor.page("orders")
    assert {verdict.state for _, verdict in page.verdicts} == {VerdictState.INCOMPLETE}


async def test_too_many_audits_at_once_are_told_so(mesh: Model) -> None:
    auditor, _ = auditor_of(mesh, {row: mesh.log(1) for row in (1, 2)})
    outcomes = await asyncio.gather(*(auditor.page("orders") for _ in range(4)), return_exceptions=True)
    assert sum(isinstance(row, Busy) for row in outcomes) == 2


async def test_only_brokers_of_the_own_region_may_ask_one_broker_for_its_own_streams(mesh: Model) -> None:
    agent = agent_of({1: mesh.log(1)}, leader=1002)
    body = digests_json([DigestsAsked(key=KEYS[0])], local=True)
    with pytest.raises(PolicyViolation):
        await agent.handle(DIGESTS_METHOD, body, from_broker=BrokerId(2001))


@pytest.mark.parametrize("method", [DIGESTS_METHOD, DEEP_METHOD, "audit.else"])
async def test_garbage_is_a_bad_request(mesh: Model, method: str) -> None:
    with pytest.raises(BadRequest):
        await agent_of({}).handle(method, {"rows": 5, "local": False}, from_broker=ME)


async def test_a_stream_without_a_leader_says_so(mesh: Model) -> None:
    told = await agent_of({}, leader=-1).views([DigestsAsked(key=KEYS[0])])
    assert "has no leader" in str(told[KEYS[0]])


def test_names_of_streams_go_through_a_query() -> None:
    name = StreamName(topic="a.b-c", origin=2, partition=17)
    assert parse_name(name_text(name)) == name
    for text in ("a/b", "a/1/2/3", "/0/0", "a/x/0", "a/0/-1"):
        with pytest.raises(BadRequest):
            parse_name(text)


def shown(mesh: Model, logs: Mapping[int, Any]) -> dict[str, Any]:
    name = StreamName(topic="orders", origin=0, partition=3)
    return dict(verdict_json(name, mesh.audit(logs), {1: "us", 2: "eu", 3: "ap"}.__getitem__))


def test_the_command_shows_a_divergence_with_each_regions_digest(mesh: Model) -> None:
    row = shown(mesh, {1: mesh.log(3, 2, 2), 2: mesh.log(3, 2, 2), 3: mesh.log(3, 2, 2, changed=1)})
    assert stream_line(row)["notes"] == "ap diverged"
    assert details(row) == [
        "orders/3: ap: other records from 3",
        "orders/3: first divergence in epoch 1, offsets 3..4",
    ]
    assert [line["offsets"] for line in digest_lines(row)] == ["3..4"] * 3
    assert summary([row]) == "1 of 1 streams hold different records"
    assert result_of([row]) == "diverged"


def test_the_command_says_who_is_behind(mesh: Model) -> None:
    row = shown(mesh, {1: mesh.log(3, 2, 2), 2: mesh.log(3)})
    assert (stream_line(row)["result"], stream_line(row)["notes"]) == ("agrees", "eu 4 records behind")
    assert (summary([row]), details(row)) == ("", [])


def test_a_region_without_an_answer_makes_the_audit_incomplete(mesh: Model) -> None:
    mesh.unreachable(2)
    row = shown(mesh, {1: mesh.log(3)})
    assert result_of([row]) == "incomplete"
    assert details(row) == ["orders/3: eu: HOME_UNREACHABLE: no broker of region 2 can be reached"]


def test_a_fault_of_a_deep_audit_is_a_divergence(mesh: Model) -> None:
    row = shown(mesh, {1: mesh.log(3), 2: mesh.log(3)})
    fault = {"first": 0, "following": 3, "what": "digest chain", "stored": "aa", "computed": "bb"}
    row["deep"] = [{"region": "eu", "fault": fault, "reason": ""}, {"region": "us", "fault": None, "reason": ""}]
    assert result_of([row]) == "diverged"
    assert details(row) == ["orders/3: eu: offsets 0..2: digest chain: stored aa, computed bb"]
    row["deep"][0] |= {"fault": None, "reason": "UNAVAILABLE: damaged"}
    assert result_of([row]) == "incomplete"


def test_a_region_that_answers_for_no_stream_is_named_once_and_one_that_answers_for_some_per_stream() -> None:
    def region(name: str, state: str) -> dict[str, Any]:
        reason = "no broker of it can be reached" if state == "no_answer" else ""
        return {"region": name, "state": state, "reason": reason, "behind": 0, "beyond": 0, "orphans": []}

    rows: list[dict[str, Any]] = [
        {
            "name": name,
            "partition": 0,
            "home": "us",
            "epoch": 1,
            "compared": 5,
            "state": "incomplete",
            "regions": [region("us", "reference"), region("eu", eu), region("ap", "no_answer")],
            "divergence": None,
        }
        for name, eu in (("orders", "agrees"), ("bills", "no_answer"))
    ]
    down = silent(rows)
    assert down == {"ap": "no broker of it can be reached"}
    assert [details(row, down) for row in rows] == [[], ["bills/0: eu: no broker of it can be reached"]]
    assert [stream_line(row, down)["notes"] for row in rows] == ["-", "eu no answer"]
