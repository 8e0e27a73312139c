"""How this broker came to its region, written down before its first vote: `founding.json` in the data directory.

{"v": 1, "founded": record} for a founder (see region.controller.founding_core), {"v": 1, "founded": null} for a broker
that joined a region which was there before it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from georelay.errors import DataDirectoryError
from region.controller.fields import FieldError, Fields
from region.controller.founding_core import FoundingRecord
from region.log.filesystem import FileSystem, read_file, replace_file

FOUNDING_FILE: Final = "founding.json"
FILE_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """How a broker came to its region; `record` is None when it joined."""

    record: FoundingRecord | None


def read_origin(fs: FileSystem, directory: Path) -> Origin | None:
    """Return what is written down, None when nothing is.

    Raises:
        DataDirectoryError: the file is not readable; without it this broker must not vote.
    """
    path = directory / FOUNDING_FILE
    if not fs.exists(path):
        return None
    try:
        fields = Fields(json.loads(read_file(fs, path)), "founding file")
        fields.integer("v", low=FILE_VERSION, high=FILE_VERSION)
        founded = fields.value("founded")
        fields.done()
        return Origin(record=None if founded is None else FoundingRecord.from_json(founded))
    except (ValueError, FieldError, OSError) as error:
        raise DataDirectoryError(
            f"{path} cannot be read ({error}): this broker does not know whether it may vote; "
            "remove its data directory and let it join anew"
        ) from error


def write_origin(fs: FileSystem, directory: Path, origin: Origin) -> None:
    """Write it down; durable when this returns.

    Raises:
        DataDirectoryError: the operating system refused.
    """
    about = {"v": FILE_VERSION, "founded": None if origin.record is None else origin.record.to_json()}
    try:
        replace_file(fs, directory / FOUNDING_FILE, json.dumps(about).encode() + b"\n")
    except OSError as error:
        raise DataDirectoryError(f"{directory / FOUNDING_FILE} cannot be written: {error}") from error
