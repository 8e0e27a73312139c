"""What the roll-ups' manifests say: of an hour what it was made of and where its rows stand, of a day what it holds.

Rule 1: a manifest is written whole and replaced whole; it names files, and a name is never used twice.
Rule 2: a manifest that cannot be read is an error, never an hour or a day that nobody knows: what it names would go.
        It has a checksum of its own bytes, so what a disk or a hand changed in it is no other manifest.
Rule 3: a day holds an hour of a table while the hour's manifest names the very files that the day was made of. An hour
        that is rolled up again names others: with that one write its rows stand there, and no longer in its day.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

MANIFEST_VERSION: Final = 3
HOUR_DAMAGED: Final = (
    "is damaged: restore it from a copy, or delete it: the hour is then rolled up from the traces that are left"
)
DAY_DAMAGED: Final = (
    "is damaged: restore it from a copy, or delete its folder: its hours are then rolled up from what traces are left"
)
_WITHOUT_CHECKSUM: Final = 1  # such manifests are still read
_CHECKSUM: Final = re.compile(rb', "crc32": (\d{1,10})\}\n\Z')
RowRanges = Mapping[str, Sequence[Sequence[int]]]  # kind/broker/boot -> merged [first, last] row numbers
Parts = Mapping[str, Sequence[str]]  # table -> names of files


class UnknownManifest(ValueError):
    """Bytes that are no manifest that this version knows; the text says what they are and what to do."""


class HourAction(enum.Enum):
    """What a job did with an hour."""

    BUILT = "built"
    CURRENT = "current"  # nothing changed since it was built
    KEPT = "kept"  # its inputs are gone: retention deleted them, or they are in quarantine since


@dataclass(frozen=True, slots=True, kw_only=True)
class HourRun:
    """The manifest of one hour.

    Args:
        hour_s: start of the hour, seconds since 1970 UTC.
        revision: how often it was built, from 1.
        is_final: it was built after the settle time was over.
        is_revised: it was built again, from other inputs, after it had been final.
        input_hash: stands for every row that was read and for the settle time.
        carry_hash: stands for what the hour before handed on, `carry_out_hash` for what this one does.
        rows_read: by kind of trace file.
        quarantined: files set aside of this hour and its neighbours. missing_rows: row numbers absent from the files.
        row_ranges: kind/broker/boot -> merged [first, last] row numbers that were read.
        built_at: when the files were listed, ISO 8601, UTC. code_version: of the transforms.
        parts: table -> names of the files of its rows; None in manifests of before files were named: all in the
            hour's folder.
        missing_ranges: kind/region/broker/boot -> merged [first, last] row numbers that are missing before files in the
            hour's folder; None in manifests of before they were named.
        action: what the job did; left_out_rows: of a kept hour, rows of its files that it was not made of. Not stored.
    """

    hour_s: int
    revision: int
    is_final: bool
    is_revised: bool
    input_hash: str
    carry_hash: str
    carry_out_hash: str
    rows_read: Mapping[str, int]
    files: int
    quarantined: int
    missing_rows: int
    settle_s: int
    row_ranges: Mapping[str, list[list[int]]]
    built_at: str
    code_version: str
    parts: Parts | None = field(default=None, compare=False)
    missing_ranges: Mapping[str, list[list[int]]] | None = None
    action: HourAction = field(default=HourAction.CURRENT, compare=False)
    left_out_rows: int = field(default=0, compare=False)

    def encode(self) -> bytes:
        """Return the manifest's bytes."""
        values = dataclasses.asdict(self)
        del values["action"], values["left_out_rows"]
        return _encoded(values)

    @classmethod
    def decode(cls, raw: bytes) -> HourRun:
        """Return the manifest.

        Raises:
            UnknownManifest: it is none that this version knows.
        """
        document = _document(raw, HOUR_DAMAGED)
        try:
            run = cls(**document)
        except TypeError as error:
            raise UnknownManifest(HOUR_DAMAGED) from error
        if not run._has_types():
            raise UnknownManifest(HOUR_DAMAGED)
        return run

    def _has_types(self) -> bool:
        """Return whether every value is of the type that it says: what was decoded may be anything."""
        numbers = (self.hour_s, self.revision, self.files, self.quarantined, self.missing_rows, self.settle_s)
        texts = (self.input_hash, self.carry_hash, self.carry_out_hash, self.built_at, self.code_version)
        return (
            all(map(_is_number, numbers))
            and all(isinstance(flag, bool) for flag in (self.is_final, self.is_revised))
            and all(isinstance(text, str) for text in texts)
            and isinstance(self.rows_read, Mapping)
            and all(map(_is_number, self.rows_read.values()))
            and _are_rows(self.row_ranges)
            and (self.missing_ranges is None or _are_rows(self.missing_ranges))
            and (self.parts is None or _are_parts(self.parts))
        )

    def parts_of(self, table: str) -> tuple[str, ...]:
        """Return the names of a table's files."""
        assert self.parts is not None, self.hour_s  # the store fills them in as it reads a manifest
        return tuple(self.parts.get(table, ()))

    def lacks(self, earlier: HourRun) -> bool:
        """Return whether rows that `earlier` was made of are not among those of this run."""
        return lacks_rows(self.row_ranges, earlier.row_ranges)


