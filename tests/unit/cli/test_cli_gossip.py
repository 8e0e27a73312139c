"""`georelay members|rtt|keys|event|query|force-leave`, against a fake gateway."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

MEMBERS = {
    "pool": "wan",
    "self": "1001.us",
    "members": [
        {
            "name": "1001.us",
            "address": "10.0.0.1:7947",
            "status": "alive",
            "rtt_ms": 0.0,
            "tags": {"rg": "us", "role": "broker", "ready": "1", "cl": "shop"},
        },
        {
            "name": "2001.eu",
            "address": "10.0.1.1:7947",
            "status": "failed",
            "rtt_ms": None,
            "tags": {"rg": "eu", "role": "broker", "ready": "0", "stalled": "stalled", "rack": "7"},
        },
    ],
}
DONE = {"key": "abc", "members": 3, "answered": 3, "done": 3, "faults": {}, "keys": []}


def test_members_are_listed_with_what_is_wrong_with_them(georelay: Any, gateway: Any) -> None:
    gateway.answers["GET /v1/gossip/members"] = (200, MEMBERS)
    ran = georelay("members", "--pool", "wan", "--region", "us", "--gateway", gateway.url)
    assert [line.split() for line in ran.out.splitlines()] == [
        ["member", "status", "address", "rtt", "ms", "region", "role", "note"],
        ["1001.us", "alive", "10.0.0.1:7947", "0.00", "us", "broker", "asked"],
        ["2001.eu", "failed", "10.0.1.1:7947", "eu", "broker", "not", "ready,", "main", "loop", "stalled,", "rack=7"],
    ]
    assert gateway.seen == [("GET /v1/gossip/members", {"pool": "wan", "region": "us"}, None)]
    assert json.loads(georelay("members", "--json", "--gateway", gateway.url).out) == MEMBERS


def test_members_of_all_regions_are_listed_unless_a_region_or_a_pool_is_named(georelay: Any, gateway: Any) -> None:
    gateway.answers["GET /v1/gossip/members"] = (200, MEMBERS)
    for words in ((), ("--region", "eu"), ("--pool", "lan")):
        georelay("members", *words, "--gateway", gateway.url)
    assert [query for _, query, _ in gateway.seen] == [{"pool": "wan"}, {"region": "eu"}, {"pool": "lan"}]


def test_where_there_is_no_pool_of_all_brokers_members_of_the_one_that_there_is_are_listed(
    georelay: Any, gateway: Any
) -> None:
    refused = (400, {"code": "BAD_REQUEST", "detail": "pool: this broker is in lan, not in 'wan'", "status": 400})
    gateway.answers["GET /v1/gossip/members"] = [refused, (200, MEMBERS)]
    assert "2001.eu" in georelay("members", "--gateway", gateway.url).out
    assert gateway.seen[1][1] == {}


def test_a_round_trip_that_nobody_knows_is_an_error(georelay: Any, gateway: Any) -> None:
    gateway.answers["GET /v1/gossip/rtt"] = [
        (200, {"from": "1001", "to": "1002", "rtt_ms": 1.5}),
        (200, {"from": "1001", "to": "1003", "rtt_ms": None}),
    ]
    assert georelay("rtt", "1002", "--gateway", gateway.url).out == "1001 - 1002: 1.500 ms (estimated)\n"
    ran = georelay("rtt", "1003", "1001", "--gateway", gateway.url)
    assert (ran.code, ran.err) == (1, "georelay: nothing is known yet of the way 1001 - 1003\n")
    assert gateway.seen[1][1] == {"to": "1003", "from": "1001"}


def test_an_event_and_a_query_carry_what_was_said(georelay: Any, gateway: Any) -> None:
    gateway.answers["POST /v1/gossip/events"] = (202, {"name": "deploy", "pool": "lan"})
    gateway.answers["POST /v1/gossip/queries"] = (200, {"acknowledged": ["a", "b"], "answers": {"b": "up"}})
    assert "deploy is on its way" in georelay("event", "deploy", "7", "--coalesce", "--gateway", gateway.url).out
    asked = ("query", "load", "x", "--timeout", "1.5", "--member", "a", "--member", "b", "--tag", "rg=^us$")
    ran = georelay(*asked, "--gateway", gateway.url)
    assert [line.split() for line in ran.out.splitlines()] == [["member", "answer"], ["a"], ["b", "up"]]
    assert [body for _, _, body in gateway.seen] == [
        {"name": "deploy", "payload": "7", "coalesce": True},
        {"name": "load", "payload": "x", "timeout_ms": 1500, "members": ["a", "b"], "tags": {"rg": "^us$"}},
    ]


def test_a_tag_filter_without_an_expression_is_a_wrong_call(georelay: Any, gateway: Any) -> None:
    assert georelay("query", "load", "--tag", "rg", "--gateway", gateway.url).code == 2
    assert gateway.seen == []


def test_force_leave_names_the_member(georelay: Any, gateway: Any) -> None:
    gateway.answers["POST /v1/gossip/force-leave"] = (202, {"member": "1002", "pool": "lan"})
    ran = georelay("force-leave", "1002", "--prune", "--gateway", gateway.url)
    assert ran.out == "1002 has left the pool lan, forgotten\n"
    assert gateway.seen[0][2] == {"member": "1002", "prune": True}


def test_a_keyring_is_made_for_the_owner_only_and_never_replaced(georelay: Any, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    assert georelay("keys", "generate", "--file", str(path)).code == 0
    (key,) = json.loads(path.read_text())
    assert len(base64.b64decode(key)) == 32
    assert path.stat().st_mode & 0o777 == 0o600
    again = georelay("keys", "generate", "--file", str(path))
    assert again.code == 1
    assert json.loads(path.read_text()) == [key]


def test_keys_are_listed_by_fingerprint_and_installed_from_a_file(georelay: Any, gateway: Any, tmp_path: Path) -> None:
    row = {"fingerprint": "abc123", "members": 2, "primary_of": 1}
    gateway.answers["GET /v1/gossip/keys"] = (200, {**DONE, "keys": [row]})
    gateway.answers["POST /v1/gossip/keys"] = (200, DONE)
    ran = georelay("keys", "list", "--gateway", gateway.url)
    assert ran.out.splitlines()[1].split() == ["abc123", "2", "of", "3", "1"]
    georelay("keys", "generate", "--file", str(tmp_path / "new"))
    ran = georelay("keys", "install", "--file", str(tmp_path / "new"), "--gateway", gateway.url)
    assert ran.out == "install abc: 3 of 3 members\n"
    (key,) = json.loads((tmp_path / "new").read_text())
    assert gateway.seen[-1][2] == {"action": "install", "key": key}
    assert key not in ran.out + ran.err
    for action in ("use", "remove"):
        georelay("keys", action, "abc123", "--gateway", gateway.url)
        assert gateway.seen[-1][2] == {"action": action, "key": "abc123"}


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ({**DONE, "done": 2, "faults": {"1002": "no"}}, "1002: no"),
        ({**DONE, "done": 2, "answered": 2}, "1 members did not answer"),
    ],
)
def test_what_not_every_member_did_is_not_done(georelay: Any, gateway: Any, answer: Any, says: str) -> None:
    gateway.answers["POST /v1/gossip/keys"] = (200, answer)
    ran = georelay("keys", "use", "abc123", "--gateway", gateway.url)
    assert (ran.code, says in ran.err) == (1, True)


def test_a_file_that_is_no_keyring_is_refused(georelay: Any, gateway: Any, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("{}")
    ran = georelay("keys", "install", "--file", str(tmp_path / "keys"), "--gateway", gateway.url)
    assert ran.code == 1
    assert "not a keyring file" in ran.err
    assert gateway.seen == []
