"""The independent reader agrees with the log and notices what is wrong."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from region.log.errors import LogCorrupt
from region.log.filesystem import OsFileSystem
from region.log.group_log import GroupLog
from region.log.segment_reader import batches_sha256, main, read_group, valid_branch

if TYPE_CHECKING:
    from tests.unit.log.conftest import EntryMaker


@pytest.fixture
def folder(tmp_path: Path, make: EntryMaker) -> Path:
    """Two epochs; the second makes the last two batches of the first orphans."""
    path = tmp_path / "groups" / "4"
    log = GroupLog.open(path, OsFileSystem(), segment_bytes_max=1000)
    log.append([make.control(), make.begin_epoch(1, 0), *(make.data(b"one%d" % n) for n in range(6))])
    log.append([make.begin_epoch(2, 4), *(make.data(b"two%d" % n) for n in range(3))])
    log.sync()
    log.close()
    return path


def test_it_lists_every_entry_in_order(folder: Path) -> None:
    assert [entry.index for entry in read_group(folder)] == list(range(1, 13))


def test_the_valid_branch_is_dense_and_without_orphans(folder: Path) -> None:
    branch = valid_branch(read_group(folder))
    assert [entry.base_offset for entry in branch] == list(range(7))
    assert bytes(branch[-1].payload) == b"two2"


def test_the_hash_covers_the_raw_batches_in_offset_order(folder: Path) -> None:
    payloads = [b"one0", b"one1", b"one2", b"one3", b"two0", b"two1", b"two2"]
    assert batches_sha256(folder) == hashlib.sha256(b"".join(payloads)).hexdigest()
    assert batches_sha256(folder, below=3) == hashlib.sha256(b"".join(payloads[:3])).hexdigest()


def test_every_flipped_byte_is_noticed(folder: Path) -> None:
    for path in sorted(folder.glob("*.log")):
        good = path.read_bytes()
        for position in range(0, len(good), 7):
            path.write_bytes(good[:position] + bytes([good[position] ^ 4]) + good[position + 1 :])
            with pytest.raises(LogCorrupt):
                list(read_group(folder))
        path.write_bytes(good)


def test_a_half_written_tail_ends_the_reading(folder: Path) -> None:
    last = max(folder.glob("*.log"))
    last.write_bytes(last.read_bytes()[:-1])
    assert [entry.index for entry in read_group(folder)] == list(range(1, 12))


def test_the_command_prints_json_lines(tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path), "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["index"] for row in rows] == list(range(1, 13)) and rows[1]["type"] == "EPOCH"


def test_the_command_prints_a_table_and_hashes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(folder)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 13
    assert main([str(folder), "--sha256"]) == 0
    assert capsys.readouterr().out.split() == ["4", batches_sha256(folder)]


def test_the_command_says_in_one_line_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "nowhere")]) == 1
    assert capsys.readouterr().err == f"error: {tmp_path / 'nowhere'} is not a directory\n"
