"""Copies the records of one stream for one binding, at the home leader of the stream.

Rule 1: what is copied is a function of the committed log of the source: whoever leads it makes the same copies with the
        same producer and the same sequences, and the target stores each once.
Rule 2: a group of at most GROUP_COPIES copies is published and then saved at the coordinator before the next one: after
        a crash at most so many are made again, and the target recognises so many.
Rule 3: when the home moves, the old one copies what its epoch has left, and the new one waits a moment for that before
        it takes over. A region that was lost made copies that it could not save any more: those are made again.
Rule 4: nothing is skipped because it failed: it is tried until it is there, and nothing behind it is copied before.
        Only what retention has deleted from the source meanwhile is, with a line in the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, Protocol

import structlog

from georelay.errors import GeorelayError, OutOfOrderSequence, ProducerFenced, Unavailable, UnknownTopic
from georelay.fields import Fields
from georelay.ids import Epoch, Offset, RegionNumber, StreamKey
from georelay.limits import MIB, PRODUCER_BATCHES_REMEMBERED
from georelay.wire.batch import BatchHeader, parse_header
from mesh.replication.ports import EpochRow
from region.api.unfolding import unfolds_on_loop
from region.coordination.coordinators import Coordinators
from region.coordination.part import JsonObject, Part
from region.kafka.ports import EntryLike, Published, TopicView
from region.routing.binding import Binding
from region.routing.copies_core import CopyKey, CopyRow, named, read_row, stream_text
from region.routing.copy_core import copy_of

log = structlog.get_logger()

GROUP_COPIES: Final = PRODUCER_BATCHES_REMEMBERED - 1
READ_BYTES: Final = 1 * MIB
DRAIN_S: Final = 2.0  # how long a new home waits for the old one, which may be lost
DRAIN_LOOK_S: Final = 0.1
SAVE_RECORDS: Final = 10_000  # that were looked at and not copied, until the cursor is saved all the same
RETRY_S: Final = 0.05
RETRY_S_MAX: Final = 2.0
_NEW_PRODUCER: Final = (OutOfOrderSequence, ProducerFenced)


class SourceStream(Protocol):
    """The stream that is copied: a part of region.kafka.ports.Stream."""

    @property
    def key(self) -> StreamKey:
        """The mesh-wide identity."""

    @property
    def topic(self) -> str:
        """Plain name of its topic."""

    @property
    def partition(self) -> int:
        """0-based."""

    @property
    def is_leader(self) -> bool:
        """Whether this broker leads it."""

    @property
    def is_home(self) -> bool:
        """Whether this region sequences it."""

    @property
    def epoch(self) -> Epoch:
        """Home epoch that has begun in this log."""

    @property
    def decided_table(self) -> Sequence[EpochRow]:
        """Control's history of its home epochs, (epoch, start); () where the home never moved."""

    @property
    def log_start(self) -> Offset:
        """First offset kept."""

    @property
    def visible_end(self) -> Offset:
        """First offset that consumers are not shown: what is not committed, or not in enough regions."""

    @property
    def next_offset(self) -> Offset:
        """End of the log."""

    def read(self, offset: Offset, max_bytes: int) -> Sequence[EntryLike] | None:
        """Return committed entries from memory, None when `read_cold` must be asked."""

    async def read_cold(self, offset: Offset, max_bytes: int) -> Sequence[EntryLike]:
        """Return the same from the disk."""

    def add_waiter(self, callback: Callable[[], None]) -> Any:
        """Call back at every move of the high watermark."""

    def remove_waiter(self, handle: Any) -> None:
        """Forget the waiter."""


class CopyCluster(Protocol):
    """What a copier needs of region.kafka.ports.Cluster."""

    @property
    def region_number(self) -> RegionNumber:
        """Number of this broker's region."""

    def topic(self, name: str) -> TopicView | None:
        """Return the topic of a local name."""

    async def allocate_producer_id(self) -> int:
        """Return a new producer id."""

    def publish(
        self,
        name: str,
        partition: int,
        header: BatchHeader,
        raw: bytes | bytearray | memoryview,
        *,
        received_ns: int,
        entry_region: int,
        lane: object,
        transactional_id: str | None = None,
    ) -> asyncio.Future[Published]:
        """Publish one batch."""


