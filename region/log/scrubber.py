"""Reads sealed segments again and again at a low rate, so that damage is found while other replicas are whole.

Rule 1: one segment after the other in the order of group and index, then from the beginning; what is sealed or removed
meanwhile joins or leaves the round by itself.
Rule 2: a segment that is damaged, or that the disk refuses to read, is marked (nobody reads it) and reported once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from georelay.errors import StorageFailed
from georelay.ids import GroupId
from region.log.errors import LogCorrupt, ReadInterrupted
from region.log.group_log import GroupLog
from region.log.manifest_files import manifest_path

SCRUB_BYTES_PER_SECOND: Final = 8 * 1024 * 1024
SCRUB_PIECE_BYTES: Final = 1024 * 1024
IDLE_SECONDS: Final = 60.0  # between two rounds, and while there is nothing to read

ScrubTarget = tuple[GroupId, int]  # group, first index of the segment


def next_target(
    groups: Iterable[GroupId], segments_of: Callable[[GroupId], Iterable[int]], after: ScrubTarget | None
) -> ScrubTarget | None:
    """Return the lowest target above `after`; None when the round is over.

    Args:
        segments_of: first indexes of the segments of a group; asked of no group behind the target's.
    """
    for group in sorted(group for group in groups if after is None or group >= after[0]):
        found = min((first for first in segments_of(group) if after is None or (group, first) > after), default=None)
        if found is not None:
            return group, found
    return None


@dataclass(slots=True, kw_only=True)
class ScrubStats:
    """Counters since the start, for metrics."""

    rounds: int = 0
    segments: int = 0
    read_bytes: int = 0
    damaged: int = 0  # segments


class Scrubber:
    """Call `step` from one thread, and wait as long as it says before the next call.

    Args:
        logs: the groups that are open, read anew for each segment.
        bytes_per_second: > 0.
        on_corrupt: told of each damaged segment, in the thread that calls `step`; index 0: of a damaged manifest.
    """

    def __init__(
        self,
        logs: Callable[[], Mapping[GroupId, GroupLog]],
        *,
        bytes_per_second: int = SCRUB_BYTES_PER_SECOND,
        on_corrupt: Callable[[GroupId, int, LogCorrupt], None],
    ) -> None:
        self._logs = logs
        self._bytes_per_second = bytes_per_second
        self._on_corrupt = on_corrupt
        self._at: ScrubTarget | None = None
        self._pieces: Iterator[int] | None = None
        self.stats = ScrubStats()

    def step(self) -> float:
        """Verify one piece; return the seconds to wait before the next call."""
        if self._pieces is None and not self._begin():
            return IDLE_SECONDS
        assert self._at is not None and self._pieces is not None
        group, first_index = self._at
        try:
            size = next(self._pieces)
        except StopIteration:
            self._pieces = None
            self.stats.segments += 1
            return 0.0
        except ReadInterrupted:  # removed or truncated meanwhile
            self._pieces = None
            return 0.0
        except (LogCorrupt, StorageFailed) as error:
            self._pieces = None
            self._report(group, first_index, error)
            return 0.0
        self.stats.read_bytes += size
        return size / self._bytes_per_second

    def _begin(self) -> bool:
        logs = self._logs()
        target = next_target(logs, lambda group: _sound_segments(logs[group]), self._at)
        if target is None:
            self.stats.rounds += self._at is not None
            self._at = None
            return False
        if self._at is None or self._at[0] != target[0]:
            self._check_manifests(target[0], logs[target[0]])
        self._at = target
        self._pieces = logs[target[0]].verify_steps(target[1], SCRUB_PIECE_BYTES)
        return True

    def _check_manifests(self, group: GroupId, found: GroupLog) -> None:
        damaged = found.verify_manifests()
        if damaged:
            path = manifest_path(found.directory, damaged[0])
            self._on_corrupt(group, 0, LogCorrupt(path, 0, "the manifest cannot be read"))

    def _report(self, group: GroupId, first_index: int, error: LogCorrupt | StorageFailed) -> None:
        self.stats.damaged += 1
        found = self._logs().get(group)
        if found is None:
            return
        if isinstance(error, StorageFailed):
            error = LogCorrupt(found.directory / f"{first_index:020d}.log", 0, str(error))
        found.mark_corrupt(first_index, error.reason)
        self._on_corrupt(group, first_index, error)


def _sound_segments(found: GroupLog) -> list[int]:
    corrupt = found.corrupt_segments()
    return [info.first_index for info in found.sealed_segments() if info.first_index not in corrupt]
