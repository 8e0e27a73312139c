"""Bad trace files beside the traces, each with its evidence: what it was, why it was moved, what it should hold.

Rule 1: a file is moved when its content is wrong, twice, and it is older than QUARANTINE_AGE_S_MIN: one that is still
        being copied into the directory looks torn too.
Rule 2: the evidence is written first and stays; a file that was moved is counted by every later report, until a good
        file stands in its place again.

A file keeps its path below the quarantine; `<path>.json` is its evidence.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from typing import Any, Final

from sla.sources.layout import FilePlace, Period, find_places
from sla.sources.location import Entry, Location
from sla.sources.manifest import BadFile
from sla.sources.verify import check

QUARANTINE_AGE_S_MIN: Final = 300
EVIDENCE_SUFFIX: Final = ".json"
EVIDENCE_VERSION: Final = 1
_NS: Final = 1_000_000_000


class Quarantine:
    """The bad files of one trace directory.

    Args:
        location: where they are moved to.
        age_s_min: files written less long ago stay where they are.
    """

    def __init__(self, location: Location, *, age_s_min: int = QUARANTINE_AGE_S_MIN) -> None:
        self._location = location
        self._age_ns_min = age_s_min * _NS

    def take(self, traces: Location, bad: BadFile, *, now_ns: int) -> bool:
        """Move a bad file here; return whether it was moved.

        Raises:
            OSError: it cannot be moved; it stands where it stood.
        """
        if not bad.is_damaged or (bad.mtime_ns is not None and now_ns - bad.mtime_ns < self._age_ns_min):
            return False
        entry = Entry(relative=bad.relative, size_bytes=bad.size_bytes, mtime_ns=bad.mtime_ns)
        again = check(traces, bad.place, entry, is_whole=True)
        if not isinstance(again, BadFile) or again.reason != bad.reason:
            return False
        evidence = {
            "version": EVIDENCE_VERSION,
            "file": bad.relative,
            "reason": bad.reason,
            "size_bytes": bad.size_bytes,
            "rows_expected": bad.rows_expected,
            "crc32": f"{_crc(traces, bad.relative):08x}",
            "moved_at_ns": now_ns,
        }
        self._location.write_whole(bad.relative + EVIDENCE_SUFFIX, json.dumps(evidence, indent=1).encode())
        traces.move(bad.relative, self._location)
        return True

    def moved(
        self, period: Period, present: Iterable[FilePlace], *, hours_before: int = 1, hours_after: int = 1
    ) -> list[BadFile]:
        """Return what was moved here of the hours of a period, but for what stands in the traces again.

        Args:
            present: the files that are in the trace directory now.
            hours_before: and of so many hours before the period; `hours_after`: behind it.

        Raises:
            OSError: the quarantine cannot be read.
        """
        replaced = {place.relative for place in present}
        found = []
        for place, entry in find_places(self._location, period, hours_before=hours_before, hours_after=hours_after):
            if place.relative in replaced:
                continue
            evidence = self._evidence(place.relative)
            rows = evidence.get("rows_expected")
            found.append(
                BadFile(
                    place=place,
                    size_bytes=entry.size_bytes,
                    reason=str(evidence.get("reason", "moved to the quarantine by somebody")),
                    rows_expected=rows if isinstance(rows, int) else None,
                    mtime_ns=entry.mtime_ns,
                    is_moved=True,
                )
            )
        return found

    def _evidence(self, relative: str) -> dict[str, Any]:
        try:
            evidence = json.loads(self._location.read(relative + EVIDENCE_SUFFIX))
        except (FileNotFoundError, ValueError):
            return {}
        return evidence if isinstance(evidence, dict) else {}


def _crc(location: Location, relative: str) -> int:
    crc = 0
    with location.open_input(relative) as file:
        while chunk := file.read(1 << 20):
            crc = zlib.crc32(chunk, crc)
    return crc
