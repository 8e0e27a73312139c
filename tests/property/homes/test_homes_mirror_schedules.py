"""Any schedule of a mirror and the homes it ever had: dropped, doubled and reordered batches, other senders, restarts.

Frames are made by whichever home is one at that moment, with the table that it has then, and arrive whenever and as
often as the schedule wants. Homes change by planned and by forced moves, also by ones that give up what an epoch before
had begun. Whatever happens, the mirror's log is a prefix of the history of its own epoch (the shipping receiver rule).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import hypothesis.strategies as st
from hypothesis import event, given

from georelay.ids import Epoch, Offset, RegionNumber, StreamKey
from georelay.wire.crc import crc32c
from mesh.home.promise_core import table_after
from mesh.replication.ports import EpochRow
from mesh.replication.receiver_core import MirrorEnd, Verdict, following_row, judge, recheck_at_apply, table_fault
from mesh.replication.stream_header import EntryType, StreamHeader, first_digest, next_digest

KEY = StreamKey(b"s" * 16, RegionNumber(0), 0)
FLIGHT_MAX = 12
Batch = tuple[StreamHeader, bytes]


class Frame(NamedTuple):
    session: Epoch
    table: tuple[EpochRow, ...]
    batch: Batch


def end_of(log: list[Batch]) -> tuple[Offset, bytes]:
    return (log[-1][0].next_offset, log[-1][0].digest) if log else (Offset(0), first_digest(KEY))


def batch_after(log: list[Batch], epoch: Epoch, records: int) -> Batch:
    first, digest = end_of(log)
    payload = f"{epoch}/{first}/{records}".encode() * 4
    last = Offset(first + records - 1)
    header = StreamHeader(
        type=EntryType.DATA, entry_region=1, record_count=records, epoch=epoch, base_offset=first, append_us=0,
        received_ns=0, max_timestamp_ms=0, producer_id=-1, producer_epoch=-1, base_sequence=-1,
        payload_crc=crc32c(payload), digest=next_digest(digest, epoch=epoch, first=first, last=last, batch=payload),
    )  # fmt: skip
    return header, payload


@dataclass
class Mirror:
    epoch: Epoch = Epoch(1)  # noqa: RUF009
    log: list[Batch] = field(default_factory=list)
    committed: int = 0  # batches
    orphans: int = 0

    def receive(self, frame: Frame) -> Verdict:
        following, digest = end_of(self.log)
        end = MirrorEnd(epoch=self.epoch, next_offset=following, digest=digest)
        header, payload = frame.batch
        verdict = judge(end, session_epoch=frame.session, table=frame.table, header=header, payload=payload)
        if verdict is Verdict.ACCEPT:
            recheck_at_apply(
                kind=header.type, epoch=header.epoch, base_offset=header.base_offset, committed_epoch=self.epoch,
                committed_next=following, epoch_table=frame.table,
            )  # fmt: skip
            self.log.append(frame.batch)
        return verdict

    def restart(self) -> None:
        """Its leader is lost, with everything that was not committed."""
        del self.log[self.committed :]

    def raise_epoch(self, table: tuple[EpochRow, ...], history: list[Batch]) -> None:
        """Append EPOCH when the log has reached its start, and the digests there agree."""
        row = following_row(table, self.epoch)
        if row is None or end_of(self.log)[0] < row[1]:
            return
        kept = [batch for batch in self.log if batch[0].next_offset <= row[1]]
        theirs = [batch for batch in history if batch[0].next_offset <= row[1]]
        if end_of(kept) != end_of(theirs):
            return  # DIVERGED: it stops and somebody looks
        self.orphans += len(self.log) - len(kept)
        self.epoch, self.log, self.committed = row[0], kept, len(kept)


@given(data=st.data())
def test_a_mirror_is_a_prefix_of_its_epochs_home_whatever_arrives(data: st.DataObject) -> None:
    epoch = Epoch(1)
    table: tuple[EpochRow, ...] = ((epoch, Offset(0)),)
    history: list[Batch] = []
    histories = {epoch: history}
    tables = {epoch: table}
    mirror = Mirror()
    flight: list[Frame] = []
    steps = st.sampled_from(["publish", "publish", "send", "send", "deliver", "deliver", "deliver", "commit", "raise",
                             "restart", "move"])  # fmt: skip
    for _ in range(data.draw(st.integers(20, 90))):
        match data.draw(steps):
            case "publish":
                history.append(batch_after(history, epoch, data.draw(st.integers(1, 3))))
            case "send" if history:
                sender = data.draw(st.sampled_from(sorted(histories)))  # an old home may not know yet
                batches = histories[sender]
                if batches:
                    # A home gives no session of an epoch that it has not heard of.
                    sessions = [known for known in (mirror.epoch, sender, epoch) if known <= sender]
                    session = Epoch(data.draw(st.sampled_from(sessions)))
                    wanted = [row for row in batches if row[0].base_offset == end_of(mirror.log)[0]]
                    batch = (wanted or [data.draw(st.sampled_from(batches))])[0]
                    flight = [*flight, Frame(session, tables[sender], batch)][-FLIGHT_MAX:]
            case "deliver" if flight:
                row = data.draw(st.integers(0, len(flight) - 1))
                event(f"verdict {mirror.receive(flight[row]).value}")
                if data.draw(st.booleans()):
                    del flight[row]  # else it arrives again
            case "commit":
                mirror.committed = data.draw(st.integers(mirror.committed, len(mirror.log)))
            case "raise":
                mirror.raise_epoch(table, history)
            case "restart":
                mirror.restart()
            case "move":
                kept = history[: data.draw(st.integers(0, len(history)))]
                epoch = Epoch(epoch + 1)
                table = table_after(table, epoch=epoch, start=end_of(kept)[0])
                assert table_fault(table) == ""
                history = list(kept)
                histories[epoch], tables[epoch] = history, table
            case _:
                pass
        assert mirror.log == histories[mirror.epoch][: len(mirror.log)]
    # It gets there: whatever became of the frames, a home that goes on brings it to the end.
    for _ in range(200):
        mirror.raise_epoch(table, history)
        following = next((batch for batch in history if batch[0].base_offset == end_of(mirror.log)[0]), None)
        if following is not None:
            mirror.receive(Frame(mirror.epoch, table, following))
    assert (mirror.epoch, mirror.log) == (epoch, history)
