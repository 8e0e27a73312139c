"""Messages of a socket: what is read of what clients send, mistakes by their field, and golden bytes of binary ones."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from georelay.durability import Durability
from georelay.errors import BadRequest
from mesh.replication.level import DEADLINE_MS_MAX, REGION_LEVEL, AskedLevel
from region.api.reading import EARLIEST, LATEST
from region.api.socket_messages import (
    ID_MAX,
    GiveCredit,
    Mistake,
    PublishBatch,
    PublishRecords,
    Subscribe,
    Unsubscribe,
    decode_deliver_batch,
    deliver_batch,
    encode_publish_batch,
    parse_message,
    records_message,
    starts,
)

PUBLISH_HEX = "010000002a020000138800000003066f7264657273c0ffee"
DELIVER_HEX = "0200000007000000030000000000000011c0ffee"


def said(item: Any) -> Any:
    return parse_message(json.dumps(item).encode(), is_text=True)


def subscribe(**fields: Any) -> Any:
    return said({"type": "subscribe", "id": 1, "topic": "orders", "credit_bytes": 100} | fields)


def test_binary_messages_have_these_bytes() -> None:
    level = AskedLevel(durability=Durability.geo(2), deadline_ms=5_000)
    command = PublishBatch(id=42, topic="orders", partition=3, batch=b"\xc0\xff\xee", level=level)
    assert encode_publish_batch(command).hex() == PUBLISH_HEX
    assert parse_message(bytes.fromhex(PUBLISH_HEX), is_text=False) == command
    assert deliver_batch(7, 3, 17, b"\xc0\xff\xee").hex() == DELIVER_HEX
    assert decode_deliver_batch(bytes.fromhex(DELIVER_HEX)) == (7, 3, 17, b"\xc0\xff\xee")


def test_text_messages_are_read_as_they_are_documented() -> None:
    assert subscribe() == Subscribe(id=1, topic="orders", partitions=(), positions=LATEST, credit_bytes=100)
    resumed = subscribe(**{"from": {"3": 17}, "batches": True})
    assert (resumed.positions, resumed.batches) == ({3: 17}, True)
    assert subscribe(**{"from": "earliest", "partitions": [2, 0, 2]}).partitions == (0, 2)
    assert said({"type": "credit", "id": 1, "bytes": 5}) == GiveCredit(1, 5)
    assert said({"type": "unsubscribe", "id": 1}) == Unsubscribe(1)
    published = said({"type": "publish", "id": 2, "topic": "t", "records": {"value": "v"}, "durability": "geo:2"})
    assert isinstance(published, PublishRecords)
    assert ([record.value for record, _ in published.records], published.level.is_geo) == ([b"v"], True)


@pytest.mark.parametrize(
    ("item", "found_id", "says"),
    [
        ([], None, "a JSON object"),
        ({"type": "publsh", "id": 3}, 3, "message.type: give one of credit, publish, subscribe, unsubscribe"),
        ({"type": "credit", "bytes": 1}, None, "message.id"),
        ({"type": "credit", "id": 3}, 3, "message.bytes"),
        ({"type": "credit", "id": 3, "bytes": 0}, 3, "message.bytes"),
        ({"type": "credit", "id": True, "bytes": 1}, None, "message.id"),
        ({"type": "credit", "id": 3, "bytes": 1, "topic": "t"}, 3, "message.topic: unknown field of credit"),
        ({"type": "subscribe", "id": 3, "topic": "t"}, 3, "message.credit_bytes"),
        ({"type": "subscribe", "id": 3, "credit_bytes": 1}, 3, "message.topic"),
        ({"type": "publish", "id": 3, "topic": "t"}, 3, "message.records"),
        ({"type": "publish", "id": 3, "topic": "t", "records": 1}, 3, "message.records must be one record"),
        ({"type": "publish", "id": 3, "topic": "t", "records": {}, "durability": 1}, 3, "message.durability"),
    ],
)
def test_a_mistake_is_named_with_its_field_and_its_id(item: Any, found_id: int | None, says: str) -> None:
    mistake = said(item)
    assert isinstance(mistake, Mistake)
    assert (mistake.id, says in str(mistake.error)) == (found_id, True), str(mistake.error)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"from": "now"}, "message.from: give"),
        ({"from": {}}, "message.from: name 1 to"),
        ({"from": {"0": 1}, "epochs": {"1": 1}}, "message.epochs: give those of next offsets"),
        ({"epochs": {"0": 1}}, "message.epochs: give those of next offsets"),
        ({"from": {"0": 1}, "epochs": {"0": 0}}, "message.epochs.0: must be a number in 1.."),
        ({"from": {"x": 1}}, "'x' is no partition"),
        ({"from": {"0": -1}}, "message.from.0"),
        ({"from": {"0": True}}, "message.from.0"),
        ({"from": {"1": 3}, "partitions": [0]}, "does not"),
        ({"partitions": [-1]}, "message.partitions"),
        ({"partitions": "0"}, "message.partitions"),
        ({"batches": 1}, "message.batches"),
    ],
)
def test_a_subscription_that_means_nothing_is_refused(fields: Any, says: str) -> None:
    mistake = subscribe(**fields)
    assert isinstance(mistake, Mistake), mistake
    assert says in str(mistake.error)


def test_where_partitions_begin_is_their_offset_or_the_word_for_all() -> None:
    assert starts(subscribe(), 2) == {0: LATEST, 1: LATEST}
    assert starts(subscribe(partitions=[1], **{"from": "earliest"}), 2) == {1: EARLIEST}
    assert starts(subscribe(**{"from": {"1": 5}}), 2) == {1: 5}
    assert starts(subscribe(partitions=[0, 1], **{"from": {"1": 5}}), 2) == {0: EARLIEST, 1: 5}
    with pytest.raises(BadRequest, match=r"partitions 0\.\.1, not 2"):
        starts(subscribe(partitions=[2]), 2)
    with pytest.raises(BadRequest, match="name up to 64"):
        starts(subscribe(), 65)


@given(raw=st.binary(max_size=80), is_text=st.booleans())
def test_any_bytes_are_a_command_or_a_mistake(raw: bytes, is_text: bool) -> None:
    parse_message(raw, is_text=is_text)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda child: st.lists(child, max_size=3) | st.dictionaries(st.text(max_size=5), child, max_size=3),
    max_leaves=6,
)


@given(
    kind=st.sampled_from(["subscribe", "credit", "unsubscribe", "publish"]),
    fields=st.dictionaries(
        st.sampled_from(["id", "topic", "partitions", "from", "credit_bytes", "batches", "bytes", "records"]), _JSON
    ),
)
def test_any_object_is_a_command_or_a_mistake(kind: str, fields: dict[str, Any]) -> None:
    said(fields | {"type": kind})


@given(
    command=st.builds(
        PublishBatch,
        id=st.integers(0, ID_MAX),
        topic=st.text(min_size=1, max_size=60),
        partition=st.integers(0, 999),
        batch=st.binary(min_size=1, max_size=40),
        level=st.just(REGION_LEVEL)
        | st.builds(
            AskedLevel,
            durability=st.sampled_from(["geo:2", "geo:3", "geo:majority", "geo:all"]).map(Durability.parse),
            deadline_ms=st.integers(1, DEADLINE_MS_MAX),
        ),
    )
)
def test_a_publish_of_a_batch_comes_back_as_it_went(command: PublishBatch) -> None:
    assert parse_message(encode_publish_batch(command), is_text=False) == command


@given(st.integers(0, ID_MAX), st.integers(0, 999), st.integers(0, 2**63 - 1), st.binary(max_size=40))
def test_a_delivered_batch_comes_back_as_it_went(number: int, partition: int, following: int, batch: bytes) -> None:
    assert decode_deliver_batch(deliver_batch(number, partition, following, batch)) == (
        number,
        partition,
        following,
        batch,
    )


def test_records_that_are_json_already_stand_in_a_message_as_they_are() -> None:
    text = records_message(
        1, [b'{"offset":0}'], size_bytes=12, positions={"0": 1}, epochs={"0": 3}, passed_over=[b"{}"]
    )
    assert text == (
        b'{"type":"records","id":1,"size_bytes":12,"positions":{"0":1},"epochs":{"0":3},"records":[{"offset":0}],'
        b'"passed_over":[{}]}'
    )
