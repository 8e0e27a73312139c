"""What `georelay orphans` sends and writes."""

from __future__ import annotations

import base64
import json
from typing import Any

ONE = "/v1/orphans/orders/0/2"
BRANCH = {
    "region": "us",
    "topic": "orders",
    "partition": 0,
    "epoch": 2,
    "first": 4,
    "last": 5,
    "records": 2,
    "cut_ms": 1,
    "cut_us": 1000,
    "epochs": [[1, 4]],
}


def pieces(rows: list[list[Any]], name: str, *, first: int = 4) -> Any:
    """Answer piece after piece by offset; the last one is empty."""

    def answer(query: dict[str, str], _: Any) -> tuple[int, Any]:
        asked = int(query["offset"])
        offset = first if asked < 0 else asked
        if offset - first >= len(rows):
            return 200, {name: [], "next_offset": offset}
        return 200, {name: rows[offset - first], "next_offset": offset + 1}

    return answer


def test_branches_are_listed_by_region(georelay: Any, gateway: Any) -> None:
    gateway.answers["GET /v1/orphans"] = (200, {"branches": [BRANCH]})
    ran = georelay("orphans", "list", "--region", "us", "--topic", "orders", "--gateway", gateway.url)
    assert ran.code == 0
    assert "1 from 4" in ran.out
    assert gateway.seen == [("GET /v1/orphans", {"region": "us", "topic": "orders"}, None)]
    assert json.loads(georelay("orphans", "list", "--json", "--gateway", gateway.url).out) == [BRANCH]


def test_records_are_exported_to_the_end_one_per_line(georelay: Any, gateway: Any) -> None:
    gateway.answers[f"GET {ONE}"] = pieces([[{"offset": 4, "value": "ä"}], [{"offset": 5}]], "records")
    ran = georelay("orphans", "export", "orders", "0", "2", "--gateway", gateway.url)
    assert [json.loads(line) for line in ran.out.splitlines()] == [{"offset": 4, "value": "ä"}, {"offset": 5}]
    assert "2 records up to offset 6" in ran.err
    assert [query["offset"] for _, query, _ in gateway.seen] == ["-1", "5", "6"]


def test_batches_are_exported_as_bytes(georelay: Any, gateway: Any) -> None:
    raw = [base64.b64encode(piece).decode() for piece in (b"abc", b"def")]
    gateway.answers[f"GET {ONE}"] = pieces([[raw[0]], [raw[1]]], "batches")
    ran = georelay("orphans", "export", "orders", "0", "2", "--format", "batches", "--gateway", gateway.url)
    assert (ran.code, ran.out) == (0, "abcdef")
    gateway.answers[f"GET {ONE}"] = pieces([["*"]], "batches")
    assert georelay("orphans", "export", "orders", "0", "2", "--format", "batches", "--gateway", gateway.url).code == 1


def test_a_branch_is_published_again_piece_by_piece_and_counted(georelay: Any, gateway: Any) -> None:
    gateway.answers[f"POST {ONE}/republish"] = [
        (200, {"published": 3, "left_out": 1, "next_offset": 8}),
        (200, {"published": 2, "left_out": 0, "next_offset": 10}),
        (200, {"published": 0, "left_out": 0, "next_offset": 10}),
    ]
    ran = georelay("orphans", "republish", "orders", "0", "2", "--gateway", gateway.url)
    assert (ran.code, ran.out) == (0, "5 records published, 1 left out\n")
    assert [body for _, _, body in gateway.seen] == [{"offset": -1}, {"offset": 8}, {"offset": 10}]


def test_publishing_again_that_fails_says_where_to_go_on(georelay: Any, gateway: Any) -> None:
    gateway.answers[f"POST {ONE}/republish"] = [
        (200, {"published": 3, "left_out": 0, "next_offset": 8}),
        gateway.problem(403, "ACCESS_DENIED", "not authorized for this topic"),
    ]
    ran = georelay("orphans", "republish", "orders", "0", "2", "--json", "--gateway", gateway.url)
    assert ran.code != 0
    assert json.loads(ran.out) == {"published": 3, "left_out": 0, "next_offset": 8}


def test_a_branch_is_dropped(georelay: Any, gateway: Any) -> None:
    gateway.answers[f"DELETE {ONE}"] = (200, {"dropped": 1})
    assert georelay("orphans", "drop", "orders", "0", "2", "--gateway", gateway.url).out == "1 branches dropped\n"


def test_an_answer_that_never_ends_is_refused(georelay: Any, gateway: Any) -> None:
    gateway.answers[f"GET {ONE}"] = (200, {"records": [{}], "next_offset": -5})
    assert georelay("orphans", "export", "orders", "0", "2", "--gateway", gateway.url).code == 1


def test_a_format_that_is_none_is_a_mistake_of_the_caller(georelay: Any, gateway: Any) -> None:
    ran = georelay("orphans", "export", "orders", "0", "2", "--format", "xml", "--gateway", gateway.url)
    assert (ran.code, gateway.seen) == (2, [])
