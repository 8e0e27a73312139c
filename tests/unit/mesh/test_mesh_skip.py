"""A mirror that is behind its home's log start gives up exactly what is deleted there, and hears of every new start."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from georelay.ids import Epoch, Offset
from mesh.replication.link_state import LinkState


def payload(number: int) -> bytes:
    return f"batch {number:06d} ".encode() * 4


def filled(memory_log: Any, batches: int, **settings: Any) -> Any:
    log = memory_log(**settings)
    for number in range(batches):
        log.sequence(payload(number))
    return log


async def test_a_mirror_below_the_log_start_skips_what_is_deleted_and_continues_behind_it(
    two_regions: Any, until: Any, memory_log: Any, key: Any
) -> None:
    home, mirror = filled(memory_log, 5), memory_log()
    home.delete_below(Offset(2))
    two_regions.home.logs[key] = home
    two_regions.mirror.links.mirror_started(mirror)
    await until(lambda: mirror.high_watermark == 5)
    assert mirror.entries == home.entries
    assert [(point.last, point.producers) for point in mirror.skipped] == [(1, b"states with checksums")]
    home.sequence(payload(5))
    await until(lambda: mirror.high_watermark == 6)
    assert len(mirror.skipped) == 1


async def test_a_mirror_that_ends_exactly_at_the_log_start_skips_nothing(
    two_regions: Any, until: Any, memory_log: Any, key: Any
) -> None:
    home, mirror = filled(memory_log, 5), memory_log()
    for entry in home.entries[:2]:
        mirror.append_batch(_header(entry), entry.payload)
    home.delete_below(Offset(2))
    two_regions.home.logs[key] = home
    two_regions.mirror.links.mirror_started(mirror)
    await until(lambda: mirror.high_watermark == 5)
    assert (mirror.skipped, mirror.payloads()) == ([], [payload(number) for number in range(5)])


async def test_a_skip_that_the_mirror_could_not_append_is_asked_for_again(
    two_regions: Any, until: Any, memory_log: Any, key: Any
) -> None:
    home, mirror = filled(memory_log, 5), memory_log(skips_refused=2)
    home.delete_below(Offset(3))
    two_regions.home.logs[key] = home
    two_regions.mirror.links.mirror_started(mirror)
    await until(lambda: mirror.high_watermark == 5)
    assert (mirror.skips_refused, len(mirror.skipped), mirror.first) == (0, 1, 3)


async def test_a_log_start_that_overtakes_a_session_ends_it_and_the_mirror_skips(
    two_regions: Any, until: Any, memory_log: Any, key: Any
) -> None:
    home, mirror = filled(memory_log, 5), memory_log(commits_at_once=False)
    two_regions.home.logs[key] = home
    two_regions.mirror.links.mirror_started(mirror)
    await until(lambda: mirror.next_offset == 5)
    mirror.entries.clear()  # its new leader holds less
    two_regions.mirror.links.mirror_stopped(key)
    home.delete_below(Offset(4))
    two_regions.mirror.links.mirror_started(mirror)
    await until(lambda: mirror.next_offset == 5)
    assert [point.last for point in mirror.skipped] == [3]


async def test_records_deleted_while_the_mirror_waits_for_them_are_skipped(
    two_regions: Any, until: Any, memory_log: Any, key: Any
) -> None:
    home, mirror = filled(memory_log, 5), memory_log(refuses=1)
    two_regions.home.logs[key] = home
    two_regions.mirror.links.mirror_started(mirror)
    await until(lambda: two_regions.home.links.snapshot() != [] and mirror.refuses == 0)
    if mirror.high_watermark == 0:
        home.delete_below(Offset(3))
    home.sequence(payload(5))
    await until(lambda: mirror.high_watermark == 6)
    assert mirror.payloads() == home.payloads()[-len(mirror.payloads()) :]


async def test_a_skip_into_a_later_epoch_raises_the_mirrors_epoch(
    two_regions: Any, until: Any, memory_log: Any, key: Any
) -> None:
    home, mirror = filled(memory_log, 4), memory_log()
    home.begin_epoch(Epoch(3), Offset(4))
    for number in range(4, 8):
        home.sequence(payload(number))
    home.delete_below(Offset(6))
    two_regions.home.logs[key] = home
    two_regions.mirror.links.mirror_started(mirror)
    await until(lambda: mirror.high_watermark == 8)
    assert (mirror.epoch, mirror.table, mirror.entries) == (3, home.table, home.entries)


async def test_the_mirror_hears_the_homes_log_start_at_once_and_whenever_it_moves(
    two_regions: Any, until: Any, memory_log: Any, key: Any
) -> None:
    home, mirror = filled(memory_log, 5), memory_log()
    two_regions.home.logs[key] = home
    two_regions.mirror.links.mirror_started(mirror)
    await until(lambda: mirror.high_watermark == 5)
    assert mirror.home_starts == [0]
    home.delete_below(Offset(3))
    await until(lambda: mirror.home_starts == [0, 3])
    await asyncio.sleep(0)
    session = two_regions.home.links.snapshot()[0]
    assert session.state is LinkState.IDLE  # nothing has to be said again for it


async def test_the_home_knows_how_far_each_mirror_has_committed(
    two_regions: Any, until: Any, memory_log: Any, key: Any
) -> None:
    home, mirror = filled(memory_log, 5), memory_log(commits_at_once=False)
    two_regions.home.logs[key] = home
    assert two_regions.home.links.mirror_positions(key) == {}
    two_regions.mirror.links.mirror_started(mirror)
    await until(lambda: mirror.next_offset == 5)
    mirror.commit(3)
    await until(lambda: two_regions.home.links.mirror_positions(key) == {2: 3})
    await two_regions.wire.cut()
    assert two_regions.home.links.mirror_positions(key) == {2: 3}  # what it holds, it holds


async def test_a_home_that_cannot_say_where_to_continue_serves_the_others(
    two_regions: Any, until: Any, memory_log: Any, key: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, mirror = filled(memory_log, 5), memory_log()
    home.delete_below(Offset(2))
    point = home.skip_point()
    wrong = type(point)(last=point.last, digest=point.digest, table=((Epoch(1), Offset(9)),), producers=b"")
    monkeypatch.setattr(memory_log, "skip_point", lambda self, **_: wrong)
    two_regions.home.logs[key] = home
    two_regions.mirror.links.mirror_started(mirror)
    link = two_regions.mirror.links._outgoing.to_broker(1001)
    await until(lambda: "makes no sense" in link.last_failure)
    assert (mirror.skipped, mirror.payloads()) == ([], [])


def _header(entry: Any) -> Any:
    from mesh.replication.stream_header import StreamHeader

    return StreamHeader.decode(entry.stream_part)
