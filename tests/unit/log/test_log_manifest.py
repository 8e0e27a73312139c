"""Manifests: what is believed of their bytes, and which are kept."""

from __future__ import annotations

import zlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from georelay.ids import RaftIndex
from georelay.wire.crc import crc32c
from region.log import manifest as manifest_module
from region.log.entry import Entry
from region.log.filesystem import OsFileSystem
from region.log.group_log import GroupLog
from region.log.manifest import Manifest, ManifestError

if TYPE_CHECKING:
    from tests.unit.log.conftest import EntryMaker


def manifest_of(entry: Entry, state: bytes = b"state") -> Manifest:
    return Manifest(
        index=entry.index,
        term=entry.term,
        chain=entry.chain,
        stream_part=entry.stream_part,
        state=state,
        membership=b"m",
    )


def test_a_manifest_survives_its_bytes(make: EntryMaker) -> None:
    for state in (b"", b"x", bytes(range(256)) * 1000):
        manifest = manifest_of(make.data(records=3), state)
        assert Manifest.decode(manifest.encode()) == manifest
    assert manifest.next_offset == 9


def test_every_flipped_bit_and_every_cut_of_a_manifest_is_refused(make: EntryMaker) -> None:
    raw = manifest_of(make.data()).encode()
    for bit in range(8 * len(raw)):
        damaged = bytearray(raw)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ManifestError):
            Manifest.decode(bytes(damaged))
    for size in range(len(raw)):
        with pytest.raises(ManifestError):
            Manifest.decode(raw[:size])


def sealed(raw: bytes) -> bytes:
    return raw + int(crc32c(raw)).to_bytes(4, "big")


def test_a_manifest_that_lies_about_its_lengths_is_refused(make: EntryMaker) -> None:
    good = manifest_of(make.data(), b"s" * 1000).encode()[:-4]
    for position, value in ((36, 99), (40, 999), (40, 1001), (40, 1 << 31), (44, 3), (4, 2 << 16), (8, 0)):
        width = 8 if position == 8 else 4
        raw = good[:position] + value.to_bytes(width, "big") + good[position + width :]
        with pytest.raises(ManifestError):
            Manifest.decode(sealed(raw))
    bomb = zlib.compress(bytes(10_000_000))
    raw = good[:40] + (1000).to_bytes(4, "big") + len(bomb).to_bytes(4, "big") + good[48:129] + bomb
    with pytest.raises(ManifestError, match="does not have the 1000 bytes"):
        Manifest.decode(sealed(raw))
    with pytest.raises(ManifestError, match="cannot be unpacked"):
        Manifest.decode(sealed(good[:44] + (3).to_bytes(4, "big") + good[48:129] + b"xyz"))


def test_what_is_over_the_limits_is_not_encoded(make: EntryMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest_module, "MANIFEST_STATE_BYTES_MAX", 100)
    with pytest.raises(ManifestError, match="is over 100"):
        manifest_of(make.data(), bytes(101)).encode()
    with pytest.raises(ManifestError, match="STREAM part of 3 bytes"):
        replace(manifest_of(make.data()), stream_part=b"abc").encode()


def test_kept_are_those_at_segment_ends_and_the_two_newest(tmp_path: Path, make: EntryMaker) -> None:
    entries = [make.data(b"x" * 100) for _ in range(12)]
    log = GroupLog.open(tmp_path, OsFileSystem(), segment_bytes_max=1000)
    log.append(entries)
    log.sync()
    for entry in entries:
        log.write_manifest(manifest_of(entry))
    ends = [info.last_index for info in log.sealed_segments()]
    found = sorted(int(path.stem) for path in tmp_path.glob("*.manifest"))
    assert ends == [4, 8] and found == [4, 8, 11, 12] and log.manifest_index == 12
    assert [log.read_manifest(index) is not None for index in (3, 4, 8, 9)] == [False, True, True, False]
    log.advance_start(RaftIndex(9))
    assert (log.first_index, log.base_term, log.base_chain) == (9, 1, entries[7].chain)
    assert sorted(int(path.stem) for path in tmp_path.glob("*.manifest")) == [8, 11, 12]


def test_the_start_only_moves_to_a_boundary_that_has_a_manifest(tmp_path: Path, make: EntryMaker) -> None:
    entries = [make.data(b"x" * 100) for _ in range(12)]
    log = GroupLog.open(tmp_path, OsFileSystem(), segment_bytes_max=1000)
    log.append(entries)
    log.sync()
    log.advance_start(RaftIndex(9))
    assert log.first_index == 1
    log.write_manifest(manifest_of(entries[3]))
    log.advance_start(RaftIndex(4))
    assert log.first_index == 1
    log.advance_start(RaftIndex(12))
    assert log.first_index == 5
    log.advance_start(RaftIndex(12))
    assert log.first_index == 5


def test_a_log_without_an_entry_begins_where_its_manifest_says(tmp_path: Path, make: EntryMaker) -> None:
    elsewhere = [make.data(records=2, term=3) for _ in range(7)]
    log = GroupLog.open(tmp_path / "1", OsFileSystem())
    log.install(manifest_of(elsewhere[-1]))
    for one in (log, GroupLog.open(tmp_path / "1", OsFileSystem())):
        assert (one.first_index, one.last_index, one.last_term, one.next_offset) == (8, 7, 3, 14)
        assert one.base_manifest() == manifest_of(elsewhere[-1]) and one.term_runs == ()
    log.append([make.data(term=3)])
    log.sync()
    assert GroupLog.open(tmp_path / "1", OsFileSystem()).last_index == 8
