"""How this broker came to its region, written down before its first vote: `founding.json` in the data directory.

{"v": 1, "founded": record, "joined_above": null} for a founder (see region.controller.founding_core). A broker that
joined a region which was there before it has "founded": null; "joined_above" is null until the controller's group has
taken it in with this disk, then the index that Raft calls joins_after. Without it such a broker gives no vote.
"crc" is the CRC-32C of the JSON of the other fields with sorted keys: a wrong founder would be a wrong vote.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from georelay.errors import DataDirectoryError
from georelay.fields import FieldError, Fields
from georelay.wire.crc import crc32c
from region.controller.founding_core import FoundingRecord
from region.log.filesystem import FileSystem, read_file, replace_file

FOUNDING_FILE: Final = "founding.json"
FILE_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """How a broker came to its region; `record` is None when it joined."""

    record: FoundingRecord | None
    joined_above: int | None = None


def read_origin(fs: FileSystem, directory: Path) -> Origin | None:
    """Return what is written down, None when nothing is.

    Raises:
        DataDirectoryError: the file is not readable; without it this broker must not vote.
    """
    path = directory / FOUNDING_FILE
    if not fs.exists(path):
        return None
    try:
        about = json.loads(read_file(fs, path))
        fields = Fields(about, "founding file")
        fields.integer("v", low=FILE_VERSION, high=FILE_VERSION)
        if fields.integer("crc", low=0, high=2**32 - 1) != _crc_of(about):
            raise FieldError("the checksum is wrong")
        founded, joined_above = fields.value("founded"), fields.value("joined_above")
        fields.done()
        if joined_above is not None and (type(joined_above) is not int or joined_above < 0):
            raise FieldError(f"joined_above is {joined_above!r}")
        return Origin(record=None if founded is None else FoundingRecord.from_json(founded), joined_above=joined_above)
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
    about: dict[str, object] = {
        "v": FILE_VERSION,
        "founded": None if origin.record is None else origin.record.to_json(),
        "joined_above": origin.joined_above,
    }
    try:
        replace_file(fs, directory / FOUNDING_FILE, json.dumps({**about, "crc": _crc_of(about)}).encode() + b"\n")
    except OSError as error:
        raise DataDirectoryError(f"{directory / FOUNDING_FILE} cannot be written: {error}") from error


def _crc_of(about: Mapping[str, object]) -> int:
    fields = {name: value for name, value in about.items() if name != "crc"}
    return int(crc32c(json.dumps(fields, sort_keys=True).encode()))
