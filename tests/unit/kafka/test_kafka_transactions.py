"""The APIs of transactions, and Produce, Fetch and ListOffsets where transactions matter, over a real socket."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from georelay.errors import GeorelayError, InvalidTransactionState, PolicyViolation, UnknownTopic
from georelay.ids import Offset, RegionNumber, StreamKey, brokers_own
from georelay.wire.api import ApiKey, ErrorCode
from georelay.wire.batch import build_batch
from georelay.wire.control_batch import build_marker
from georelay.wire.requests import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    InitProducerIdRequest,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from georelay.wire.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    DescribeTransactionsRequest,
    EndTxnRequest,
    ListTransactionsRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from region.coordination.part import Part
from region.topics.transaction_table_core import AbortedTransaction
from region.transactions.part import TransactionsPart
from region.transactions.transaction_core import TransactionEnd


class Participants:
    """Topic "t" is here; "far" has another home."""

    def resolve(self, topic: str, partition: int) -> StreamKey:
        if topic == "far":
            raise PolicyViolation("its home is another region")
        if topic != "t":
            raise UnknownTopic("no such topic")
        return StreamKey(bytes(16), RegionNumber(0), partition)

    def name_of(self, key: StreamKey) -> str | None:
        return "t"

    async def is_gone(self, key: StreamKey) -> bool:
        return False

    async def end_partition(self, key: StreamKey, end: TransactionEnd) -> None:
        return None

    async def end_group(self, group_id: str, end: TransactionEnd) -> None:
        return None

    async def allocate_producer_id(self) -> int:
        return 77


class HeldOffsets:
    """The GROUPS part as the handler asks it."""

    part = Part.GROUPS

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []

    async def call(self, operation: str, body: dict[str, Any], *, principal: str) -> dict[str, Any]:
        self.asked.append((operation, body))
        rows = [{"topic": row["topic"], "partition": row["partition"], "error_code": 0} for row in body["offsets"]]
        return {"error_code": 0, "error": "NONE", "partitions": rows}

    def elected(self) -> None:
        pass

    def deposed(self) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.fixture
def coordinated(bed: Any) -> Any:
    """A bed whose broker is the coordinator of everything."""
    coordinators = bed.services.coordinators
    coordinators.register(Part.TRANSACTIONS, lambda log: TransactionsPart(log, Participants()))
    bed.groups = HeldOffsets()
    coordinators.register(Part.GROUPS, lambda _: bed.groups)
    yield bed
    for log in coordinators.logs:
        log.depose()


def added(partition: int = 0, topic: str = "t", epoch: int = 0) -> AddPartitionsToTxnRequest:
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="x",
        v3_and_below_producer_id=77,
        v3_and_below_producer_epoch=epoch,
        v3_and_below_topics=[AddPartitionsToTxnTopic(name=topic, partitions=[partition])],
    )


async def init(client: Any, version: int = 4, **fields: Any) -> Any:
    request = InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=1000, **fields)
    return await client.call(request, ApiKey.INIT_PRODUCER_ID, version)


def codes(response: Any) -> list[int]:
    return [
        row.partition_error_code
        for topic in response.results_by_topic_v3_and_below
        for row in topic.results_by_partition
    ]


async def test_a_transaction_goes_through_its_states(coordinated: Any) -> None:
    client = await coordinated.client()
    owner = await init(client)
    assert (owner.error_code, owner.producer_id, owner.producer_epoch) == (0, 77, 0)
    assert codes(await client.call(added(), ApiKey.ADD_PARTITIONS_TO_TXN, 3)) == [0]
    described = await client.call(
        DescribeTransactionsRequest(transactional_ids=["x", "nobody"]), ApiKey.DESCRIBE_TRANSACTIONS, 0
    )
    rows = described.transaction_states
    assert (rows[0].transaction_state, rows[0].topics[0].topic) == ("Ongoing", "t")
    assert rows[1].error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    end = EndTxnRequest(transactional_id="x", producer_id=77, producer_epoch=0, committed=True)
    assert (await client.call(end, ApiKey.END_TXN, 3)).error_code == 0
    listed = await client.call(ListTransactionsRequest(state_filters=["Nonsense"]), ApiKey.LIST_TRANSACTIONS, 0)
    assert (list(listed.unknown_state_filters), list(listed.transaction_states)) == (["Nonsense"], [])
    listed = await client.call(ListTransactionsRequest(), ApiKey.LIST_TRANSACTIONS, 0)
    assert [row.transactional_id for row in listed.transaction_states] == ["x"]


@pytest.mark.parametrize(("version", "code"), [(1, ErrorCode.INVALID_PRODUCER_EPOCH), (3, ErrorCode.PRODUCER_FENCED)])
async def test_a_fenced_producer_is_told_so_in_the_words_of_its_version(
    coordinated: Any, version: int, code: int
) -> None:
    client = await coordinated.client()
    await init(client)
    await init(client)
    assert codes(await client.call(added(epoch=0), ApiKey.ADD_PARTITIONS_TO_TXN, version)) == [code]


async def test_a_partition_of_another_region_is_refused_and_the_others_not_attempted(coordinated: Any) -> None:
    client = await coordinated.client()
    await init(client)
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="x",
        v3_and_below_producer_id=77,
        v3_and_below_producer_epoch=0,
        v3_and_below_topics=[
            AddPartitionsToTxnTopic(name="t", partitions=[0]),
            AddPartitionsToTxnTopic(name="far", partitions=[0]),
        ],
    )
    assert codes(await client.call(request, ApiKey.ADD_PARTITIONS_TO_TXN, 3)) == [
        ErrorCode.OPERATION_NOT_ATTEMPTED,
        ErrorCode.POLICY_VIOLATION,
    ]


async def test_a_broker_that_is_not_the_coordinator_says_so(coordinated: Any) -> None:
    for log in coordinated.services.coordinators.logs:
        log.depose(leader=1002)
    client = await coordinated.client()
    assert (await init(client)).error_code == ErrorCode.NOT_COORDINATOR


async def test_offsets_are_held_with_the_number_of_the_open_transaction(coordinated: Any) -> None:
    client = await coordinated.client()
    await init(client)
    commit = TxnOffsetCommitRequest(
        transactional_id="x",
        group_id="g",
        producer_id=77,
        producer_epoch=0,
        generation_id=3,
        member_id="m",
        topics=[
            TxnOffsetCommitRequestTopic(
                name="t", partitions=[TxnOffsetCommitRequestPartition(partition_index=1, committed_offset=9)]
            )
        ],
    )
    refused = await client.call(commit, ApiKey.TXN_OFFSET_COMMIT, 3)
    assert refused.topics[0].partitions[0].error_code == ErrorCode.INVALID_TXN_STATE
    request = AddOffsetsToTxnRequest(transactional_id="x", producer_id=77, producer_epoch=0, group_id="g")
    assert (await client.call(request, ApiKey.ADD_OFFSETS_TO_TXN, 3)).error_code == 0
    held = await client.call(commit, ApiKey.TXN_OFFSET_COMMIT, 3)
    assert held.topics[0].partitions[0].error_code == 0
    ((operation, body),) = coordinated.groups.asked
    assert operation == "txn_commit"
    assert (body["group"], body["number"], body["generation"], body["offsets"][0]["offset"]) == ("g", 1, 3, 9)


# --- Produce --------------------------------------------------------------------------------------


def transactional_batch() -> bytes:
    return build_batch(
        [(b"v", None, ())],
        timestamps_ms=1,
        producer_id=77,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=True,
    )


def produce(raw: bytes, transactional_id: str | None) -> ProduceRequest:
    data = TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=raw)])
    return ProduceRequest(transactional_id=transactional_id, acks=-1, timeout_ms=5_000, topic_data=[data])


async def test_a_transactional_batch_is_published_with_its_transactional_id(bed: Any) -> None:
    bed.cluster.add_topic("t")
    client = await bed.client()
    answer = await client.call(produce(transactional_batch(), "x"), ApiKey.PRODUCE, 9)
    assert answer.responses[0].partition_responses[0].error_code == 0
    assert [publish.transactional_id for _, _, publish in bed.cluster.published] == ["x"]


async def test_a_transactional_batch_without_a_transactional_id_is_refused(bed: Any) -> None:
    bed.cluster.add_topic("t")
    client = await bed.client()
    answer = await client.call(produce(transactional_batch(), None), ApiKey.PRODUCE, 9)
    assert answer.responses[0].partition_responses[0].error_code != 0
    assert bed.cluster.published == []


@pytest.mark.parametrize("is_transactional", [False, True])
async def test_a_producer_id_of_the_brokers_is_refused_from_a_client(bed: Any, is_transactional: bool) -> None:
    bed.cluster.add_topic("t")
    client = await bed.client()
    raw = build_batch(
        [(b"v", None, ())],
        timestamps_ms=1,
        producer_id=brokers_own(77),
        producer_epoch=0,
        base_sequence=0,
        is_transactional=is_transactional,
    )
    answer = await client.call(produce(raw, "x" if is_transactional else None), ApiKey.PRODUCE, 9)
    row = answer.responses[0].partition_responses[0]
    assert row.error_code == ErrorCode.POLICY_VIOLATION
    assert "brokers' own" in row.error_message
    assert bed.cluster.published == []


async def test_a_marker_from_a_client_is_refused(bed: Any) -> None:
    bed.cluster.add_topic("t")
    client = await bed.client()
    raw = build_marker(producer_id=77, producer_epoch=0, is_commit=True, coordinator_epoch=1, timestamp_ms=1)
    answer = await client.call(produce(raw, "x"), ApiKey.PRODUCE, 9)
    assert answer.responses[0].partition_responses[0].error_code != 0
    assert bed.cluster.published == []


async def test_a_batch_after_the_end_of_its_transaction_has_the_code_of_that(bed: Any) -> None:
    bed.cluster.add_topic("t")
    refusal: GeorelayError = InvalidTransactionState("ended")
    bed.cluster.publish_errors.append(refusal)
    client = await bed.client()
    answer = await client.call(produce(transactional_batch(), "x"), ApiKey.PRODUCE, 9)
    assert answer.responses[0].partition_responses[0].error_code == ErrorCode.INVALID_TXN_STATE


# --- Fetch and ListOffsets ------------------------------------------------------------------------


def fetch(*, isolation: int, offset: int = 0, max_wait_ms: int = 0) -> FetchRequest:
    wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=2**20)
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=2**20,
        isolation_level=isolation,
        topics=[FetchTopic(topic="t", partitions=[wanted])],
    )


@pytest.mark.parametrize("version", [4, 11, 12])
async def test_a_reader_of_committed_records_stops_at_the_last_stable_offset(bed: Any, version: int) -> None:
    bed.cluster.add_topic("t")
    stream = bed.cluster.streams["t", 0]
    for value in (b"1", b"2", b"3"):
        stream.add(value)
    stream.unstable = Offset(2)
    stream.aborted = [AbortedTransaction(77, 0, Offset(1), Offset(1), Offset(2))]
    client = await bed.client()
    answer = (await client.call(fetch(isolation=1), ApiKey.FETCH, version)).responses[0].partitions[0]
    assert (answer.high_watermark, answer.last_stable_offset) == (3, 2)
    assert [(row.producer_id, row.first_offset) for row in answer.aborted_transactions] == [(77, 1)]
    everything = (await client.call(fetch(isolation=0), ApiKey.FETCH, version)).responses[0].partitions[0]
    assert [len(b"".join(row.records)) > 0 for row in (answer, everything)] == [True, True]
    assert len(b"".join(everything.records)) > len(b"".join(answer.records))
    assert not everything.aborted_transactions


async def test_a_waiting_reader_of_committed_records_is_woken_when_a_transaction_ends(bed: Any) -> None:
    bed.cluster.add_topic("t")
    stream = bed.cluster.streams["t", 0]
    stream.unstable = Offset(0)
    stream.add(b"1")
    client = await bed.client()
    client.send(fetch(isolation=1, max_wait_ms=5_000), 11)
    async with asyncio.timeout(5):
        while not stream.waiter_count:
            await asyncio.sleep(0.001)
    stream.unstable = None
    stream.wake()
    _, answer = await client.receive(ApiKey.FETCH, 11)
    assert answer.responses[0].partitions[0].records


async def test_the_end_for_a_reader_of_committed_records_is_the_last_stable_offset(bed: Any) -> None:
    bed.cluster.add_topic("t")
    stream = bed.cluster.streams["t", 0]
    stream.add(b"1")
    stream.add(b"2")
    stream.unstable = Offset(1)
    client = await bed.client()

    async def ask(timestamp: int, isolation: int) -> int:
        wanted = ListOffsetsTopic(name="t", partitions=[ListOffsetsPartition(partition_index=0, timestamp=timestamp)])
        request = ListOffsetsRequest(replica_id=-1, isolation_level=isolation, topics=[wanted])
        answer = await client.call(request, ApiKey.LIST_OFFSETS, 7)
        return int(answer.topics[0].partitions[0].offset)

    assert [await ask(-1, isolation) for isolation in (0, 1)] == [2, 1]
    stream.unstable = Offset(0)
    assert [await ask(0, isolation) for isolation in (0, 1)] == [0, -1]


@pytest.mark.parametrize("timestamp", [-1, 0, -3])
async def test_the_end_is_not_told_while_it_is_not_known_which_records_are_decided(bed: Any, timestamp: int) -> None:
    bed.cluster.add_topic("t")
    stream = bed.cluster.streams["t", 0]
    stream.add(b"1")
    stream.unstable, stream.knows_stable = Offset(0), False
    client = await bed.client()

    async def ask(isolation: int) -> int:
        wanted = ListOffsetsTopic(name="t", partitions=[ListOffsetsPartition(partition_index=0, timestamp=timestamp)])
        request = ListOffsetsRequest(replica_id=-1, isolation_level=isolation, topics=[wanted])
        return int((await client.call(request, ApiKey.LIST_OFFSETS, 7)).topics[0].partitions[0].error_code)

    assert [await ask(isolation) for isolation in (0, 1)] == [0, ErrorCode.LEADER_NOT_AVAILABLE]
