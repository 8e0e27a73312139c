"""Tears the end of a log, as a power cut in the middle of a write does, while its broker is down.

Rule: nothing that is whole is touched. Bytes are written behind the last whole entry, where only a write that was
never acknowledged can have been.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from region.log.entry import Entry, EntryError, decode_entry
from region.log.filesystem import SECTOR_BYTES
from region.log.flushed_marks import MARKS_NAME

GARBAGE_BYTES_MAX: Final = 16 * SECTOR_BYTES
KINDS: Final = ("zeros", "half an entry", "an entry with holes")
NOISE: Final = "noise"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tear:
    """What was done: `size` bytes of a `kind` at `position` of a segment."""

    segment: Path
    position: int
    size: int
    kind: str


def tear_a_log(data_dir: Path, rng: random.Random) -> Tear | None:
    """Tear the log of one group of a stopped broker; None when no group has an entry in its last segment.

    Raises:
        OSError: a file cannot be read or written.
    """
    # Without a flushed mark a broker must take for damage what no interrupted write explains.
    kinds = (*KINDS, NOISE) if (data_dir / MARKS_NAME).exists() else KINDS
    folders = sorted(path for path in (data_dir / "groups").iterdir() if path.is_dir())
    rng.shuffle(folders)
    for folder in folders:
        segments = sorted(folder.glob("*.log"))
        entries = _whole_entries(segments[-1].read_bytes()) if segments else []
        if entries:
            return _tear(segments[-1], entries, rng.choice(kinds), rng)
    return None


def _whole_entries(raw: bytes) -> list[Entry]:
    """Return the entries up to the first bytes that are none: reserved room, or a tear."""
    entries: list[Entry] = []
    position = 0
    while position < len(raw):
        try:
            entry = decode_entry(raw, position, previous_chain=entries[-1].chain if entries else None)
        except EntryError:
            break
        entries.append(entry)
        position += len(entry.frame)
    return entries


def _tear(segment: Path, entries: list[Entry], kind: str, rng: random.Random) -> Tear:
    position = sum(len(entry.frame) for entry in entries)
    garbage = _garbage(kind, bytes(entries[-1].frame), position, rng)
    with segment.open("r+b") as file:
        file.truncate(position)  # reserved room, or torn already
        file.seek(position)
        file.write(garbage)
    return Tear(segment=segment, position=position, size=len(garbage), kind=kind)


def _garbage(kind: str, frame: bytes, position: int, rng: random.Random) -> bytes:
    if kind == "zeros":
        return bytes(rng.randint(1, GARBAGE_BYTES_MAX))
    if kind == NOISE:
        return rng.randbytes(rng.randint(1, GARBAGE_BYTES_MAX))
    if kind == "half an entry":
        return frame[: rng.randint(1, len(frame) - 1)]
    # The first sector never arrived, later ones did: a disk writes them in any order.
    arrived = SECTOR_BYTES - position % SECTOR_BYTES
    return bytes(min(arrived, len(frame))) + frame[arrived:]
