"""Reads one partition of a region in order, following its leader, until it is told to stop.

First form of a consumer: it is given its position and keeps it itself; groups come on top of it later.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

from georelay.client.broker_connection import BrokerConnection
from georelay.errors import GeorelayError, OffsetOutOfRange, UnknownTopic
from georelay.wire.api import ApiKey, ErrorCode
from georelay.wire.batch import Record, iterate_records, split_batches
from georelay.wire.requests import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    MetadataRequest,
    MetadataRequestTopic,
)

METADATA_VERSION: Final = 9
FETCH_VERSION: Final = 11
LIST_OFFSETS_VERSION: Final = 5
RETRY_MS: Final = 50
ANSWER_SECONDS_MAX: Final = 10  # beyond what was asked to wait; a broker that is silent for longer is left
EARLIEST: Final = -2
LATEST: Final = -1
_MOVED: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.KAFKA_STORAGE_ERROR,  # of that replica: another one serves
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadBatch:
    """Records that arrived together, and where the region's log of the partition stood."""

    records: tuple[Record, ...]
    high_watermark: int


class StreamReader:
    """One partition of one region.

    Args:
        brokers: "host:port" Kafka addresses of the region.
        offset: first offset wanted; EARLIEST or LATEST are resolved at the first read.
    """

    def __init__(
        self,
        *,
        brokers: list[str],
        topic: str,
        partition: int,
        offset: int = EARLIEST,
        user: tuple[str, str] | None = None,
        max_wait_ms: int = 500,
        max_bytes: int = 1 << 20,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.reconnects = 0
        self._brokers = brokers
        self._user = user
        self._max_wait_ms = max_wait_ms
        self._max_bytes = max_bytes
        self._connection: BrokerConnection | None = None

    async def batches(self) -> AsyncIterator[ReadBatch]:
        """Yield what arrives, for ever; an empty batch when nothing came for `max_wait_ms`.

        Raises:
            OffsetOutOfRange: the position is not in the log: nothing is skipped silently.
            Unauthenticated: the credentials were refused.
        """
        while True:
            try:
                async with asyncio.timeout(ANSWER_SECONDS_MAX + self._max_wait_ms / 1000):
                    batch = await self._next()
            except (OSError, UnknownTopic):  # TimeoutError is an OSError
                batch = None
            if batch is None:
                self._drop()
                await asyncio.sleep(RETRY_MS / 1000)
                continue
            yield batch

    def close(self) -> None:
        """Close the connection."""
        self._drop()

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
            self.reconnects += 1

    async def _next(self) -> ReadBatch | None:
        if self._connection is None or not self._connection.is_open:
            self._connection = await self._dial_leader()
        if self.offset < 0:
            self.offset = await self._resolve(self._connection)
        return await self._fetch(self._connection)

    async def _dial_leader(self) -> BrokerConnection:
        """Ask any broker of the region who leads the partition and connect to it."""
        failure: Exception = UnknownTopic(f"topic '{self.topic}' has no partition {self.partition} with a leader yet")
        for address in self._brokers:
            host, _, port = address.rpartition(":")
            try:
                connection = await BrokerConnection.dial(host, int(port), user=self._user)
            except OSError as error:
                failure = error
                continue
            try:
                leader = await self._ask_leader(connection)
            except OSError as error:
                failure = error
                continue
            finally:
                connection.close()
            if leader is not None:
                return await BrokerConnection.dial(*leader, user=self._user)
        raise failure

    async def _ask_leader(self, connection: BrokerConnection) -> tuple[str, int] | None:
        request = MetadataRequest(topics=(MetadataRequestTopic(name=self.topic),), allow_auto_topic_creation=False)
        answer = await connection.request(ApiKey.METADATA, METADATA_VERSION, request)
        addresses = {broker.node_id: (broker.host, broker.port) for broker in answer.brokers}
        for topic in answer.topics:
            for row in topic.partitions:
                if row.partition_index == self.partition:
                    return addresses.get(row.leader_id)
        return None

    async def _resolve(self, connection: BrokerConnection) -> int:
        wanted = ListOffsetsPartition(partition_index=self.partition, timestamp=self.offset)
        request = ListOffsetsRequest(topics=(ListOffsetsTopic(name=self.topic, partitions=(wanted,)),))
        answer = await connection.request(ApiKey.LIST_OFFSETS, LIST_OFFSETS_VERSION, request)
        if not answer.topics or not answer.topics[0].partitions:
            raise ConnectionError("the broker answered ListOffsets without the partition asked for")
        row = answer.topics[0].partitions[0]
        if row.error_code:
            raise UnknownTopic(f"no offsets of {self.topic}/{self.partition}: error {row.error_code}")
        return int(row.offset)

    async def _fetch(self, connection: BrokerConnection) -> ReadBatch | None:
        """Return what arrived, None when the leader is elsewhere."""
        wanted = FetchPartition(partition=self.partition, fetch_offset=self.offset, partition_max_bytes=self._max_bytes)
        request = FetchRequest(
            max_wait_ms=self._max_wait_ms,
            min_bytes=1,
            max_bytes=self._max_bytes,
            topics=(FetchTopic(topic=self.topic, partitions=(wanted,)),),
        )
        answer = await connection.request(ApiKey.FETCH, FETCH_VERSION, request)
        if not answer.responses or not answer.responses[0].partitions:
            raise ConnectionError(
                f"the broker answered Fetch without the partition asked for, error {answer.error_code}"
            )
        row = answer.responses[0].partitions[0]
        if row.error_code in _MOVED:
            return None
        if row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            raise OffsetOutOfRange(f"offset {self.offset} of {self.topic}/{self.partition} is not in the log")
        if row.error_code:
            raise GeorelayError(f"fetch of {self.topic}/{self.partition} failed with Kafka error {row.error_code}")
        raw = b"".join(row.records or ())
        records = tuple(
            record
            for batch in split_batches(raw, partial_tail=True)
            for record in iterate_records(batch)
            if record.offset >= self.offset
        )
        if records:
            self.offset = records[-1].offset + 1
        return ReadBatch(records=records, high_watermark=row.high_watermark)
