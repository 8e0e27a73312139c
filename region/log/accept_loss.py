"""Give up what the only replica of a group has lost: `python -m region.log.accept_loss DIR GROUP --only-replica`.

A replica that lacks what its flushed mark says waits for another one to send it that; the only replica of a group
waits for ever. This moves its mark to where its log ends now, so that it leads again at the next start. What was
acknowledged above that is gone for good.

Rule 1: for a group with one replica. With others this would do what the mark prevents: the replica would vote, and
could win, without committed records that the others have. The operator has to say that there is no other one.
Rule 2: the broker is stopped; the lock of its data directory is taken.
Rule 3: nothing is changed without the operator's word, except for what any start does.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Final

from georelay.errors import DataDirectoryError, StorageFailed
from georelay.ids import CONTROLLER_GROUP, BrokerId, GroupId, RaftIndex, Term
from region.log.data_directory import FORMAT_BYTES_MAX, DataDirectory
from region.log.errors import LogCorrupt
from region.log.flushed_marks import FlushedMark
from region.log.group_log import GroupLog

# Above every entry: with this mark any damage is cut off and set aside, whatever was promised.
_EVERYTHING: Final = FlushedMark(RaftIndex((1 << 63) - 1), Term((1 << 63) - 1), 0)


def accept_loss(directory: DataDirectory, group: GroupId) -> str:
    """Let the log of a group end where it ends; return what that means, in one line.

    Raises:
        DataDirectoryError: this group has lost nothing, or it is the controller's.
    """
    if group == CONTROLLER_GROUP:
        raise DataDirectoryError("group 0 is the region's controller: its broker joins anew, on an empty disk")
    if group not in directory.group_ids():
        raise DataDirectoryError(f"there is no group {group} in {directory.path}")
    log = _opened(directory, group)
    try:
        if log.lost is None:
            raise DataDirectoryError(f"group {group} has lost nothing: it ends at index {log.last_index}")
        promised = "nobody knows where" if log.lost == _EVERYTHING else f"index {log.lost.index}"
        directory.marks.lower(group, log.end_mark)
        return f"group {group} ends at index {log.last_index}, offset {log.next_offset} now; it had reached {promised}"
    finally:
        log.close()


def _opened(directory: DataDirectory, group: GroupId) -> GroupLog:
    try:
        return directory.open_group(group)
    except LogCorrupt:  # damaged, and without a mark
        directory.marks.lower(group, _EVERYTHING)
        return directory.open_group(group)


def _open_directory(path: Path) -> DataDirectory:
    try:
        with (path / "FORMAT").open("rb") as file:
            about = json.loads(file.read(FORMAT_BYTES_MAX))
        mesh, broker = str(about["mesh"]), BrokerId(int(about["broker"]))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise DataDirectoryError(f"{path} is no data directory of a broker: {error}") from error
    return DataDirectory.open(path, mesh_id=mesh, broker_id=broker)


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return the exit status: 0 done, 1 refused, nothing is changed then."""
    parser = argparse.ArgumentParser(
        prog="python -m region.log.accept_loss",
        description="Give up what the only replica of a group has lost. Its broker must be stopped. Copy *.damaged "
        "in the group's folder elsewhere first: the next start removes them.",
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="the data directory of the broker")
    parser.add_argument("group", type=int, metavar="GROUP", help="number of the group, as in its log.lost event")
    parser.add_argument(
        "--only-replica",
        action="store_true",
        help="I know that no other broker of the region has a replica of this group; with one this loses more",
    )
    options = parser.parse_args(arguments)
    try:
        if not options.only_replica:
            raise DataDirectoryError("say --only-replica; a group with other replicas is repaired from those")
        directory = _open_directory(options.directory)
        try:
            sys.stdout.write(f"{accept_loss(directory, GroupId(options.group))}\n")
        finally:
            directory.close()
    except (DataDirectoryError, StorageFailed, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
