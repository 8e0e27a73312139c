"""JSON of rows, commands and questions about homes: what other versions read and write for ever."""

from __future__ import annotations

from dataclasses import replace

from georelay.fields import dump_object
from georelay.ids import Epoch, Offset, RegionNumber, StreamKey
from mesh.home.home_book_core import Ending
from mesh.home.home_row import HomeRow, MoveKind, Moving
from region.homes.home_requests import EndAsked, LogEnds, PrefixEnd, PromiseAsked, SealAsked, answer_json, asked_json
from region.homes.part import HomesPart, begin_command, end_command, leased_command, obeyed_command

KEY = StreamKey(bytes(range(16)), RegionNumber(0), 3)
NAMED = '"partition":3,"topic_id":"000102030405060708090a0b0c0d0e0f"'
TABLE = ((Epoch(1), Offset(0)), (Epoch(3), Offset(7)))
DIGEST = bytes(range(16, 32))
DIGEST_HEX = "101112131415161718191a1b1c1d1e1f"


def text(value: dict[str, object]) -> str:
    return dump_object(value).decode()


def test_a_row() -> None:
    row = HomeRow(
        topic_id=KEY.topic_id, partition=3, home=RegionNumber(2), epoch=Epoch(3), start=Offset(7), digest=DIGEST,
        table=TABLE, homes=((Epoch(1), RegionNumber(1)), (Epoch(3), RegionNumber(2))),
        regions=(RegionNumber(1), RegionNumber(2)), last_epoch=Epoch(4),
        moving=Moving(move_id="m-1", kind=MoveKind.PLANNED, epoch=Epoch(4), target=RegionNumber(1)), index=12,
    )  # fmt: skip
    expected = (
        f'{{"accept_loss":false,"digest":"{DIGEST_HEX}","epoch":3,"home":2,"homes":[[1,1],[3,2]],"index":12,'
        '"last_epoch":4,"moving":{"epoch":4,"kind":"planned","move_id":"m-1","target":1},'
        '"partition":3,"regions":[1,2],"start":7,"table":[[1,0],[3,7]],"topic_id":"000102030405060708090a0b0c0d0e0f"}'
    )
    assert text(row.to_json()) == expected
    assert HomeRow.from_json(row.to_json()) == row


def test_commands() -> None:
    assert text(begin_command([KEY], move_id="m-1", kind=MoveKind.FORCED)) == (
        '{"kind":"begin","move":"forced","move_id":"m-1","streams":[["000102030405060708090a0b0c0d0e0f",3]],"target":0}'
    )
    ending = Ending(key=KEY, move_id="m-1", home=RegionNumber(2), start=Offset(7), digest=DIGEST, accept_loss=True)
    assert text(end_command([ending])) == (
        f'{{"ends":[{{"accept_loss":true,"digest":"{DIGEST_HEX}","home":2,"move_id":"m-1",{NAMED_IN_END}}}],"kind":"end"}}'
    )
    assert text(leased_command(RegionNumber(2))) == '{"kind":"leased","region":2}'
    assert text(obeyed_command(RegionNumber(2), index=17)) == '{"index":17,"kind":"obeyed","region":2}'


class NoTopics:
    """A mesh without topics; implements MeshTopics as far as snapshots need it."""

    def find(self, topic_id: bytes) -> None: ...


def test_a_snapshot_of_the_part_of_a_control_that_was_recovered_and_of_one_that_never_was() -> None:
    part = HomesPart(NoTopics())  # type: ignore[arg-type]
    part.apply(leased_command(RegionNumber(2)), index=1, append_us=0)
    assert text(part.snapshot()) == '{"book":{"rows":[]},"leased":[2]}'
    part.book.floor = 1_048_579
    part.apply(obeyed_command(RegionNumber(2), index=17), index=2, append_us=0)
    recovered = '{"book":{"rows":[]},"epochs_above":1048579,"leased":[2],"obeyed":[[2,17]]}'
    assert text(part.snapshot()) == recovered
    again = HomesPart(NoTopics())  # type: ignore[arg-type]
    again.restore(part.snapshot())
    assert text(again.snapshot()) == recovered


NAMED_IN_END = '"partition":3,"start":7,"topic_id":"000102030405060708090a0b0c0d0e0f"'


def test_questions() -> None:
    ends = asked_json([EndAsked(key=KEY, until=Offset(9))], wait_ms=500)
    assert text(ends) == f'{{"local":false,"rows":[{{{NAMED},"until":9}}],"wait_ms":500}}'
    ends = asked_json([EndAsked(key=KEY, until=Offset(9), with_transactions=True)])
    assert text(ends) == f'{{"local":false,"rows":[{{{NAMED},"transactions":true,"until":9}}],"wait_ms":0}}'
    seal = asked_json([SealAsked(key=KEY, epoch=Epoch(3), new_epoch=Epoch(4), move_id="m-1")], local=True)
    assert text(seal) == f'{{"local":true,"rows":[{{"epoch":3,"move_id":"m-1","new_epoch":4,{NAMED}}}],"wait_ms":0}}'
    promise = asked_json([PromiseAsked(key=KEY, new_epoch=Epoch(4), table=TABLE)])
    assert text(promise) == (
        '{"local":false,"rows":[{"new_epoch":4,"partition":3,"table":[[1,0],[3,7]],'
        '"topic_id":"000102030405060708090a0b0c0d0e0f"}],"wait_ms":0}'
    )


def test_answers() -> None:
    ends = LogEnds(epoch=Epoch(3), next_offset=Offset(9), high_watermark=Offset(8), log_start=Offset(1))
    assert text(answer_json({KEY: ends})) == (
        '{"rows":[{"epoch":3,"high_watermark":8,"log_start":1,"next":9,"partition":3,'
        '"topic_id":"000102030405060708090a0b0c0d0e0f"}]}'
    )
    assert text(answer_json({KEY: replace(ends, has_open_transactions=True)})) == (
        '{"rows":[{"epoch":3,"high_watermark":8,"log_start":1,"next":9,"open_transactions":true,"partition":3,'
        '"topic_id":"000102030405060708090a0b0c0d0e0f"}]}'
    )
    prefix = answer_json({KEY: PrefixEnd(offset=Offset(7), digest=DIGEST)})
    assert text(prefix) == f'{{"rows":[{{"digest":"{DIGEST_HEX}","offset":7,{NAMED}}}]}}'