class Copier:
    """Copies until cancelled.

    Args:
        begin_at: where the copies begin if the coordinator knows none: the end of the log when the binding was seen.
        moved: called whenever `copied` has moved.

    Attributes:
        copied: everything below it is stored at the target; -1 before the coordinator has answered.
        epoch: the home epoch whose records it copies. is_done: nothing is left of that epoch, another one has begun.
    """

    def __init__(
        self,
        binding: Binding,
        stream: SourceStream,
        *,
        cluster: CopyCluster,
        coordinators: Coordinators,
        wall_ns: Callable[[], int],
        begin_at: Offset,
        moved: Callable[[], None],
    ) -> None:
        self.binding = binding
        self.copied = -1
        self.records_copied = 0
        self.failing = ""
        self.epoch = int(stream.epoch)
        self.is_done = False
        self._woken: asyncio.Future[None] | None = None
        self._stream = stream
        self._cluster = cluster
        self._coordinators = coordinators
        self._wall_ns = wall_ns
        self._begin_at = begin_at
        self._moved = moved
        key = stream.key
        self._key = CopyKey(binding.name, binding.index, stream_text(key.topic_id, int(key.origin), key.partition))
        self._row = CopyRow(producer_id=0, cursor=int(begin_at), sequence=0, partitions=1, epoch=self.epoch)
        self._saved = self._row

    async def run(self) -> None:
        """Copy until cancelled, or until the epoch is over and copied."""
        retry_s = RETRY_S
        began = False
        while not self.is_done:
            try:
                if not began:
                    await self._begin()
                    began = True
                else:
                    await self._copy_group()
                retry_s, self.failing = RETRY_S, ""
            except GeorelayError as error:
                if not self.failing:
                    log.warning(
                        "binding.delayed",
                        binding=self.binding.name,
                        topic=self._stream.topic,
                        partition=self._stream.partition,
                        code=error.code,
                        reason=str(error),
                    )
                self.failing = f"{error.code}: {error}"
                await asyncio.sleep(retry_s)
                retry_s = min(retry_s * 2, RETRY_S_MAX)

    # --- at the coordinator -----------------------------------------------------------------------

    async def _begin(self) -> None:
        found = await self._find()
        if found is None:
            self._take(await self._ask("copy_begin", await self._fresh(int(self._begin_at))))
        elif found.epoch < self.epoch:
            await self._take_over(found)
        else:
            self._set_row(found)

    async def _take_over(self, found: CopyRow) -> None:
        """Go on where the home of an earlier epoch ended, or as far as the mesh kept what it copied."""
        start = next((int(start) for epoch, start in self._stream.decided_table if epoch > found.epoch), None)
        if start is None:
            raise Unavailable(f"where epoch {self.epoch} of {self._key.stream} begins is not known here yet")
        try:
            async with asyncio.timeout(DRAIN_S):
                while found.cursor < start:
                    await asyncio.sleep(DRAIN_LOOK_S)
                    found = await self._find() or found
        except TimeoutError:
            log.warning("binding.copied_again", binding=self.binding.name, stream=self._key.stream, epoch=self.epoch)
        self._take(await self._ask("copy_take", await self._fresh(start)))

    async def _fresh(self, cursor: int) -> CopyRow:
        """Return a row of this epoch with a new producer."""
        return CopyRow(
            producer_id=await self._cluster.allocate_producer_id(),
            cursor=cursor,
            sequence=0,
            partitions=self._target().partitions,
            epoch=self.epoch,
        )

    async def _find(self) -> CopyRow | None:
        found = await self._call("copy_find", named(self._key))
        return read_row(Fields(found, "copies")) if found else None

    async def _call(self, operation: str, body: JsonObject) -> JsonObject:
        return await self._coordinators.call(Part.QUEUES, self.binding.name, operation, body, origin=self._first_home())

    def _first_home(self) -> RegionNumber:
        """Return the region whose coordinators keep how far the copies are."""
        if self._stream.key.origin:
            return self._stream.key.origin
        view = self._cluster.topic(self._stream.topic)
        if view is None:
            raise UnknownTopic(f"topic {self._stream.topic!r} does not exist")
        return view.definition.home

    def _target(self) -> TopicView:
        view = self._cluster.topic(self.binding.target)
        if view is None:
            text = f"the target {self.binding.target!r} of binding {self.binding.name} does not exist"
            raise UnknownTopic(f"{text}: create it again, or remove the binding")
        return view

    async def _ask(self, operation: str, row: CopyRow, **more: int) -> JsonObject:
        body = {**named(self._key), **row.to_json(), **more}
        return await self._call(operation, body)

    def _take(self, answer: JsonObject) -> None:
        self._set_row(read_row(Fields(answer, "copies")))

    def _set_row(self, row: CopyRow) -> None:
        if row.epoch > self.epoch:
            self.is_done = True  # another home has taken over; who waits here does not know
            return
        self._row = self._saved = row
        self._set_copied(self._row.cursor)

    async def _save(self) -> None:
        partitions = self._target().partitions  # nothing is under way: from here on others may be used
        row = replace(self._row, partitions=partitions)
        await self._ask("copy_save", row)
        self._row = self._saved = row

    async def _new_producer(self) -> None:
        """Go back to what is saved; take a new producer where the target does not know the one that is saved there."""
        before = self._saved
        self._take(await self._ask("copy_begin", before))
        if self._saved != before:
            return  # another leader went on meanwhile
        log.warning("binding.new_producer", binding=self.binding.name, producer=before.producer_id)
        fresh = await self._fresh(before.cursor)
        self._take(await self._ask("copy_renew", fresh, instead_of=before.producer_id))

    # --- copying ----------------------------------------------------------------------------------

    async def _copy_group(self) -> None:
        offset = Offset(self._row.cursor)
        if offset < self._stream.log_start:
            log.error("binding.records_lost", binding=self.binding.name, first=offset, until=self._stream.log_start)
            offset = self._stream.log_start
        over = self._over_at()
        if over is not None and offset >= over:
            await self._save()
            self.is_done = True
            return
        visible_end = self._visible_end()
        if offset >= visible_end:
            await self._save_if_far()
            await self._wait_for(offset)
            return
        entries = self._stream.read(offset, READ_BYTES)
        if entries is None:
            entries = await self._stream.read_cold(offset, READ_BYTES)
        copies: list[tuple[bytes, int]] = []
        following, sequence = int(offset), self._row.sequence
        for entry in entries:
            if len(copies) == GROUP_COPIES or entry.base_offset + entry.record_count > visible_end:
                break
            raw = await self._copy_of(entry, sequence)
            if raw is not None:
                count = parse_header(raw).record_count
                copies.append((raw, count))
                sequence += count
            following = entry.base_offset + entry.record_count
        if copies:
            try:
                await self._publish([raw for raw, _ in copies])
            except _NEW_PRODUCER:
                await self._new_producer()
                return
        self._row = replace(self._row, cursor=following, sequence=sequence)
        self.records_copied += sum(count for _, count in copies)
        self._set_copied(following)
        if copies:
            await self._save()
        else:
            await self._save_if_far()

    async def _copy_of(self, entry: EntryLike, sequence: int) -> bytes | None:
        make = partial(copy_of, entry.payload, self.binding, producer_id=self._row.producer_id, sequence=sequence)
        if self.binding.headers and not unfolds_on_loop(entry.payload):
            return await asyncio.to_thread(make)
        return make()

    async def _publish(self, copies: Sequence[bytes]) -> None:
        """Return when all are stored; raise why the first one is not."""
        partition = self._stream.partition % self._row.partitions
        futures = [
            self._cluster.publish(
                self.binding.target,
                partition,
                parse_header(raw),
                bytearray(raw),
                received_ns=self._wall_ns(),
                entry_region=self._cluster.region_number,
                lane=self,
            )
            for raw in copies
        ]
        for result in await asyncio.gather(*futures, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result

    async def _save_if_far(self) -> None:
        if self._row.cursor - self._saved.cursor >= SAVE_RECORDS:
            await self._save()

    async def _wait_for(self, offset: Offset) -> None:
        moved = self._woken = asyncio.get_running_loop().create_future()

        def wake() -> None:
            if self._visible_end() > offset and not moved.done():
                moved.set_result(None)

        handle = self._stream.add_waiter(wake)
        try:
            wake()
            await moved
        finally:
            self._woken = None
            self._stream.remove_waiter(handle)

    def wake(self) -> None:
        """Look whether the epoch is over."""
        if self._woken is not None and not self._woken.done() and self._over_at() is not None:
            self._woken.set_result(None)

    def _over_at(self) -> int | None:
        """Return where the records of this epoch end, None while no later one was decided."""
        return next((int(start) for epoch, start in self._stream.decided_table if epoch > self.epoch), None)

    def _visible_end(self) -> int:
        over = self._over_at()
        return int(self._stream.visible_end) if over is None else min(int(self._stream.visible_end), over)

    def _set_copied(self, offset: int) -> None:
        self.copied = offset
        self._moved()
