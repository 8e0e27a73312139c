"""What earlier runs found out about trace files, so that a file is read whole once and not at every report.

Rule 1: a file is known by its path, size and the time it was written; where one of them differs, or the store does
        not say when, it is not known.
Rule 2: only good files are remembered: a bad one is looked at again every time.
Rule 3: this is no evidence against rot on the disk: that is what `verify --deep` reads everything for.

One JSON document per hour, `date=YYYY-MM-DD/hour=HH.json`. One that cannot be read is as good as none, and any may be
deleted at any time.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable
from typing import Any, Final

from georelay.trace.files import TraceFileMetadata
from sla.sources.layout import FilePlace, hour_folder
from sla.sources.location import Entry, Location
from sla.sources.manifest import GoodFile

FORMAT_VERSION: Final = 1


class ProvenFiles:
    """The memory of one trace directory.

    Args:
        location: where the documents are; nothing is remembered without.
    """

    def __init__(self, location: Location | None) -> None:
        self._location = location
        self._hours: dict[int, dict[str, dict[str, Any]]] = {}

    def recall(self, place: FilePlace, entry: Entry) -> GoodFile | None:
        """Return what is known of a file, None when nothing is.

        Raises:
            OSError: the store cannot be read.
        """
        known = self._hour(place.hour_s).get(place.relative)
        if known is None or entry.mtime_ns is None:
            return None
        if (known["size_bytes"], known["mtime_ns"]) != (entry.size_bytes, entry.mtime_ns):
            return None
        return _file_of(place, known)

    def rows_expected(self, place: FilePlace) -> int | None:
        """Return how many rows a file had when it was good, None when it never was."""
        known = self._hour(place.hour_s).get(place.relative)
        return None if known is None else int(known["metadata"]["rows"])

    def remember(self, files: Iterable[GoodFile], *, present: Container[str]) -> None:
        """Note good files; hours in which something changed are written, without what is gone.

        Args:
            present: paths of all files that are in these hours, bad ones too: what they held when they were good is
                still worth knowing.

        Raises:
            OSError: a document cannot be written.
        """
        if self._location is None:
            return
        changed = set()
        for file in files:
            if file.mtime_ns is None:
                continue
            hour, row = self._hour(file.place.hour_s), _row_of(file)
            if hour.get(file.relative) != row:
                hour[file.relative] = row
                changed.add(file.place.hour_s)
        for hour_s in sorted(changed):
            hour = {name: row for name, row in sorted(self._hours[hour_s].items()) if name in present}
            document = {"version": FORMAT_VERSION, "files": hour}
            raw = json.dumps(document, separators=(",", ":")).encode()
            self._location.write_whole(f"{hour_folder(hour_s)}.json", raw)

    def _hour(self, hour_s: int) -> dict[str, dict[str, Any]]:
        if hour_s not in self._hours:
            self._hours[hour_s] = self._load(hour_s)
        return self._hours[hour_s]

    def _load(self, hour_s: int) -> dict[str, dict[str, Any]]:
        if self._location is None:
            return {}
        try:
            document = json.loads(self._location.read(f"{hour_folder(hour_s)}.json"))
        except (FileNotFoundError, ValueError):
            return {}
        if not isinstance(document, dict) or document.get("version") != FORMAT_VERSION:
            return {}
        files = document.get("files")
        return {name: row for name, row in files.items() if _is_row(name, row)} if isinstance(files, dict) else {}


def _row_of(file: GoodFile) -> dict[str, Any]:
    metadata = file.metadata
    return {
        "size_bytes": file.size_bytes,
        "mtime_ns": file.mtime_ns,
        "digest": f"{file.digest:064x}",
        "input_files": file.input_files,
        "is_whole": file.is_whole,
        "time_s": [file.time_min_s, file.time_max_s],
        "metadata": {
            "first_row_seq": metadata.first_row_seq,
            "last_row_seq": metadata.last_row_seq,
            "rows": metadata.rows,
            "dropped": metadata.dropped,
            "hist_grid": metadata.hist_grid,
            "schema_version": metadata.schema_version,
        },
    }


def _is_row(name: str, row: object) -> bool:
    """Return whether a row is one of ours: a document may have been written by anybody."""
    place = FilePlace.parse(name)
    if place is None or not isinstance(row, dict):
        return False
    try:
        return _row_of(_file_of(place, row)) == row
    except (KeyError, TypeError, ValueError):
        return False


def _file_of(place: FilePlace, row: dict[str, Any]) -> GoodFile:
    name = place.name
    time_min_s, time_max_s = row["time_s"]
    return GoodFile(
        place=place,
        metadata=TraceFileMetadata(kind=name.kind, writer=place.writer, boot_id=name.boot_id, **row["metadata"]),
        size_bytes=int(row["size_bytes"]),
        digest=int(row["digest"], 16),
        input_files=int(row["input_files"]),
        mtime_ns=int(row["mtime_ns"]),
        is_whole=row["is_whole"] is True,
        time_min_s=time_min_s,
        time_max_s=time_max_s,
    )
