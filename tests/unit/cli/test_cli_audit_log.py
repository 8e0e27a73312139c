"""What `georelay audit-log` asks and prints."""

from __future__ import annotations

import json
from typing import Any

DENIED = {
    "id": "1700000000000001-1001",
    "written_by": 1001,
    "timestamp": "2023-11-14T22:13:20.000001+00:00",
    "event": "access.denied",
    "principal": "User:ann",
    "host": "10.0.0.1",
    "operation": "read",
    "count": 3,
}
ADDED = {**DENIED, "event": "security.changed", "what": "user.added", "user": "bob"}
REFUSED = {**DENIED, "id": "1700000000000000-1002", "written_by": 1002, "event": "sign_in.refused", "user": "bob"}
del REFUSED["principal"]


def two_pages(query: dict[str, str], _: Any) -> tuple[int, Any]:
    if "before" not in query:
        return 200, {"region": "us", "events": [DENIED], "next": DENIED["id"], "unheard": [1003]}
    return 200, {"region": "us", "events": [REFUSED], "next": None, "unheard": [1003]}


def test_the_log_is_printed_the_newest_first_page_by_page_of_one_region(georelay: Any, gateway: Any) -> None:
    gateway.answers["GET /v1/audit/events"] = two_pages
    ran = georelay("audit-log", "--gateway", gateway.url)
    assert ran.code == 0
    lines = [line.split() for line in ran.out.splitlines()]
    assert lines[1][:5] == ["2023-11-14T22:13:20.000", "1001", "access.denied", "User:ann", "10.0.0.1"]
    assert lines[1][5:] == ["operation=read,", "count=3"] and lines[2][2:4] == ["sign_in.refused", "bob"]
    assert ran.err == "not heard, their events are missing: 1003\n"
    assert [query for _, query, _ in gateway.seen] == [
        {"limit": "50"},
        {"limit": "49", "region": "us", "before": DENIED["id"]},
    ]


def test_who_was_changed_is_told_beside_who_did_it(georelay: Any, gateway: Any) -> None:
    gateway.answers["GET /v1/audit/events"] = (200, {"events": [ADDED], "next": None, "unheard": []})
    line = georelay("audit-log", "--gateway", gateway.url).out.splitlines()[1].split()
    assert line[3] == "User:ann" and "user=bob" in line


def test_as_many_events_as_are_wanted_are_asked_for_and_printed_as_json(georelay: Any, gateway: Any) -> None:
    gateway.answers["GET /v1/audit/events"] = two_pages
    words = ("--limit", "1", "--region", "us", "--event", "access.denied", "--json")
    assert json.loads(georelay("audit-log", *words, "--gateway", gateway.url).out) == [DENIED]
    assert gateway.seen[0][1] == {"limit": "1", "region": "us", "event": "access.denied"}
    assert georelay("audit-log", "--limit", "0", "--gateway", gateway.url).code == 2