def lacks_rows(mine: RowRanges, theirs: RowRanges) -> bool:
    """Return whether row numbers of `theirs` are not among `mine`."""
    for run, ranges in theirs.items():
        own = mine.get(run, [])
        if any(not any(low <= first and last <= high for low, high in own) for first, last in ranges):
            return True
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class DayFile:
    """One table's rows of some hours of a day.

    Args:
        name: of the file, in the folder of the table's date.
        holds: start of an hour, seconds since 1970 -> names of the files that its rows were copied from.
    """

    name: str
    holds: Mapping[int, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DayRun:
    """The manifest of one day.

    Args:
        day_s: start of the day, seconds since 1970 UTC.
        files: table -> its file; tables that have none are left out.
    """

    day_s: int
    files: Mapping[str, DayFile]

    def encode(self) -> bytes:
        """Return the manifest's bytes."""
        files = {table: {"name": file.name, "holds": file.holds} for table, file in self.files.items()}
        return _encoded({"day_s": self.day_s, "files": files})

    @classmethod
    def decode(cls, raw: bytes) -> DayRun:
        """Return the manifest.

        Raises:
            UnknownManifest: it is none that this version knows.
        """
        document = _document(raw, DAY_DAMAGED)
        if document.keys() != {"day_s", "files"} or not _is_number(document["day_s"]):
            raise UnknownManifest(DAY_DAMAGED)
        try:
            files = {}
            for table, file in document["files"].items():
                if not _is_name(file["name"]) or not _are_parts(file["holds"]):
                    raise UnknownManifest(DAY_DAMAGED)
                holds = {int(hour_s): tuple(names) for hour_s, names in file["holds"].items()}
                files[table] = DayFile(name=file["name"], holds=holds)
            return cls(day_s=document["day_s"], files=files)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise UnknownManifest(DAY_DAMAGED) from error

    def holds(self, run: HourRun, table: str) -> bool:
        """Return whether this day has the rows that an hour's manifest names."""
        file = self.files.get(table)
        return file is not None and file.holds.get(run.hour_s) == run.parts_of(table)


def _encoded(values: Mapping[str, Any]) -> bytes:
    """Return the bytes of a manifest of our version, its checksum last: it is that of the bytes without it."""
    document = json.dumps({"manifest_version": MANIFEST_VERSION} | dict(values), sort_keys=True).encode()
    return document[:-1] + b', "crc32": %d}\n' % zlib.crc32(document)


def _document(raw: bytes, damaged: str) -> dict[str, Any]:
    """Return the values of a manifest of our version or of an earlier one, number and checksum taken out."""
    try:
        values: dict[str, Any] = json.loads(raw)
        version = values.pop("manifest_version")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UnknownManifest(damaged) from error
    if _is_number(version) and version > MANIFEST_VERSION:
        raise UnknownManifest(f"was written by a newer version of georelay-sla (manifest {version}): use that version")
    if not _is_number(version) or version < _WITHOUT_CHECKSUM:
        raise UnknownManifest(damaged)
    if version > _WITHOUT_CHECKSUM:
        found = _CHECKSUM.search(raw)
        if found is None or zlib.crc32(raw[: found.start()] + b"}") != values.pop("crc32", None):
            raise UnknownManifest(damaged)
    return values


def _is_number(value: object) -> bool:
    return type(value) is int  # what JSON has: true is of another type


def _are_rows(rows: object) -> bool:
    return isinstance(rows, Mapping) and all(map(_are_ranges, rows.values()))


def _are_ranges(ranges: object) -> bool:
    # A loop, and types compared: of a year these are hundreds of thousands.
    if not isinstance(ranges, list):
        return False
    for pair in ranges:
        if type(pair) is not list or len(pair) != 2 or type(pair[0]) is not int or type(pair[1]) is not int:
            return False
    return True


def _is_name(name: object) -> bool:
    return isinstance(name, str) and name != "" and "/" not in name


def _are_parts(parts: object) -> bool:
    return isinstance(parts, Mapping) and all(
        isinstance(names, list) and all(map(_is_name, names)) for names in parts.values()
    )
