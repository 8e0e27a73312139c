"""A tear never touches what is whole: the broker's own recovery finds the same entries behind every one of them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from georelay.ids import Epoch, Offset, RaftIndex, Term
from mesh.replication.stream_header import EntryType
from region.faults.tear import KINDS, NOISE, tear_a_log
from region.log.entry import FIRST_CHAIN, Entry, EntryDraft, control_header, seal_entry
from region.log.filesystem import OsFileSystem
from region.log.flushed_marks import MARKS_NAME, FlushedMark
from region.log.group_log import GroupLog
from tests.tiers import first

ENTRIES = 5
SEEDS = 60


def noops() -> list[Entry]:
    entries: list[Entry] = []
    chain = FIRST_CHAIN
    for index in range(1, ENTRIES + 1):
        header = control_header(
            EntryType.NOOP, next_offset=Offset(0), epoch=Epoch(1), append_us=index, digest=bytes(range(16))
        )
        entry = seal_entry(
            EntryDraft(header=header, payload=b""), term=Term(1), index=RaftIndex(index), previous_chain=chain
        )
        chain = entry.chain
        entries.append(entry)
    return entries


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "groups" / "7"
    folder.mkdir(parents=True)
    (tmp_path / "groups" / "8").mkdir()  # a group without an entry is passed over
    (folder / f"{1:020d}.log").write_bytes(b"".join(entry.frame for entry in noops()))
    (tmp_path / MARKS_NAME).write_bytes(b"")
    return tmp_path


@pytest.mark.parametrize("seed", first(10, range(SEEDS)))
def test_recovery_finds_every_entry_behind_a_tear(data_dir: Path, seed: int) -> None:
    entries = noops()
    tear = tear_a_log(data_dir, random.Random(seed))
    assert tear is not None
    whole = b"".join(entry.frame for entry in entries)
    assert (tear.position, tear.segment.parent.name) == (len(whole), "7")
    assert tear.segment.read_bytes()[: len(whole)] == whole
    assert tear.segment.stat().st_size == len(whole) + tear.size > len(whole)
    last = entries[-1]
    mark = FlushedMark(last.index, last.term, last.chain)
    log = GroupLog.open(tear.segment.parent, OsFileSystem(), mark=mark)
    assert (log.last_index, log.last_chain) == (ENTRIES, last.chain)
    log.close()


def kinds_of(data_dir: Path) -> set[str]:
    return {tear.kind for seed in range(SEEDS) if (tear := tear_a_log(data_dir, random.Random(seed))) is not None}


def test_all_kinds_of_tears_come(data_dir: Path) -> None:
    assert kinds_of(data_dir) == {*KINDS, NOISE}


def test_without_flushed_marks_only_what_an_interrupted_write_explains_comes(data_dir: Path) -> None:
    (data_dir / MARKS_NAME).unlink()
    assert kinds_of(data_dir) == set(KINDS)


def test_one_seed_is_one_tear(data_dir: Path) -> None:
    assert tear_a_log(data_dir, random.Random(3)) == tear_a_log(data_dir, random.Random(3))
