"""Transactions of a producer: records of several partitions, and positions of a group, all or nothing.

    async with producer.transaction() as transaction:
        await producer.send("orders", b"...")
        await transaction.commit_positions(consumer)

Rule 1: leaving the block commits; leaving it with an error, or when a record could not be stored, aborts.
Rule 2: after an abort the producer takes its next epoch: what may still be on its way from before is refused.
Rule 3: whether a commit that was not answered took place is asked until it is known: ending twice is harmless.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Final, Protocol, Self

from georelay._pb import streams_pb2 as pb
from georelay.errors import BadRequest, GeorelayError, OutcomeUnknown
from georelay.region_map import RegionMap

if TYPE_CHECKING:
    from georelay.producer import Producer, ProducerIdentity

ADD_TIMEOUT_S: Final = 30.0
END_TIMEOUT_S: Final = 60.0


class Positions(Protocol):
    """A consumer whose positions can be part of a transaction (georelay.consumer.Consumer)."""

    @property
    def group_id(self) -> str:
        """Its group."""

    def group_offsets(self) -> tuple[list[pb.CommittedOffset], str, int, str]:
        """Return what it has processed, and its member id, generation and instance id."""


class Transaction:
    """Made by `Producer.transaction`."""

    def __init__(self, producer: Producer, region: RegionMap) -> None:
        self._producer = producer
        self._region = region
        self._identity: ProducerIdentity | None = None
        self._included: set[tuple[str, int]] = set()
        self._lock = asyncio.Lock()
        self._failed_before = 0
        self._touched = False

    async def __aenter__(self) -> Self:
        self._identity = await self._producer.identity()
        self._failed_before = self._producer.counters.records_failed
        self._producer.enter(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._producer.flush()
            lost = self._producer.counters.records_failed - self._failed_before
            await self._end(commit=error is None and not lost)
            if error is None and lost:
                raise OutcomeUnknown(f"{lost} records could not be stored; the transaction was aborted")
        finally:
            self._producer.enter(None)

    async def include(self, topic: str, partition: int) -> None:
        """Make a partition part of the transaction; the producer does it before its first record there."""
        if (topic, partition) in self._included:
            return
        async with self._lock:
            if (topic, partition) in self._included:
                return
            request = self._request()
            request.partitions.append(pb.StreamPartition(stream=topic, partition=partition))
            await self._add(request)
            self._included.add((topic, partition))

    async def commit_positions(
        self, consumer: Positions | str, offsets: Mapping[tuple[str, int], int] | None = None
    ) -> None:
        """Commit a group's positions together with the transaction.

        Args:
            consumer: a consumer of a group, whose processed positions are taken; or a group's name with `offsets`
                ((topic, partition) -> next offset), which is not checked against any member.

        Raises:
            Fenced: the consumer is no member any more. GeorelayError.
        """
        request = self._request()
        if isinstance(consumer, str):
            request.group, request.generation = consumer, -1
            for (topic, partition), offset in (offsets or {}).items():
                request.offsets.append(pb.CommittedOffset(topic=topic, partition=partition, offset=offset, epoch=-1))
        else:
            rows, request.member_id, request.generation, request.instance_id = consumer.group_offsets()
            request.group = consumer.group_id
            request.offsets.extend(rows)
        if request.offsets:
            await self._add(request)

    def _request(self) -> pb.AddToTransactionRequest:
        if self._identity is None:
            raise BadRequest("the transaction has not begun: use `async with`")
        return pb.AddToTransactionRequest(
            transactional_id=self._producer.settings.transactional_id,
            producer_id=self._identity.producer_id,
            producer_epoch=self._identity.producer_epoch,
        )

    async def _add(self, request: pb.AddToTransactionRequest) -> None:
        self._touched = True
        await self._region.ask("AddToTransaction", request, pb.AddToTransactionResponse, timeout_s=ADD_TIMEOUT_S)

    async def _end(self, *, commit: bool) -> None:
        if not self._touched or self._identity is None:
            return
        request = pb.EndTransactionRequest(
            transactional_id=self._producer.settings.transactional_id,
            producer_id=self._identity.producer_id,
            producer_epoch=self._identity.producer_epoch,
            commit=commit,
        )
        try:
            await self._region.ask("EndTransaction", request, pb.EndTransactionResponse, timeout_s=END_TIMEOUT_S)
        except GeorelayError:
            if commit:
                raise
        if not commit:
            await self._producer.renew(self._identity)
