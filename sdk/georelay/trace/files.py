"""Names and metadata of trace files: what the writer puts there and what a reader may rely on.

A file is `date=YYYY-MM-DD/hour=HH/region=R/<kind>-<broker>-<boot>-<seq>.parquet` below the trace directory; date and
hour are those of the writer's clock when the first row came, in UTC; `seq` is the running number of the first row. So
a file that is written again after a crash gets the name it had, and replaces it. A name that starts with a dot is in
progress and is ignored by every reader. The same identity and the running row numbers stand in the Parquet key-value
metadata, so that a reader can say how many rows are missing between two files of a writer.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from georelay.trace.kinds import SCHEMA_VERSION, TraceKind

IN_PROGRESS_PREFIX: Final = ".tmp-"
SPOOL_FOLDER: Final = ".spool"  # below the trace directory; the dot hides it from every reader
# A gateway writes under a number made of its name, which no broker can have: ids of brokers have eight digits at most.
GATEWAY_WRITER_FIRST: Final = 900_000_000
GATEWAY_WRITERS: Final = 99_999_999
_NAME: Final = re.compile(r"([a-z_]+)-([0-9]{1,9})-([0-9a-z]{1,32})-([0-9]{1,12})\.parquet")
_SPOOL: Final = re.compile(r"([a-z_]+)-([0-9]{1,9})-([0-9a-z]{1,32})-([0-9]{1,15})\.wal")
_KEY_PREFIX: Final = b"georelay."


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFileName:
    """Identity of one trace file.

    Args:
        broker: mesh-wide broker id.
        boot_id: names one run of the broker process, [0-9a-z]{1,32}.
        sequence: running number of the first row among those of this kind and boot, from 0.
    """

    kind: TraceKind
    broker: int
    boot_id: str
    sequence: int

    def __str__(self) -> str:
        return f"{self.kind.value}-{self.broker}-{self.boot_id}-{self.sequence:06d}.parquet"

    @classmethod
    def parse(cls, name: str) -> TraceFileName | None:
        """Return the identity in a file name, None when the name is not that of a trace file of a known kind."""
        match = _NAME.fullmatch(name)
        if match is None or match[1] not in {kind.value for kind in TraceKind}:
            return None
        return cls(kind=TraceKind(match[1]), broker=int(match[2]), boot_id=match[3], sequence=int(match[4]))


def spool_name(kind: TraceKind, broker: int, boot_id: str, number: int) -> str:
    """Return the file name of the spool with this number (from 0 for every kind and boot)."""
    return f"{kind.value}-{broker}-{boot_id}-{number:06d}.wal"


def broker_of_spool(name: str) -> int | None:
    """Return the broker in the name of a spool, None when it is not such a name."""
    match = _SPOOL.fullmatch(name)
    return None if match is None else int(match[2])


def partition_path(region: str, opened_ns: int) -> PurePosixPath:
    """Return the folder of a file that a broker of `region` begins at `opened_ns` (ns since 1970)."""
    opened = datetime.datetime.fromtimestamp(opened_ns // 1_000_000_000, tz=datetime.UTC)
    return PurePosixPath(f"date={opened:%Y-%m-%d}", f"hour={opened:%H}", f"region={region}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFileMetadata:
    """Key-value metadata of one trace file.

    Args:
        writer: region and broker, as `us/1001`.
        first_row_seq: running number of the first row of this kind and boot; rows are numbered from 0.
        last_row_seq: of the last row; a jump between two files of a writer is the number of rows missing.
        dropped: rows of this kind that the writer had given up (memory full) when it closed the file.
    """

    kind: TraceKind
    writer: str
    boot_id: str
    first_row_seq: int
    last_row_seq: int
    rows: int
    dropped: int
    hist_grid: int
    schema_version: int = SCHEMA_VERSION

    def encode(self) -> dict[bytes, bytes]:
        """Return the metadata as Parquet wants it."""
        fields: dict[str, str | int] = {
            "schema_version": self.schema_version,
            "kind": self.kind.value,
            "writer": self.writer,
            "boot_id": self.boot_id,
            "first_row_seq": self.first_row_seq,
            "last_row_seq": self.last_row_seq,
            "rows": self.rows,
            "dropped": self.dropped,
            "hist_grid": self.hist_grid,
        }
        return {_KEY_PREFIX + name.encode(): str(value).encode() for name, value in fields.items()}

    @classmethod
    def decode(cls, raw: Mapping[bytes, bytes]) -> TraceFileMetadata:
        """Read the metadata back.

        Raises:
            ValueError: a key is missing or is not what it should be; the text names it.
        """
        return cls(
            schema_version=_number(raw, "schema_version"),
            kind=TraceKind(_text(raw, "kind")),
            writer=_text(raw, "writer"),
            boot_id=_text(raw, "boot_id"),
            first_row_seq=_number(raw, "first_row_seq"),
            last_row_seq=_number(raw, "last_row_seq"),
            rows=_number(raw, "rows"),
            dropped=_number(raw, "dropped"),
            hist_grid=_number(raw, "hist_grid"),
        )


def _text(raw: Mapping[bytes, bytes], name: str) -> str:
    value = raw.get(_KEY_PREFIX + name.encode())
    if value is None:
        raise ValueError(f"the metadata has no {name}")
    return value.decode()


def _number(raw: Mapping[bytes, bytes], name: str) -> int:
    text = _text(raw, name)
    if not text.isdecimal():
        raise ValueError(f"the metadata's {name} is {text!r}, not a number")
    return int(text)
