"""Which replicas of control there are, written beside the log of one of them: whom to greet after a restart.

Rule 1: a hint, never truth. After the whole mesh lost power no replica knows what of its log is committed, so none can
read the members from it; they have to find each other first.
Rule 2: it says as of which change of the members it is. The state that a restart begins with is a manifest's, which can
be far older: a replica that believed that one would be deaf to all that came after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from georelay.fields import INT64_MAX, FieldError, Fields, dump_object, parse_object
from region.controller.mesh_rows import REPLICAS_MAX, VoterRow
from region.log.filesystem import FileSystem, read_file, replace_file

NAME: Final = "replicas.json"


def read_known(fs: FileSystem, folder: Path) -> tuple[int, list[VoterRow]]:
    """Return (index, replicas) as written last; (0, []) when there is nothing, or nothing that can be read."""
    try:
        fields = Fields(parse_object(read_file(fs, folder / NAME)), NAME)
        index = fields.integer("index", low=0, high=INT64_MAX)
        return index, [VoterRow.from_json(item) for item in fields.items("replicas", count_max=REPLICAS_MAX)]
    except (OSError, FieldError):
        return 0, []  # only a hint: the region's controller knows most of them too


def write_known(fs: FileSystem, folder: Path, index: int, rows: Sequence[VoterRow]) -> None:
    """Write the replicas as of `index` of the members. Raises OSError."""
    replace_file(fs, folder / NAME, dump_object({"index": index, "replicas": [row.to_json() for row in rows]}))
