"""The bytes of the Serf layer: every message, written down by hand, for ever."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mesh.gossip import query_payloads as p
from mesh.gossip import serf_messages as m
from mesh.gossip.query_core import names_filter, tag_filter
from mesh.gossip.tags import decode_tags, encode_tags

A, B = ("10.0.0.1", 7946), ("10.0.0.2", 7946)
MESSAGES: dict[str, m.SerfMessage] = {
    "Leave": m.LeaveIntent(ltime=5, name="b", prune=True),
    "Join": m.JoinIntent(ltime=256, name="b"),
    "UserEvent": m.UserEvent(ltime=7, name="deploy", payload=b"v7"),
    "Query": m.Query(
        ltime=9,
        query_id=0x65000000,
        address=A,
        source="a",
        filters=(names_filter(["b", "c"]), tag_filter("r", "x")),
        flags=1,
        relay_factor=2,
        timeout_ns=1_000_000_000,
        name="q",
        payload=b"",
    ),
    "QueryResponse": m.QueryResponse(ltime=9, query_id=42, sender="b", is_ack=False, payload=b"ok"),
    "QueryAck": m.QueryResponse(ltime=9, query_id=42, sender="b", is_ack=True),
    "Relay": m.Relay(address=A, name="a", body=b"\x05\x80"),
    "UserState": m.UserState(
        ltime=10,
        statuses={"a": 1, "b": 4},
        left=("b",),
        event_ltime=8,
        events=[(7, [("e", b"p")])],
        query_ltime=9,
    ),
}
PAYLOADS: dict[str, p.KeyRequest | p.KeyResponse | p.ConflictResponse] = {
    "KeyRequest": p.KeyRequest(key=b"k" * 16),
    "KeyDone": p.KeyResponse(result=True),
    "KeyList": p.KeyResponse(result=True, keys=("a2V5", "b2xk"), primary="a2V5"),
    "Conflict": p.ConflictResponse(name="b", address=B, tags={"t": "v"}, status=1),
}


def read_golden() -> dict[str, bytes]:
    found = {}
    for line in Path(__file__).with_name("serf.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            name, rest = line.split(maxsplit=1)
            tokens = re.findall(r'"([^"]*)"|([0-9a-f]{2})', rest)
            found[name] = b"".join(text.encode() if text else bytes.fromhex(digits) for text, digits in tokens)
    return found


GOLDEN = read_golden()


def test_every_golden_line_is_looked_at() -> None:
    assert set(GOLDEN) == {*MESSAGES, *PAYLOADS, "ConflictUnknown", "Tags", "GoUserState"}


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_is_written_as_its_golden_bytes_and_read_back(name: str) -> None:
    assert MESSAGES[name].encode().hex() == GOLDEN[name].hex()
    assert m.decode(GOLDEN[name]) == MESSAGES[name]


@pytest.mark.parametrize("name", PAYLOADS)
def test_a_payload_is_written_as_its_golden_bytes_and_read_back(name: str) -> None:
    payload = PAYLOADS[name]
    assert payload.encode().hex() == GOLDEN[name].hex()
    assert type(payload).decode(GOLDEN[name]) == payload


def test_an_unknown_name_is_answered_with_nil() -> None:
    assert GOLDEN["ConflictUnknown"] == p.UNKNOWN_NAME
    assert p.ConflictResponse.decode(p.UNKNOWN_NAME) is None


def test_tags_are_a_map_behind_ff_and_the_old_form_is_the_role() -> None:
    tags = {"role": "broker", "cl": "shop"}
    assert encode_tags(tags).hex() == GOLDEN["Tags"].hex()
    assert decode_tags(GOLDEN["Tags"]) == tags
    assert decode_tags(b"web") == {"role": "web"}
    assert decode_tags(b"") == {}


def test_a_user_state_as_go_writes_it_is_read() -> None:
    state = m.decode(GOLDEN["GoUserState"])
    assert state == m.UserState(
        ltime=10, statuses={"a": 1}, left=(), event_ltime=8, events=[(7, [("e", b"")])], query_ltime=9
    )
