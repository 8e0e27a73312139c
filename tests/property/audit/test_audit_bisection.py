"""Whatever the batches are and wherever two logs part, the first batch that differs is named, with few questions."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from georelay.ids import Epoch, Offset, RegionNumber, StreamKey
from mesh.replication.stream_header import first_digest, next_digest
from region.audit.audit_core import POINTS, StreamAudit
from region.audit.values import BatchAt, LogView, StreamVerdict, VerdictState

KEY = StreamKey(bytes(16), RegionNumber(0), 0)
EPOCHS = ((Epoch(1), Offset(0)),)
SIZES = st.lists(st.integers(1, 500), min_size=1, max_size=60)


def batches(sizes: Sequence[int], contents: Sequence[bytes]) -> list[BatchAt]:
    found: list[BatchAt] = []
    digest, first = first_digest(KEY), Offset(0)
    for size, content in zip(sizes, contents, strict=True):
        following = Offset(first + size)
        digest = next_digest(digest, epoch=Epoch(1), first=first, last=Offset(following - 1), batch=bytes(21) + content)
        found.append(BatchAt(first=first, following=following, epoch=Epoch(1), digest=digest, crc=0))
        first = following
    return found


def view(log: Sequence[BatchAt], start: int, at: Sequence[Offset]) -> LogView:
    boundary = log[start].first
    return LogView(
        epochs=EPOCHS,
        log_start=boundary,
        boundary=boundary,
        boundary_digest=log[start - 1].digest if start else first_digest(KEY),
        end=log[-1].following,
        end_digest=log[-1].digest,
        batches={x: row for x in at for row in log[start:] if row.first <= x < row.following},
    )


def compared(logs: Sequence[tuple[Sequence[BatchAt], int]]) -> tuple[StreamVerdict, int]:
    regions = [RegionNumber(row + 1) for row in range(len(logs))]
    audit = StreamAudit(KEY, home=RegionNumber(1), regions=regions)
    requests = 0
    while wanted := audit.wanted():
        requests += len(wanted)
        audit.told({row: view(*logs[row - 1], at) for row, at in wanted.items()})
    return audit.verdict(), requests


@given(sizes=SIZES, data=st.data())
def test_the_first_different_batch_is_named_exactly(sizes: list[int], data: st.DataObject) -> None:
    changed = data.draw(st.integers(0, len(sizes) - 1), "changed")
    kept = data.draw(st.integers(changed + 1, len(sizes)), "batches of the other log")
    start = data.draw(st.integers(0, changed), "first stored batch")
    plain = [b"%d" % row for row in range(len(sizes))]
    other = [b"x" if row == changed else content for row, content in enumerate(plain)][:kept]
    verdict, requests = compared([(batches(sizes, plain), start), (batches(sizes[:kept], other), 0)])
    assert verdict.state is VerdictState.DIVERGED
    assert verdict.divergence is not None and verdict.divergence.is_exact
    assert verdict.divergence.first == sum(sizes[:changed])
    assert requests <= 2 * (4 + math.ceil(math.log(sum(sizes) + 1, POINTS)))


@given(sizes=SIZES, others=SIZES, data=st.data())
def test_logs_that_go_on_with_other_borders_part_where_they_do(
    sizes: list[int], others: list[int], data: st.DataObject
) -> None:
    common = data.draw(st.integers(0, len(sizes) - 1), "common batches")
    contents = [b"%d" % row for row in range(len(sizes))]
    parted = [*sizes[:common], *others]
    if others[0] == sizes[common]:
        parted[common] += 1
    here = batches(sizes, contents)
    there = batches(parted, [*contents[:common], *(b"other %d" % row for row in range(len(others)))])
    verdict, _ = compared([(here, 0), (there, 0)])
    assert verdict.divergence is not None
    assert verdict.divergence.first == sum(sizes[:common])


@given(sizes=SIZES, data=st.data())
def test_prefixes_of_one_log_agree_whatever_was_deleted(sizes: list[int], data: st.DataObject) -> None:
    whole = batches(sizes, [b"%d" % row for row in range(len(sizes))])
    kept = data.draw(st.integers(1, len(sizes)), "batches of the mirror")
    starts = [data.draw(st.integers(0, kept - 1), "first stored batch") for _ in range(2)]
    verdict, requests = compared([(whole, starts[0]), (whole[:kept], starts[1])])
    assert verdict.state is VerdictState.AGREES
    assert verdict.findings[1].behind == sum(sizes[kept:])
    assert requests <= 3
