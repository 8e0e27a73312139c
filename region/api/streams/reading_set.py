"""The partitions that one subscription reads: pumps that are started, stopped, paused and moved together.

Rule 1: a pump that breaks ends the subscription with its error; none falls silent.
Rule 2: nothing is read that the client may not read, whoever named it: in a group, another member has.
Rule 3: after `stop` nothing of these partitions is put into the outbox any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

import structlog

from georelay._pb import streams_pb2 as pb
from georelay.errors import BadRequest, GeorelayError
from region.api.answer_room import CallMemory
from region.api.streams.credit import Credit
from region.api.streams.partition_pump import PartitionPump, Put
from region.api.streams.services import StreamsServices
from region.api.streams.starting import StartPoint
from region.kafka.ports import TraceSession
from region.kafka.services import plain_name
from region.security.access import Operation, Principal, Resource

log = structlog.get_logger()

PARTITIONS_MAX: Final = 10_000  # per subscription
Key = tuple[str, int]  # stream, partition


class ReadingSet:
    """Pumps by partition. `failed` gets the first error of any of them."""

    def __init__(
        self,
        services: StreamsServices,
        *,
        credit: Credit,
        put: Put,
        start: pb.SubscribeStart,
        principal: Principal,
        still_valid: Callable[[], None],
        group: str = "",
    ) -> None:
        """`still_valid` raises when the sign-in of the call has ended."""
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.held: set[Key] = set()  # assigned by a group, read or not
        self._services = services
        self._credit = credit
        self._put = put
        self._as_records = start.records
        self._group = group
        self._still_valid = still_valid
        self._principal = principal
        self._memory = CallMemory()
        self._pumps: dict[Key, tuple[PartitionPump, asyncio.Task[None]]] = {}
        self._records_out = services.metrics.edge_records.labels("grpc", "out")

    def start(self, points: Iterable[StartPoint]) -> None:
        """Begin to read the points that can be read; each of them must be stopped before it is started again.

        Raises:
            BadRequest: too many partitions. AccessDenied: one that may not be read.
        """
        loop = asyncio.get_running_loop()
        for point in points:
            if not point.is_readable:
                continue
            key = (point.place.stream, point.place.partition)
            self._check_right(key[0])
            if len(self._pumps) >= PARTITIONS_MAX:
                raise BadRequest(f"a subscription reads at most {PARTITIONS_MAX} partitions")
            pump = PartitionPump(
                point,
                reader=self._services.reader,
                credit=self._credit,
                put=self._put,
                trace=lambda offset, key=key: self._trace(key, offset),  # type: ignore[misc]
                wall_ns=self._services.wall_ns,
                delivered=self._records_out.inc,
                as_records=self._as_records,
                memory=self._memory,
                throttle_ms=self._throttle_ms,
                check_right=partial(self._check_right, key[0]),
            )
            self._pumps[key] = (pump, loop.create_task(self._guarded(pump), name=f"subscribe {key[0]}/{key[1]}"))

    def check_rights(self) -> None:
        """Pass while everything that is read may be read. Raises AccessDenied, Unauthenticated; Busy: it is stuck."""
        self._memory.check()
        self._still_valid()
        for stream in {stream for stream, _ in (*self._pumps, *self.held)}:
            self._check_right(stream)

    def _check_right(self, stream: str) -> None:
        self._still_valid()
        self._services.access.check(self._principal, Operation.READ, Resource.TOPIC, stream)

    async def stop(self, keys: Sequence[Key] | None = None) -> None:
        """Stop reading these partitions, or all."""
        chosen = list(self._pumps) if keys is None else [key for key in keys if key in self._pumps]
        tasks = [self._pumps.pop(key)[1] for key in chosen]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def pause(self, keys: Iterable[Key], *, resume: bool) -> None:
        """Hold partitions up, or let them go on; what is not read here is passed over."""
        for key in keys:
            if key in self._pumps:
                pump = self._pumps[key][0]
                pump.resume() if resume else pump.pause()

    async def _guarded(self, pump: PartitionPump) -> None:
        try:
            await pump.run()
        except GeorelayError as error:
            self._fail(error)
        except Exception:
            log.exception("subscription.broke", stream=pump.stream, partition=pump.partition)
            self._fail(GeorelayError("internal error; the broker's log has the cause"))

    def _fail(self, error: GeorelayError) -> None:
        if not self.failed.done():
            self.failed.set_exception(error)

    def _throttle_ms(self, size_bytes: int) -> int:
        return self._services.quotas.fetch(self._principal, size_bytes)

    def _trace(self, key: Key, offset: int) -> TraceSession:
        view = self._services.cluster.topic(key[0])
        topic, origin = (key[0], 0) if view is None else (plain_name(view), int(view.origin))
        return self._services.recorder.open_session(
            topic=topic, origin=origin, partition=key[1], offset=offset, group=self._group
        )
