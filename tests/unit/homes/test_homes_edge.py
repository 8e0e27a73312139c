"""Homes over HTTP and on the command line."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from georelay.cli.home import home_line, progress_line, report_lines
from georelay.errors import GeorelayError, Unavailable
from georelay.fields import JsonObject
from georelay.ids import Epoch, Offset, RegionNumber, StreamKey
from mesh.home.home_row import HomeRow, MoveKind, Moving
from mesh.replication.stream_header import first_digest
from region.api.bodies import Bodies
from region.api.homes_http import HomesHttp
from region.api.principal import PRINCIPAL
from region.controller.topic import Homes, TopicDefinition
from region.coordination.coordinators import INTERNAL_TOPIC
from region.security.access import Access, Principal

TOPIC_ID = b"o" * 16
COORDINATORS_ID = b"c" * 16
NAMES = {RegionNumber(1): "us", RegionNumber(2): "eu"}
KEY = StreamKey(TOPIC_ID, RegionNumber(0), 1)
FIRST = HomeRow.first(
    TOPIC_ID, 1, home=RegionNumber(1), regions=(RegionNumber(1), RegionNumber(2)), digest=first_digest(KEY)
)
MOVED = replace(
    FIRST, home=RegionNumber(2), epoch=Epoch(2), start=Offset(40), last_epoch=Epoch(3),
    table=((Epoch(1), Offset(0)), (Epoch(2), Offset(40))),
    homes=((Epoch(1), RegionNumber(1)), (Epoch(2), RegionNumber(2))),
    moving=Moving(move_id="m", kind=MoveKind.FORCED, epoch=Epoch(3), target=RegionNumber(0)),
)  # fmt: skip


def definition(name: str, homes: Homes, topic_id: bytes) -> TopicDefinition:
    return TopicDefinition(
        name=name, topic_id=topic_id, partitions=2, replication_factor=1, homes=homes,
        home=RegionNumber(1 if homes is Homes.ONE else 0), retention_ms=-1, retention_bytes=-1, config=(), index=1,
    )  # fmt: skip


class Known:
    listed = (
        definition("orders", Homes.ONE, TOPIC_ID),
        definition("events", Homes.EVERY, b"e" * 16),
        definition(INTERNAL_TOPIC, Homes.EVERY, COORDINATORS_ID),
    )
    moved_coordinators: tuple[StreamKey, ...] = ()

    def topics(self) -> tuple[TopicDefinition, ...]:
        return self.listed

    def topic_by_id(self, topic_id: bytes) -> TopicDefinition | None:
        return next((topic for topic in self.listed if topic.topic_id == topic_id), None)

    def home_row(self, key: StreamKey) -> HomeRow | None:
        if key in self.moved_coordinators:
            return replace(MOVED, topic_id=COORDINATORS_ID, origin=key.origin, partition=key.partition, moving=None)
        return MOVED if key == KEY else None


class Control:
    def __init__(self) -> None:
        self.asked: list[tuple[str, JsonObject]] = []
        self.answer: JsonObject = {"move_id": "planned-00000000000000aa", "streams": 2}
        self.is_reached = True

    async def call(self, method: str, body: JsonObject, *, timeout_s: float = 5.0) -> JsonObject:
        self.asked.append((method, body))
        if not self.is_reached:
            raise Unavailable("no majority")
        return self.answer


@web.middleware
async def signed_in(request: web.Request, handler: Any) -> web.StreamResponse:
    request[PRINCIPAL] = Principal.of_user("admin")
    try:
        answer: web.StreamResponse = await handler(request)
    except GeorelayError as error:
        return web.json_response({"detail": str(error), "code": error.code}, status=error.http_status)
    return answer


@pytest.fixture
async def client() -> AsyncIterator[SimpleNamespace]:
    control = Control()
    app = web.Application(middlewares=[signed_in])
    Bodies().install(app)
    http = HomesHttp(known=Known(), call=control.call, region_names=lambda: NAMES, access=Access.open())
    app.add_routes(http.routes())
    async with TestClient(TestServer(app, host="127.0.0.1")) as test_client:
        yield SimpleNamespace(http=test_client, control=control)


async def test_homes_are_shown_with_names_and_what_is_being_moved(client: SimpleNamespace) -> None:
    answer = await (await client.http.get("/v1/homes")).json()
    assert [(row["topic"], row["partition"], row["home"], row["epoch"]) for row in answer["homes"]] == [
        ("orders", 0, "us", 1), ("orders", 1, "eu", 2),
    ]  # fmt: skip
    assert answer["homes"][1]["moving"] == {"move_id": "m", "kind": "forced", "epoch": 3, "target": None}
    assert answer["homes"][1]["homes"][0] == {"epoch": 1, "start": 0, "home": "us"}
    only = await (await client.http.get("/v1/homes?region=eu")).json()
    assert [row["partition"] for row in only["homes"]] == [1]


async def test_what_an_attempt_waits_for_is_shown_with_names_when_control_answers(client: SimpleNamespace) -> None:
    row = {"topic_id": TOPIC_ID.hex(), "partition": 1, "stage": "promising", "regions": [1], "promised": [2],
           "needed": 2, "fault": "region 1 did not promise"}  # fmt: skip
    client.control.answer = {"rows": [row, {**row, "partition": 0}]}
    homes = (await (await client.http.get("/v1/homes")).json())["homes"]
    assert homes[0]["moving"] is None
    assert homes[1]["moving"]["waits"] == {
        "stage": "promising", "regions": ["us"], "promised": ["eu"], "needed": 2, "fault": "region 1 did not promise",
    }  # fmt: skip
    assert client.control.asked == [("home.waiting", {})]


async def test_homes_are_shown_while_control_does_not_answer(client: SimpleNamespace) -> None:
    client.control.is_reached = False
    homes = (await (await client.http.get("/v1/homes")).json())["homes"]
    assert "waits" not in homes[1]["moving"]


@pytest.mark.parametrize(
    ("answer", "in_force", "line"),
    [
        ({"waiting": []}, True, "auto"),
        ({"waiting": [{"topic_id": TOPIC_ID.hex(), "home": 1}]}, False, "not in force: us has yet to say"),
        (None, None, "mesh control does not say"),
    ],
)
async def test_a_topic_that_fails_over_says_whether_that_is_in_force(
    client: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    answer: JsonObject | None,
    in_force: bool | None,
    line: str,
) -> None:
    automatic = replace(Known.listed[0], config=(("failover", "auto"),))
    monkeypatch.setattr(Known, "listed", (automatic, *Known.listed[1:]))

    client.control.answer = answer or {}
    client.control.is_reached = answer is not None
    homes = (await (await client.http.get("/v1/homes")).json())["homes"]
    assert homes[0]["failover"] == {"policy": "auto", "in_force": in_force}
    assert homes[1]["failover"]["in_force"] is (None if in_force is None else True)  # its home is eu
    assert line in str(home_line(homes[0])["failover"])


async def test_a_topic_without_one_home_is_not_shown(client: SimpleNamespace) -> None:
    assert (await client.http.get("/v1/homes?topic=events")).status == 404


async def test_coordinators_are_shown_where_they_were_moved_or_when_their_topic_is_named(
    client: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Known, "moved_coordinators", (StreamKey(COORDINATORS_ID, RegionNumber(1), 1),))
    rows = (await (await client.http.get("/v1/homes")).json())["homes"]
    moved = [(row["topic"], row["partition"], row["home"], row["epoch"]) for row in rows]
    assert (f"us.{INTERNAL_TOPIC}", 1, "eu", 2) in moved and len(moved) == 3
    rows = (await (await client.http.get(f"/v1/homes?topic={INTERNAL_TOPIC}")).json())["homes"]
    assert [(row["topic"].split(".")[0], row["partition"], row["home"]) for row in rows] == [
        ("us", 0, "us"), ("us", 1, "eu"), ("eu", 0, "eu"), ("eu", 1, "eu"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "body", "method", "asked"),
    [
        ("move", {"to": "eu", "topic": "orders"}, "home.move", {"streams": [[TOPIC_ID.hex(), [0, 1]]], "target": 2}),
        ("move", {"to": "2", "topic": "orders", "partitions": [0]}, "home.move",
         {"streams": [[TOPIC_ID.hex(), [0]]], "target": 2}),
        ("move", {"to": "us", "from": "eu"}, "home.move", {"streams": [[TOPIC_ID.hex(), [1]]], "target": 1}),
        ("move", {"to": "eu", "groups_of": "us"}, "home.move",
         {"streams": [[COORDINATORS_ID.hex(), [0, 1], 1]], "target": 2}),
        ("failover", {"region": "us"}, "home.failover", {"region": 1, "streams": [], "accept_loss": False}),
        ("failover", {"topic": "orders", "partitions": [1], "accept_loss": True}, "home.failover",
         {"region": 0, "streams": [[TOPIC_ID.hex(), [1]]], "accept_loss": True}),
    ],
)  # fmt: skip
async def test_what_is_asked_for_goes_to_the_leader_of_control(
    client: SimpleNamespace, path: str, body: JsonObject, method: str, asked: JsonObject
) -> None:
    answer = await client.http.post(f"/v1/homes/{path}", json=body)
    assert answer.status == 202, await answer.text()
    assert client.control.asked == [(method, asked)]


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("move", {"to": "mars", "topic": "orders"}, 400),
        ("move", {"to": "eu", "topic": "events"}, 400),
        ("move", {"to": "eu", "topic": "none"}, 404),
        ("move", {"to": "eu"}, 400),
        ("move", {"to": "eu", "topic": "orders", "partitions": [7]}, 400),
        ("failover", {"region": "us", "force": True}, 400),
        ("failover", [], 400),
    ],
)
async def test_what_makes_no_sense_is_refused_here(
    client: SimpleNamespace, path: str, body: object, status: int
) -> None:
    assert (await client.http.post(f"/v1/homes/{path}", json=body)).status == status
    assert client.control.asked == []


async def test_a_report_names_topics_and_regions(client: SimpleNamespace) -> None:
    row = {"topic_id": TOPIC_ID.hex(), "partition": 1, "home": 2, "epoch": 4, "start": 9, "kept_level": 2,
           "accept_loss": False}  # fmt: skip
    client.control.answer = {"over": True, "streams": 1, "moved": [row], "refused": [], "waiting": [], "stages": {}}
    report = await (await client.http.get("/v1/homes/moves/forced-00000000000000aa")).json()
    assert report["moved"] == [{"topic": "orders", "partition": 1, "home": "eu", "epoch": 4, "start": 9,
                                "kept_level": 2, "accept_loss": False}]  # fmt: skip
    assert (await client.http.get("/v1/homes/moves/nonsense")).status == 400


def test_the_command_line_says_what_was_kept_and_what_was_accepted() -> None:
    row = {"topic": "orders", "partition": 1, "home": "eu", "epoch": 4, "start": 9, "kept_level": 2,
           "accept_loss": True}  # fmt: skip
    lines = report_lines({"streams": 1, "moved": [row]})
    assert lines[:2] == ["moved 1 of 1 partitions", "  orders partition 1: home eu, epoch 4 from offset 9"]
    assert "all that 2 regions acknowledged" in lines[2] and "orphan branch" in lines[2]
    assert "loss was accepted" in lines[3]


def test_the_command_line_says_what_a_move_waits_for() -> None:
    waiting = {"topic": "orders", "partition": 0, "text": "region 3 did not promise"}
    report: JsonObject = {"streams": 2, "moved": [], "stages": {"promising": 2}, "waiting": [waiting]}
    assert progress_line(report) == "0 of 2 moved, promising 2; orders partition 0: region 3 did not promise"


def test_a_home_that_moves_is_shown_so() -> None:
    row = {"topic": "orders", "partition": 0, "home": "us", "epoch": 1, "start": 0,
           "moving": {"kind": "planned", "target": "eu", "epoch": 2}}  # fmt: skip
    assert home_line(row)["moving"] == "planned to eu, epoch 2"
    assert home_line({**row, "moving": None})["moving"] == "-"


@pytest.mark.parametrize(
    ("waits", "line"),
    [
        ({"stage": "promising", "regions": ["us", "ap"], "promised": ["eu"], "needed": 2, "fault": ""},
         "1 more of us, ap to promise"),
        ({"stage": "promising", "regions": ["ap"], "promised": ["eu", "us"], "needed": 2, "fault": "deleted"},
         "0 more of ap to promise (deleted)"),
        ({"stage": "fencing", "regions": ["us"], "promised": [], "needed": 0, "fault": ""},
         "the leases of us to end"),
        ({"stage": "ending", "regions": [], "promised": [], "needed": 0, "fault": ""}, "mesh control to decide"),
        ({"stage": "of a later version"}, "of a later version"),
    ],
)  # fmt: skip
def test_a_home_that_moves_says_what_it_waits_for(waits: JsonObject, line: str) -> None:
    row = {"topic": "orders", "partition": 0, "home": "us", "epoch": 1, "start": 0,
           "moving": {"kind": "forced", "target": None, "epoch": 2, "waits": waits}}  # fmt: skip
    assert home_line(row)["moving"] == f"forced to (not chosen), epoch 2: waits for {line}"


def test_a_report_of_very_many_partitions_is_counted_whole() -> None:
    report: JsonObject = {"streams": 20_000, "moved": [], "moved_count": 15_000, "stages": {}, "waiting": []}
    assert progress_line(report) == "15000 of 20000 moved"
    assert report_lines({**report, "moved_count": 20_000})[0] == "moved 20000 of 20000 partitions"
