"""/v1/orphans: who may see, export, publish again and drop what a region had beyond a new home epoch."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from georelay.errors import AccessDenied, GeorelayError
from georelay.wire.batch import RecordDraft, build_batch, iterate_records
from georelay.wire.control_batch import build_marker
from region.api import orphans_http
from region.api.answer_room import AnswerMemory, AnswerRoom
from region.api.bodies import Bodies
from region.api.orphans import BranchPiece, BranchView
from region.api.orphans_http import ORPHAN_HEADER, OrphansHttp
from region.api.principal import PRINCIPAL
from region.api.unfolding import Unreadable
from region.security.access import Operation

BRANCH = BranchView(topic="orders", partition=0, epoch=2, first=5, following=8, cut_us=1_000_000, epochs=((1, 5),))


def entry(base: int, payload: bytes, count: int = 1) -> Any:
    raw = bytearray(payload)
    raw[:8] = base.to_bytes(8, "big")
    return SimpleNamespace(
        base_offset=base,
        record_count=count,
        payload=memoryview(raw),
        header=lambda: SimpleNamespace(epoch=1, append_us=1, received_ns=1, entry_region=1),
    )


ENTRIES = [
    entry(5, build_batch([RecordDraft(b"five", key=b"k", headers=(("h", b"1"),))], timestamps_ms=77)),
    entry(
        6,
        build_batch(
            [RecordDraft(b"six")],
            timestamps_ms=78,
            producer_id=9,
            producer_epoch=0,
            base_sequence=0,
            is_transactional=True,
        ),
    ),
    entry(7, build_marker(producer_id=9, producer_epoch=0, is_commit=True, coordinator_epoch=1, timestamp_ms=1)),
]


class Bed:
    """The room with everything around it faked."""

    def __init__(self) -> None:
        self.allowed = set(Operation)
        self.published: list[tuple[str, Any]] = []
        self.dropped: list[tuple[str, int, int]] = []
        self.client: Any = None
        self.noted_changes: list[tuple[str, dict[str, str]]] = []

    async def branches(self) -> list[BranchView]:
        return [BRANCH]

    async def read(self, topic: str, partition: int, epoch: int, offset: int, max_bytes: int) -> BranchPiece:
        assert (topic, partition, epoch) == ("orders", 0, 2)
        left = [row for row in ENTRIES if row.base_offset >= offset][:2]
        return BranchPiece(entries=left, next_offset=left[-1].base_offset + 1 if left else 8)

    async def drop(self, topic: str, partition: int, epoch: int) -> int:
        self.dropped.append((topic, partition, epoch))
        return 1

    async def publish(self, topic: str, records: Any, *, asker: Any) -> None:
        self.published += [(topic, row) for row in records]

    def check(self, principal: Any, operation: Operation, resource: Any, name: str) -> None:
        if operation not in self.allowed:
            raise AccessDenied.to("topic")

    @contextmanager
    def noted(self, principal: Any, what: str, **detail: str) -> Iterator[None]:
        self.noted_changes.append((what, detail))
        yield

    def allows(self, principal: Any, operation: Operation, resource: Any, name: str) -> bool:
        return operation in self.allowed

    async def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        answer = await self.client.request(method, path, data=None if body is None else json.dumps(body))
        return answer.status, await answer.json()


@web.middleware
async def around(request: web.Request, handler: Any) -> web.StreamResponse:
    somebody: Any = SimpleNamespace(name="ann")
    request[PRINCIPAL] = somebody
    try:
        answer: web.StreamResponse = await handler(request)
    except GeorelayError as error:
        return web.json_response({"code": error.code, "error": str(error)}, status=error.http_status)
    return answer


@pytest.fixture
async def bed() -> AsyncIterator[Bed]:
    made: Any = Bed()
    app = web.Application(middlewares=[around])
    Bodies().install(app)
    app.add_routes(OrphansHttp(made, publisher=made, access=made, region="us").routes())
    async with TestClient(TestServer(app)) as client:
        made.client = client
        yield made


ONE = "/v1/orphans/orders/0/2"


async def test_branches_are_listed_with_their_region_to_who_may_describe_the_topic(bed: Bed) -> None:
    status, answer = await bed.ask("GET", "/v1/orphans")
    (row,) = answer["branches"]
    assert (status, row["region"], row["first"], row["last"], row["records"]) == (200, "us", 5, 7, 3)
    assert BranchView.from_json({name: value for name, value in row.items() if name != "region"}) == BRANCH
    assert (await bed.ask("GET", "/v1/orphans?topic=others"))[1] == {"branches": []}
    bed.allowed = set()
    assert (await bed.ask("GET", "/v1/orphans"))[1] == {"branches": []}


async def test_records_are_exported_piece_by_piece_without_markers(bed: Bed) -> None:
    _, first = await bed.ask("GET", ONE)
    assert [(row["offset"], row["value"], row["epoch"], row["transactional"]) for row in first["records"]] == [
        (5, "five", 1, False),
        (6, "six", 1, True),
    ]
    _, second = await bed.ask("GET", f"{ONE}?offset={first['next_offset']}")
    _, third = await bed.ask("GET", f"{ONE}?offset={second['next_offset']}")
    assert (second["records"], second["next_offset"], third["next_offset"]) == ([], 8, 8)


async def test_batches_are_exported_as_they_are_stored(bed: Bed) -> None:
    _, answer = await bed.ask("GET", f"{ONE}?format=batches&offset=5")
    raw = base64.b64decode(answer["batches"][0])
    assert raw == bytes(ENTRIES[0].payload)
    assert [record.value for record in iterate_records(raw)] == [b"five"]


async def test_plain_records_are_published_again_as_they_were_with_a_header_that_says_so(bed: Bed) -> None:
    _, answer = await bed.ask("POST", f"{ONE}/republish", {"offset": -1})
    assert answer == {"published": 1, "left_out": 1, "next_offset": 7}
    ((topic, (record, partition)),) = bed.published
    assert (topic, partition, record.key, record.value, record.timestamp_ms) == ("orders", 0, b"k", b"five", 77)
    assert record.headers == (("h", b"1"), (ORPHAN_HEADER, b"us/2/5"))
    assert (await bed.ask("POST", f"{ONE}/republish", {"offset": 7}))[1] == {
        "published": 0,
        "left_out": 1,
        "next_offset": 8,
    }


async def test_a_branch_is_dropped(bed: Bed) -> None:
    assert await bed.ask("DELETE", ONE) == (200, {"dropped": 1})
    assert bed.dropped == [("orders", 0, 2)]


@pytest.mark.parametrize(
    ("method", "path", "needed"),
    [
        ("GET", ONE, Operation.READ),
        ("POST", f"{ONE}/republish", Operation.READ),
        ("POST", f"{ONE}/republish", Operation.WRITE),
        ("DELETE", ONE, Operation.DELETE),
    ],
)
async def test_nothing_is_done_without_the_right_to(bed: Bed, method: str, path: str, needed: Operation) -> None:
    bed.allowed = set(Operation) - {needed}
    status, _ = await bed.ask(method, path)
    assert (status, bed.published, bed.dropped) == (403, [], [])


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/v1/orphans/orders/x/2", None),
        ("GET", "/v1/orphans?region=eu", None),
        ("GET", f"{ONE}?region=eu", None),
        ("GET", "/v1/orphans/orders/0/0", None),
        ("GET", f"{ONE}?offset=-2", None),
        ("GET", f"{ONE}?format=xml", None),
        ("POST", f"{ONE}/republish", {"offset": "1"}),
        ("POST", f"{ONE}/republish", {"offset": 1, "more": 1}),
    ],
)
async def test_a_wrong_request_is_refused_and_named(bed: Bed, method: str, path: str, body: Any) -> None:
    status, answer = await bed.ask(method, path, body)
    assert (status, answer["code"]) == (400, "BAD_REQUEST")


async def test_an_export_waits_for_room_before_it_answers_without_a_record(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = tuple((f"{number}", b"") for number in range(100))  # far more in memory than they are as a batch
    batch = build_batch([RecordDraft(b"five", headers=headers)], timestamps_ms=1)
    monkeypatch.setitem(globals(), "ENTRIES", [entry(5, batch)])
    memory = AnswerMemory(200_000)
    monkeypatch.setattr(AnswerRoom.__init__, "__defaults__", (memory,))
    other = AnswerRoom("ann", memory)
    assert other.has(94_000), "what is left is enough for the batch, not for its text"
    export = asyncio.create_task(bed.ask("GET", "/v1/orphans/orders/0/2"))
    while not memory._lines and not export.done():
        await asyncio.sleep(0)
    other.end()
    _, found = await export
    assert ([row["value"] for row in found["records"]], found["next_offset"]) == (["five"], 6)
    assert memory.used_bytes == 0


async def test_an_export_says_of_what_cannot_be_read_only_what_lies_beyond_its_beginning(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def flaws(*_: Any) -> AsyncIterator[Unreadable]:
        yield Unreadable(5, 6, "flaw")
        yield Unreadable(6, 8, "flaw")

    async def piece(*_: Any) -> BranchPiece:
        return BranchPiece(entries=ENTRIES[:1], next_offset=8)

    monkeypatch.setattr(orphans_http, "readable_chunks", flaws)
    monkeypatch.setattr(bed, "read", piece)
    _, found = await bed.ask("GET", f"{ONE}?offset=7")
    assert found == {"records": [], "next_offset": 8, "passed_over": [{"first": 7, "following": 8, "reason": "flaw"}]}
