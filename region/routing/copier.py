"""Copies the records of one stream for one binding, at the home leader of the stream.

Rule 1: what is copied is a function of the committed log of the source: whoever leads it makes the same copies with the
        same producer and the same sequences, and the target stores each once.
Rule 2: a group of at most GROUP_COPIES copies is published and then saved at the coordinator before the next one: after
        a crash at most so many are made again, and the target recognises so many.
Rule 3: when the home moves, the old one hands its row over if it never copied anything of where the next epoch begins,
        or beyond: the new home goes on with the same producer, and stores nothing twice however much is left, and
        whatever the old one has under way. So it is after every planned move.
Rule 4: from a home that does not hand over the new one takes: it waits while the old one copies what its epoch has left
        (DRAIN_S without any progress: it is lost), and makes what is not saved by then again, with a new producer.
        Whoever was replaced copies no more, and only follows how far the copies are, for those who wait here.
Rule 5: a producer whose id clients may use, as brokers of before took them, is replaced once everything that another
        leader may have under way with it was made again.
Rule 6: nothing is skipped because it failed: it is tried until it is there, and nothing behind it is copied before.
        Only what retention has deleted from the source meanwhile is, and, where header rules choose, a batch whose
        records cannot be read, or whose copy fits no batch: it would fail for ever. Both with a line in the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import structlog

from georelay.errors import (
    CorruptRecordBatch,
    GeorelayError,
    OutOfOrderSequence,
    ProducerFenced,
    TooLarge,
    Unavailable,
    UnknownTopic,
)
from georelay.fields import Fields
from georelay.ids import Offset, RegionNumber, brokers_own, is_brokers_own
from georelay.limits import MIB, PRODUCER_BATCHES_REMEMBERED
from georelay.wire.batch import parse_header
from region.api.unfolding import UNREADABLE, Unreadable, off_loop, unfolds_on_loop
from region.coordination.coordinators import Coordinators
from region.coordination.part import JsonObject, Part
from region.kafka.ports import EntryLike, Publish, TopicView
from region.routing.binding import Binding
from region.routing.copies_core import CopyKey, CopyRow, named, read_row, stream_text
from region.routing.copy_core import copy_of
from region.routing.ports import CopyCluster, SourceStream

log = structlog.get_logger()

GROUP_COPIES: Final = PRODUCER_BATCHES_REMEMBERED - 1
READ_BYTES: Final = 1 * MIB
DRAIN_S: Final = 2.0  # how long a new home waits for progress of the old one, which may be lost
DRAIN_LOOK_S: Final = 0.1
SAVE_RECORDS: Final = 10_000  # that were looked at and not copied, until the cursor is saved all the same
RETRY_S: Final = 0.05
RETRY_S_MAX: Final = 2.0
_NEW_PRODUCER: Final = (OutOfOrderSequence, ProducerFenced)


class Copier:
    """Copies until cancelled.

    Args:
        begin_at: where the copies begin if the coordinator knows none: the end of the log when the binding was seen.
        moved: called whenever `copied` has moved.

    Attributes:
        copied: everything below it is stored at the target; -1 before the coordinator has answered.
        epoch: the home epoch whose records it copies. is_done: nothing is left of that epoch, another one has begun.
        is_recorded: the coordinator has a row, so every leader of the stream knows where the copies begin.
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
        is_recorded: bool = False,
    ) -> None:
        self.binding = binding
        self.copied = -1
        self.records_copied = 0
        self.failing = ""
        self.epoch = int(stream.epoch)
        self.is_done = False
        self.is_recorded = is_recorded
        self._has_begun = False
        self._is_replaced = False  # the row is of a later epoch
        self._furthest = int(begin_at)  # nothing at or beyond it was copied in this epoch, here or by leaders before
        self._copies_saved = 0
        self._handing: asyncio.Task[None] | None = None
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
        try:
            await self._run()
        finally:
            if self._handing is not None:
                self._handing.cancel()

    async def _run(self) -> None:
        retry_s = RETRY_S
        while not self.is_done:
            try:
                if not self._has_begun:
                    await self._begin()
                    self._has_begun = True
                elif self._is_replaced:
                    await self._follow()
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
            fresh = await self._fresh(int(self._begin_at))
            found = read_row(Fields(await self._ask("copy_begin", fresh), "copies"))  # or what another home began
        if found.epoch < self.epoch:
            self.is_recorded = True
            await self._take_over(found)
        else:
            self._set_row(found)
        self.is_recorded = True

    async def _take_over(self, found: CopyRow) -> None:
        """Go on where the home of an earlier epoch hands over, or ended, or as far as the mesh kept what it copied."""
        now_s = asyncio.get_running_loop().time
        changed_s = now_s()
        while found.epoch < self.epoch:
            start = self._start_after(found.epoch)
            if start is None:
                raise Unavailable(f"where epoch {self.epoch} of {self._key.stream} begins is not known here yet")
            is_silent = now_s() - changed_s >= DRAIN_S
            if found.cursor >= start or is_silent:
                if is_silent:
                    log.warning(
                        "binding.copied_again", binding=self.binding.name, stream=self._key.stream, epoch=self.epoch
                    )
                self._take(await self._ask("copy_take", await self._fresh(start)))
                return
            await asyncio.sleep(DRAIN_LOOK_S)
            before, found = found, await self._find() or found
            if found != before:
                changed_s = now_s()
        self._set_row(found)

    async def _hand_over(self) -> None:
        """Let the home of the newest epoch go on with this producer."""
        epoch = int(self._stream.decided_table[-1][0])
        body = {**named(self._key), "producer_id": self._saved.producer_id, "ended": self.epoch, "epoch": epoch}
        try:
            await self._stream.confirmed_end()  # else another leader may have copied more of a branch meanwhile
            self._is_replaced = read_row(Fields(await self._call("copy_hand", body), "copies")).epoch > self.epoch
        except GeorelayError as error:  # `wake` tries again
            log.debug("binding.hand_over_delayed", binding=self.binding.name, code=error.code)
            return
        self._wake_up()

    async def _follow(self) -> None:
        """Note how far the copies are that another home makes now."""
        over = self._over_at()
        found = None if over is None or self._stream.is_home else await self._find()
        if over is None or found is None:  # what this home waits for is looked after by the next copier, or unknown
            self.is_done = True
            return
        self._set_copied(max(self.copied, min(found.cursor, over)))
        self.is_done = found.cursor >= over
        if not self.is_done:
            await asyncio.sleep(DRAIN_LOOK_S)

    async def _fresh(self, cursor: int) -> CopyRow:
        """Return a row of this epoch with a new producer."""
        return CopyRow(
            producer_id=brokers_own(await self._cluster.allocate_producer_id()),
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
            self._is_replaced = True
            return
        self._row = self._saved = row
        self._set_copied(self._row.cursor)

    async def _save(self) -> None:
        partitions = self._target().partitions  # nothing is under way: from here on others may be used
        row = replace(self._row, partitions=partitions)
        answer = await self._ask("copy_save", row)
        known = read_row(Fields(answer, "copies")) if answer else row  # {}: of a broker of before rows were answered
        if known.epoch > self.epoch or known.producer_id != row.producer_id:
            self._set_row(known)
            return
        self._row = self._saved = row

    async def _new_producer(self) -> None:
        """Go back to what is saved; take a new producer where the target does not know the one that is saved there."""
        before = self._saved
        self._take(await self._ask("copy_begin", before))
        if self._is_replaced or self._saved != before:
            return  # another leader, or another home, went on meanwhile
        log.warning("binding.new_producer", binding=self.binding.name, producer=before.producer_id)
        fresh = await self._fresh(before.cursor)
        self._take(await self._ask("copy_renew", fresh, instead_of=before.producer_id))

    # --- copying ----------------------------------------------------------------------------------

    async def _copy_group(self) -> None:
        if self._row.sequence != self._saved.sequence:
            await self._save()  # it failed before: the target recognises no more copies than those
            return
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
        over = self._over_at()
        if over is not None and following > over:
            return  # it was decided while this was read: look again
        self._furthest = max(self._furthest, following)  # at once with the publish: `wake` may hand over in any pause
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
            self._copies_saved += len(copies)
            if self._copies_saved >= GROUP_COPIES and not is_brokers_own(self._row.producer_id):
                await self._new_producer()
        else:
            await self._save_if_far()

    async def _copy_of(self, entry: EntryLike, sequence: int) -> bytes | None:
        make = partial(copy_of, entry.payload, self.binding, producer_id=self._row.producer_id, sequence=sequence)
        try:
            if self.binding.headers and not unfolds_on_loop(entry.payload):
                return await off_loop(entry.payload, make)
            return make()
        except (CorruptRecordBatch, TooLarge) as error:
            following = entry.base_offset + entry.record_count
            where = f"binding {self.binding.name} of {self._stream.topic}/{self._stream.partition}"
            UNREADABLE.note(where, Unreadable(entry.base_offset, following, str(error)))
            return None

    async def _publish(self, copies: Sequence[bytes]) -> None:
        """Return when all are stored; raise why the first one is not."""
        partition = self._stream.partition % self._row.partitions
        futures = [
            self._cluster.publish(
                self.binding.target,
                partition,
                Publish.built(raw, received_ns=self._wall_ns(), entry_region=self._cluster.region_number, lane=self),
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
        """Look whether the epoch is over; hand over if it is."""
        over = self._over_at()
        if over is None:
            return
        is_handing = self._handing is not None and not self._handing.done()
        if self._has_begun and not self._is_replaced and not is_handing and self._furthest <= over:
            self._handing = asyncio.get_running_loop().create_task(self._hand_over(), name=f"hand over {self._key}")
        self._wake_up()

    def _wake_up(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    def _over_at(self) -> int | None:
        """Return where the records of this epoch end, None while no later one was decided."""
        return self._start_after(self.epoch)

    def _start_after(self, known: int) -> int | None:
        """Return where the first epoch after one begins."""
        return next((int(start) for epoch, start in self._stream.decided_table if epoch > known), None)

    def _visible_end(self) -> int:
        over = self._over_at()
        return int(self._stream.visible_end) if over is None else min(int(self._stream.visible_end), over)

    def _set_copied(self, offset: int) -> None:
        self.copied = offset
        self._moved()
