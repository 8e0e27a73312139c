"""One region's log of one stream in memory: home or mirror, sealed, promised, cut; the receiver rule is what ships.

Rule: an append is committed at once and survives, as a Raft group that always has its majority.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from georelay.errors import Fenced, NotHome, NotLeader
from georelay.ids import Epoch, Offset, RegionNumber
from georelay.wire.crc import crc32c
from mesh.home.home_row import HomeRow
from mesh.home.promise_core import agreeing_length
from mesh.replication.ports import EpochRow
from mesh.replication.receiver_core import MirrorEnd, Verdict, following_row, judge
from mesh.replication.stream_header import EntryType, StreamHeader, first_digest, next_digest

if TYPE_CHECKING:
    from tests.unit.homes.model_world import World


LATENCY_S = 0.04
PULL_S = 0.03


class End(NamedTuple):
    offset: Offset
    digest: bytes


Stored = tuple[StreamHeader, bytes]


class Acked(NamedTuple):
    """A region-level acknowledgement: `digest` names the record and everything before it."""

    at_s: float
    epoch: Epoch
    offset: Offset
    digest: bytes


class ModelStream:
    """One region's log of one stream: what is appended is committed, and survives."""

    def __init__(self, world: World, region: RegionNumber, row: HomeRow) -> None:
        self.world = world
        self.region = region
        self.row = row
        self.key = row.key
        self.entries: list[Stored] = []
        self.rows: list[EpochRow] = []  # EPOCH entries in log order
        self.orphans: list[Stored] = []
        self.fence = Epoch(0)
        self.sealed_for = Epoch(0)
        self.acked: dict[RegionNumber, Offset] = {}  # by mirrors, in this epoch
        self.waiters: dict[int, Callable[[], None]] = {}
        self.follow_home(row)

    @property
    def is_leader(self) -> bool:
        return self.world.is_up(self.region) and self.world.is_led(self.region)

    @property
    def epoch(self) -> Epoch:
        return self.rows[-1][0] if self.rows else Epoch(0)

    @property
    def next_offset(self) -> Offset:
        return self.entries[-1][0].next_offset if self.entries else Offset(0)

    high_watermark = next_offset

    @property
    def log_start(self) -> Offset:
        return Offset(0)

    @property
    def has_open_transactions(self) -> bool:
        return False

    @property
    def is_home(self) -> bool:
        return self.row.home == self.region and self.epoch == self.row.epoch

    def digest_at(self, offset: Offset) -> bytes | None:
        if offset == 0:
            return first_digest(self.key)
        return next((header.digest for header, _ in self.entries if header.next_offset == offset), None)

    def add_waiter(self, callback: Callable[[], None]) -> int:
        handle = len(self.waiters) + 1 + max(self.waiters, default=0)
        self.waiters[handle] = callback
        return handle

    def remove_waiter(self, handle: int) -> None:
        self.waiters.pop(handle, None)

    def moved(self) -> None:
        for callback in list(self.waiters.values()):
            callback()

    # --- home -------------------------------------------------------------------------------------

    def publish(self) -> bool:
        """Append one batch if this region may; whether it is acknowledged at region level is the lease's to say."""
        if not self.is_leader or not self.is_home or self.fence > self.epoch or self.sealed_for > self.epoch:
            return False
        if not self.world.may_acknowledge(self.region):
            return False
        first, records = self.next_offset, self.world.rng.randint(1, 3)
        payload = f"{self.key.partition}/{self.epoch}/{first}".encode() * 4
        last = Offset(first + records - 1)
        before = self.digest_at(first)
        assert before is not None
        digest = next_digest(before, epoch=self.epoch, first=first, last=last, batch=payload)
        header = StreamHeader(
            type=EntryType.DATA, entry_region=self.region, record_count=records, epoch=self.epoch, base_offset=first,
            append_us=0, received_ns=0, max_timestamp_ms=0, producer_id=-1, producer_epoch=-1, base_sequence=-1,
            payload_crc=crc32c(payload), digest=digest,
        )  # fmt: skip
        self.entries.append((header, payload))
        self.world.acknowledged(self, Acked(self.world.loop.time(), self.epoch, last, digest))
        self.moved()
        return True

    async def seal(self, *, epoch: Epoch, new_epoch: Epoch, move_id: str) -> End:
        if self.fence > new_epoch or self.epoch > epoch:
            raise Fenced(f"epoch {new_epoch} is over")
        if not self.is_home or self.epoch != epoch:
            raise NotHome("not home of that epoch", epoch=self.epoch, home=self.row.home)
        self.sealed_for = max(self.sealed_for, new_epoch)
        return self.end()

    async def confirm_leader(self) -> None:
        if not self.is_leader:
            raise NotLeader(leader=-1)

    async def promise(self, *, new_epoch: Epoch, table: Sequence[EpochRow]) -> End:
        if self.fence > new_epoch or self.epoch >= new_epoch:
            raise Fenced(f"epoch {new_epoch} is over")
        self.fence = max(self.fence, new_epoch)
        length = agreeing_length(self.rows, end=self.next_offset, table=table)
        digest = self.digest_at(length)
        assert digest is not None
        return End(length, digest)

    def end(self) -> End:
        digest = self.digest_at(self.next_offset)
        assert digest is not None
        return End(self.next_offset, digest)

    # --- mirror -----------------------------------------------------------------------------------

    def follow_home(self, row: HomeRow) -> None:
        if row.epoch >= self.row.epoch:
            self.row = row
        if self.row.home == self.region:
            self._open(self.row.epoch, self.row.start, self.row.digest)

    def _open(self, epoch: Epoch, start: Offset, digest: bytes) -> None:
        """Append EPOCH once the log reaches its start: what lies beyond becomes an orphan branch."""
        if self.epoch >= epoch or self.next_offset < start or not self.world.is_led(self.region):
            return
        assert self.digest_at(start) == digest, f"{self.key} diverged in region {self.region}"
        self.orphans += [row for row in self.entries if row[0].base_offset >= start]
        self.entries = [row for row in self.entries if row[0].base_offset < start]
        self.rows.append((epoch, start))
        self.fence = max(self.fence, epoch)
        self.acked.clear()
        self.moved()

    async def pull(self) -> None:
        """Follow the home for ever, one session after the other."""
        while True:
            await asyncio.sleep(PULL_S)
            home = self.world.streams[self.row.home, self.key]
            # A new home that has not got everything yet takes it from the old one, by promise of the table.
            source = home if home.region != self.region else self.world.streams[self._old_home(), self.key]
            is_whole = self.world.is_led(self.region) and self.world.is_led(source.region)
            if is_whole and source.region != self.region and self.world.reach(self.region, source.region):
                await self._session(source)

    def _old_home(self) -> RegionNumber:
        homes = self.row.homes
        return homes[-2][1] if len(homes) > 1 and not self.is_home else self.region

    async def _session(self, source: ModelStream) -> None:
        if self.fence > max(source.epoch, self.epoch) or source.epoch < self.epoch or not source.rows:
            return
        session = self.epoch
        table = source.agreed_rows()
        await asyncio.sleep(LATENCY_S / 2)
        raised = following_row(table, session)
        for header, payload in [row for row in source.entries if row[0].base_offset >= self.next_offset][:20]:
            end = self.end()
            mine = MirrorEnd(epoch=self.epoch, next_offset=end.offset, digest=end.digest)
            verdict = judge(mine, session_epoch=session, table=table, header=header, payload=payload)
            if self.fence > max(source.epoch, self.epoch) or verdict is not Verdict.ACCEPT:
                break
            self.entries.append((header, payload))
            self.moved()
        if raised is not None and self.next_offset >= raised[1]:
            digest = source.digest_at(raised[1])
            assert digest is not None
            self._open(raised[0], raised[1], digest)
        self.follow_home(self.row)
        if not self.world.reach(self.region, source.region):
            return
        reached, epoch = self.next_offset, self.epoch
        if epoch == source.epoch and self.fence <= epoch:
            await asyncio.sleep(LATENCY_S / 2)
            if source.epoch == epoch and source.is_home:
                source.acked[self.region] = max(reached, source.acked.get(self.region, Offset(0)))
                self.world.geo_acknowledged(source)

    def agreed_rows(self) -> tuple[EpochRow, ...]:
        rows: list[EpochRow] = []
        for epoch, start in self.rows:
            while rows and rows[-1][1] > start:
                rows.pop()
            rows.append((epoch, start))
        return tuple(rows)
