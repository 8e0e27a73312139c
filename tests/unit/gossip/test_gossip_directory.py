"""What brokers tell gateways of all brokers: pages that fit into an answer, read strictly."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping

import pytest

from georelay.fields import FieldError
from georelay.ids import BrokerId
from mesh.gossip.directory_core import (
    PAGE_BYTES_MAX,
    BrokerRow,
    answer,
    decode_page,
    encode_page,
    question,
    row_of,
)
from mesh.gossip.serf_messages import QueryResponse
from mesh.gossip.serf_queries_core import RESPONSE_BYTES_MAX
from mesh.gossip.view import MemberStatus, MemberView


def row(broker: int, **changes: object) -> BrokerRow:
    made = BrokerRow(
        broker=BrokerId(broker),
        region=f"r{broker // 1000}",
        kafka=f"10.2.{broker // 1000}.{broker % 1000}:9092",
        grpc=f"10.2.{broker // 1000}.{broker % 1000}:9090",
        admin=f"10.2.{broker // 1000}.{broker % 1000}:9096",
        rtt_s=0.03521,
    )
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]


def member(
    broker: int, status: MemberStatus = MemberStatus.ALIVE, changed: Mapping[str, str] | None = None
) -> MemberView:
    known = row(broker)
    told = {"cl": "shop", "rg": known.region, "id": str(broker), "role": "broker"}
    told |= {"kafka": known.kafka, "grpc": known.grpc, "admin": known.admin}
    return MemberView(
        name=str(broker), address=("10.2.0.1", 7946), status=status, tags={**told, **(changed or {})}, rtt_s=0.03521
    )


def read_all(rows: list[BrokerRow]) -> tuple[list[BrokerRow], int]:
    found: list[BrokerRow] = []
    after, pages = 0, 0
    while True:
        raw = encode_page(rows, after=after)
        assert len(raw) <= PAGE_BYTES_MAX
        page, after = decode_page(raw)
        found += page
        pages += 1
        if not after:
            return found, pages


def test_a_page_is_these_bytes() -> None:
    raw = encode_page([row(2001), row(3001, grpc="10.9.9.9:1", rtt_s=None, has_left=True)], after=0)
    assert raw == (
        b'{"brokers":[{"a":":9096","g":":9090","id":2001,"k":"10.2.2.1:9092","rg":"r2","us":35210},'
        b'{"a":":9096","g":"10.9.9.9:1","id":3001,"k":"10.2.3.1:9092","left":1,"rg":"r3"}],"next":0}'
    )


def test_many_brokers_come_in_pages_by_id_and_none_is_missing_or_twice() -> None:
    rows = [row(region * 1000 + number) for region in (3, 1, 2) for number in range(1, 34)]
    found, pages = read_all(rows)
    assert [each.broker for each in found] == sorted(each.broker for each in rows)
    assert found == sorted(rows, key=lambda each: each.broker)
    assert pages > 5


def test_a_page_fits_into_an_answer_of_a_member_with_the_longest_name() -> None:
    raw = encode_page([row(1000 + number) for number in range(1, 60)], after=0)
    response = QueryResponse(ltime=2**63, query_id=2**32 - 1, sender="n" * 128, is_ack=False, payload=raw)
    assert len(response.encode()) <= RESPONSE_BYTES_MAX


def test_a_broker_with_addresses_longer_than_a_page_is_left_out_and_the_others_are_not() -> None:
    long = ".".join(["x" * 60] * 4)
    rows = [row(1001), row(1002, kafka=f"a{long}:1", grpc=f"b{long}:1", admin=f"c{long}:1"), row(1003)]
    found, _ = read_all([*rows, row(1004, kafka=f"{long}:1", grpc=f"{long}:2", admin=f"{long}:3")])
    assert [each.broker for each in found] == [1001, 1002, 1003, 1004]
    longer = f"{long}.{'y' * 50}"
    rows[1] = row(1002, kafka=f"a{longer}:1", grpc=f"b{longer}:1", admin=f"c{longer}:1")
    assert [each.broker for each in read_all(rows)[0]] == [1001, 1003]


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b'{"next":0}',
        b'{"next":0,"brokers":[1]}',
        b'{"next":0,"brokers":[],"more":1}',
        b'{"next":-1,"brokers":[]}',
        b'{"next":0,"brokers":[{"id":2000,"rg":"eu","k":"a:1","g":":2","a":":3"}]}',
        b'{"next":0,"brokers":[{"id":2001,"rg":"EU","k":"a:1","g":":2","a":":3"}]}',
        b'{"next":0,"brokers":[{"id":2001,"rg":"eu","k":"a:0","g":":2","a":":3"}]}',
        b'{"next":0,"brokers":[{"id":2001,"rg":"eu","k":"a:1","g":":99999","a":":3"}]}',
        b'{"next":0,"brokers":[{"id":2001,"rg":"eu","k":"a:1","g":":2","a":":3","us":1.5}]}',
        b'{"next":0,"brokers":[]}' + b" " * PAGE_BYTES_MAX,
    ],
)
def test_what_is_no_page_is_refused_with_one_kind_of_error(raw: bytes) -> None:
    with pytest.raises(FieldError):
        decode_page(raw)


@pytest.mark.parametrize(
    "tags",
    [
        {"cl": "other"},
        {"role": "gateway"},
        {"id": "2000"},
        {"id": "x"},
        {"kafka": ""},
        {"admin": "a"},
        {"grpc": "0.0.0.0:1"},
    ],
)
def test_a_member_that_is_no_broker_of_this_mesh_is_not_told_of(tags: dict[str, str]) -> None:
    assert row_of(member(2001), mesh="shop") == row(2001)
    assert row_of(member(2001, changed=tags), mesh="shop") is None


@pytest.mark.parametrize("address", ["broker-1.example.org:9092", "[2001:db8::1]:9092", "10.0.0.1:65535"])
def test_names_and_addresses_of_both_kinds_are_told(address: str) -> None:
    assert read_all([row(1001, kafka=address)])[0] == [row(1001, kafka=address)]


def test_a_broker_that_left_one_pool_and_lives_in_the_other_is_there() -> None:
    pools = {"lan": [member(1001)], "wan": [member(1001, MemberStatus.LEFT), member(2001, MemberStatus.FAILED)]}
    raw = answer(question(0), pools, mesh="shop")
    assert raw is not None
    assert [(each.broker, each.has_left) for each in decode_page(raw)[0]] == [(1001, False), (2001, False)]


def test_a_question_that_is_none_is_not_answered() -> None:
    assert answer(b"-1", {}, mesh="shop") is None
    assert answer(b"\xff", {}, mesh="shop") is None
    assert answer(b"", {}, mesh="shop") == json.dumps({"brokers": [], "next": 0}, separators=(",", ":")).encode()
