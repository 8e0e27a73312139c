"""A Spark data source that reads trace files through pyarrow.fs: object stores without a single jar.

Rule 1: only files that were verified are read, by name; nothing is listed here.
Rule 2: page checksums are verified while reading, as Spark's own reader does: a byte that flipped since is an error.
Rule 3: the rows have the columns asked for, in their order, with the types of the read side; what a file lacks is null.

Executors open the store by its URI, with the credentials of their own environment, and need this package and pyarrow.
Source: the Python Data Source API of Spark 4 (SPIP SPARK-44076), batch readers that yield Arrow batches.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from georelay.trace.kinds import TraceKind
from sla.schemas import ARROW
from sla.sources.location import Location
from sla.sources.manifest import TraceFiles

FORMAT: Final = "georelay_traces"
PARTITION_BYTES: Final = 32 << 20
PARTITION_FILES_MAX: Final = 256  # each is two requests at least
_ROWS_PER_BATCH: Final = 65_536


def read_over_arrow(
    spark: SparkSession, files: TraceFiles, kind: TraceKind, columns: Sequence[str] | None = None
) -> DataFrame:
    """Return the rows of the good files of a kind.

    Args:
        columns: the columns wanted, None for all.
    """
    spark.dataSource.register(TraceSource)
    names = [[file.relative, file.size_bytes] for file in files.good if file.kind is kind]
    reader = spark.read.format(FORMAT).option("location", files.location.uri).option("kind", kind.value)
    if columns is not None:
        reader = reader.option("columns", ",".join(columns))
    return reader.option("files", json.dumps(names)).load()


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRead:
    """What one reader reads.

    Args:
        location: URI of the trace directory.
        columns: names, in the order of the rows.
        files: (path below the directory, bytes).
    """

    location: str
    kind: TraceKind
    columns: tuple[str, ...]
    files: tuple[tuple[str, int], ...]

    @classmethod
    def of_options(cls, options: dict[str, str]) -> TraceRead:
        """Read the options of `spark.read`.

        Raises:
            ValueError: an option is missing or wrong.
        """
        for name in ("location", "kind", "files"):
            if name not in options:
                raise ValueError(f"option {name!r} of format {FORMAT!r} is missing")
        kind = TraceKind(options["kind"])
        known = ARROW[kind].names
        columns = tuple(options["columns"].split(",")) if "columns" in options else tuple(known)
        unknown = [name for name in columns if name not in known]
        if unknown:
            raise ValueError(f"rows of kind {kind.value} have no column {unknown[0]!r}")
        files = tuple((str(name), int(size_bytes)) for name, size_bytes in json.loads(options["files"]))
        return cls(location=options["location"], kind=kind, columns=columns, files=files)

    @property
    def schema(self) -> Any:
        """Return the Arrow schema of the rows."""
        return pa.schema([ARROW[self.kind].field(name) for name in self.columns])


class FilesPartition(InputPartition):  # type: ignore[misc]
    """Files that one task reads."""

    def __init__(self, files: tuple[str, ...]) -> None:
        super().__init__(files)
        self.files = files


class TraceSource(DataSource):  # type: ignore[misc]
    """The format `georelay_traces`: options location, kind, files (JSON), columns (comma-separated, optional)."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def schema(self) -> StructType:
        """Return the schema of the rows."""
        return from_arrow_schema(TraceRead.of_options(self.options).schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader."""
        return TraceReader(TraceRead.of_options(self.options))


class TraceReader(DataSourceReader):  # type: ignore[misc]
    """Plans on the driver, reads on the executors."""

    def __init__(self, read: TraceRead) -> None:
        self._read = read

    def partitions(self) -> Sequence[InputPartition]:
        """Return the files in pieces of about PARTITION_BYTES."""
        return [FilesPartition(piece) for piece in pieces(self._read.files)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the Arrow batches of some files."""
        location = Location.open(self._read.location)
        for name in partition.files:
            yield from batches(location, name, self._read.schema)


def pieces(files: Sequence[tuple[str, int]]) -> list[tuple[str, ...]]:
    """Return the names in pieces of at most PARTITION_FILES_MAX, closed when they reach PARTITION_BYTES."""
    made: list[tuple[str, ...]] = []
    names: list[str] = []
    piece_bytes = 0
    for name, size_bytes in files:
        names.append(name)
        piece_bytes += size_bytes
        if piece_bytes >= PARTITION_BYTES or len(names) >= PARTITION_FILES_MAX:
            made.append(tuple(names))
            names, piece_bytes = [], 0
    if names:
        made.append(tuple(names))
    return made


def batches(location: Location, name: str, schema: Any) -> Iterator[Any]:
    """Yield the rows of a file as batches of `schema`; columns it does not have are null."""
    with (
        location.open_input(name) as source,
        pq.ParquetFile(source, page_checksum_verification=True, pre_buffer=True) as file,
    ):
        held = [column for column in schema.names if file.schema_arrow.get_field_index(column) >= 0]
        for batch in file.iter_batches(_ROWS_PER_BATCH, columns=held):
            arrays = [
                batch.column(field.name).cast(field.type)
                if field.name in held
                else pa.nulls(batch.num_rows, field.type)
                for field in schema
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)
