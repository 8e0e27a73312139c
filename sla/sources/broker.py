"""A Spark streaming source that reads brokers' traces over HTTP, as Arrow batches.

    spark.readStream.format("georelay_live").option("urls", "http://gateway:8080").option("kinds", "probe,clock")

Rule 1: an offset is {"eu/2001": {"probe": "boot/row", "probe.since": "boot/row"}}: `since` is where reading that broker
        began. A gateway has a number like a broker, and rows of kind `outcome` only. [start, end) has the same rows
        whenever it is read, until the broker deletes them: then the query fails.
Rule 2: a broker that does not answer holds nothing back: it stays where it is. Once its rows are planned into a batch
        they are read, however long that takes; the batch waits for them.
Rule 3: `rows_per_batch` is shared equally by brokers and kinds; with Trigger.AvailableNow nothing is read that came
        after the query began.
Rule 4: credentials are files, read by driver and executors where they run.

Rows have the columns of every kind asked for, null where they are of another, and before these STREAM_COLUMNS.
Source: the Python Data Source API of Spark 4.2 (admission control: SPARK-54305).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from georelay.trace.kinds import TraceKind
from georelay.trace.position import BEGINNING, BOOT_COLUMN, ROW_COLUMN, TracePosition
from sla.errors import JobFailed
from sla.live.reaching import Broker, Credentials, NotReached, Server, find_brokers
from sla.schemas import ARROW

FORMAT: Final = "georelay_live"
ROWS_PER_BATCH: Final = 200_000
PATIENCE_S: Final = 60.0  # how long a task asks a broker again before the batch fails
FIND_AGAIN_S: Final = 30.0
REQUESTS_AT_ONCE: Final = 16
RETRY_S_MIN: Final = 0.2
RETRY_S_MAX: Final = 5.0
SINCE: Final = ".since"

STREAM_COLUMNS: Final = {
    "trace_kind": pa.string(),
    "trace_region": pa.string(),
    "trace_broker": pa.string(),
    BOOT_COLUMN: pa.string(),
    ROW_COLUMN: pa.int64(),
}
Offsets = dict[str, dict[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """The options of the format.

    Args:
        urls: of gateways or brokers.
        kinds: what is read.
        rows_per_batch: at most, when the query does not say otherwise.
        is_from_oldest: a broker seen first is read from its oldest row; else from where it is then.
        patience_s: see PATIENCE_S.
    """

    urls: tuple[str, ...]
    kinds: tuple[TraceKind, ...]
    rows_per_batch: int = ROWS_PER_BATCH
    is_from_oldest: bool = False
    patience_s: float = PATIENCE_S
    credentials: Credentials = field(default_factory=Credentials)

    @classmethod
    def of(cls, options: Any) -> StreamOptions:
        """Read the options of `spark.readStream`.

        Raises:
            ValueError: one is missing or wrong.
        """
        for name in ("urls", "kinds"):
            if not options.get(name):
                raise ValueError(f"option {name!r} of format {FORMAT!r} is missing")
        begin = options.get("begin", "latest")
        if begin not in ("oldest", "latest"):
            raise ValueError(f"option 'begin' is 'oldest' or 'latest', not {begin!r}")
        rows = int(options.get("rows_per_batch", ROWS_PER_BATCH))
        if rows < 1:
            raise ValueError("option 'rows_per_batch' is at least 1")
        made = cls(
            urls=tuple(options["urls"].split(",")),
            kinds=tuple(TraceKind(word) for word in options["kinds"].split(",")),
            rows_per_batch=rows,
            is_from_oldest=begin == "oldest",
            patience_s=float(options.get("patience_s", PATIENCE_S)),
            credentials=Credentials(
                **{name: options.get(name, "") for name in ("token_file", "ca_file", "cert_file", "key_file")}
            ),
        )
        made.arrow_schema()
        return made

    def arrow_schema(self) -> Any:
        """Return the schema of the rows. Raises ValueError: two kinds have a column of one name and two types."""
        found = dict(STREAM_COLUMNS)
        for kind in self.kinds:
            for column in ARROW[kind]:
                if found.setdefault(column.name, column.type) != column.type:
                    raise ValueError(f"kinds with different columns {column.name!r} cannot be read together")
        return pa.schema([pa.field(name, kind) for name, kind in found.items()])

    def spark_schema(self) -> StructType:
        """Return the same for Spark."""
        return from_arrow_schema(self.arrow_schema())


class RowsPartition(InputPartition):  # type: ignore[misc]
    """Rows [start, until) of one kind at one broker, read by one task."""

    def __init__(self, broker: Broker, kind: TraceKind, start: TracePosition, until: TracePosition) -> None:
        super().__init__(None)
        self.broker = broker
        self.kind = kind
        self.start = start
        self.until = until


class LiveSource(DataSource):  # type: ignore[misc]
    """The format `georelay_live`; options as in StreamOptions and Credentials."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def schema(self) -> StructType:
        """Return the schema of the rows."""
        return StreamOptions.of(self.options).spark_schema()

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return the reader."""
        return LiveReader(StreamOptions.of(self.options))


class LiveReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Plans on the driver, reads on the executors.

    Args:
        monotonic_s, sleep: others only in tests.
    """

    def __init__(
        self,
        options: StreamOptions,
        *,
        monotonic_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._options = options
        self._monotonic_s = monotonic_s
        self._sleep = sleep
        self._brokers: dict[str, Broker] = {}
        self._found_s: float | None = None
        self._targets: Offsets | None = None

    def initialOffset(self) -> Offsets:  # noqa: N802
        """Return no broker: each begins when it is first seen."""
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of the options."""
        return ReadMaxRows(self._options.rows_per_batch)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Note where every broker is now; nothing behind that is read."""
        self._find()
        self._targets = {}
        for name, found in self._each(self._latest).items():
            self._targets[name] = {kind.value: str(position) for kind, position in found.items()}

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802
        """Return how far the next batch reads."""
        self._find()
        end = {name: dict(kinds) for name, kinds in start.items()}
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        assert most is not None or isinstance(limit, ReadAllAvailable), limit
        share = None if most is None else max(1, most // max(1, len(self._brokers) * len(self._options.kinds)))
        end |= self._each(lambda server, name: self._reached(server, name, start.get(name, {}), share))
        return end

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """Return one piece per broker and kind that has new rows."""
        made: list[InputPartition] = []
        for name, kinds in sorted(end.items()):
            for kind in self._options.kinds:
                if kind.value not in kinds:
                    continue
                before = start.get(name, {})
                begin = before.get(kind.value, kinds.get(kind.value + SINCE))
                if begin is None or begin == kinds[kind.value]:
                    continue
                first, until = TracePosition.parse(begin), TracePosition.parse(kinds[kind.value])
                made.append(RowsPartition(self._broker(name), kind, first, until))
        return made

    def read(self, partition: RowsPartition) -> Iterator[Any]:
        """Yield the Arrow batches of a piece.

        Raises:
            TracesExpired: the broker deleted rows of it.
            JobFailed: the broker did not answer for `patience_s`.
        """
        schema = self._options.arrow_schema()
        with contextlib.closing(Server(partition.broker.url, self._options.credentials)) as server:
            position = partition.start
            while position != partition.until:
                table, following = self._patiently(server, partition, position)
                if table.num_rows == 0 and following != partition.until:
                    raise JobFailed(f"{server.url} answers with a page without rows")
                for batch in table.to_batches():
                    yield as_stream(batch, partition, schema)
                position = following

    def _patiently(self, server: Server, piece: RowsPartition, position: TracePosition) -> tuple[Any, TracePosition]:
        deadline_s = self._monotonic_s() + self._options.patience_s
        pause_s = RETRY_S_MIN
        while True:
            try:
                return server.page(piece.kind, position, piece.until)
            except NotReached as error:
                if self._monotonic_s() + pause_s > deadline_s:
                    raise JobFailed(f"broker {piece.broker.name} does not answer: {error}") from error
            self._sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_S_MAX)

    # --- brokers ---------------------------------------------------------------------------------

    def _find(self) -> None:
        """Look for brokers, now and then."""
        now_s = self._monotonic_s()
        if self._found_s is not None and now_s - self._found_s < FIND_AGAIN_S:
            return
        found, _ = find_brokers(self._options.urls, self._options.credentials)
        # Who does not answer now keeps its address.
        self._brokers |= {name: broker for name, broker in found.items() if self._kinds(broker)}
        self._found_s = now_s

    def _broker(self, name: str) -> Broker:
        if name not in self._brokers:
            self._found_s = None
            self._find()
        if name not in self._brokers:
            raise JobFailed(f"broker {name}, whose rows were planned to be read, is not found")
        return self._brokers[name]

    def _each(self, ask: Callable[[Server, str], Any]) -> dict[str, Any]:
        """Return the answer of every broker that answers, by name."""

        def one(broker: Broker) -> tuple[str, Any]:
            with contextlib.closing(Server(broker.url, self._options.credentials)) as server:
                try:
                    return broker.name, ask(server, broker.name)
                except NotReached:
                    self._found_s = None  # perhaps it moved
                    return broker.name, None

        with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
            answers = list(pool.map(one, sorted(self._brokers.values(), key=lambda broker: broker.name)))
        return {name: answer for name, answer in answers if answer is not None}

    def _latest(self, server: Server, name: str) -> dict[TraceKind, TracePosition]:
        return {kind: server.positions(kind)[1] for kind in self._kinds(self._brokers[name])}

    def _kinds(self, broker: Broker) -> tuple[TraceKind, ...]:
        return broker.kinds(self._options.kinds)

    def _reached(self, server: Server, name: str, before: dict[str, str], share: int | None) -> dict[str, str]:
        end = dict(before)
        for kind in self._kinds(self._brokers[name]):
            target = None if self._targets is None else self._targets.get(name, {}).get(kind.value)
            if self._targets is not None and target is None:
                continue  # it was not there when the query began
            since = before.get(kind.value)
            if since is None:
                oldest, latest = server.positions(kind)
                since = str(oldest if self._options.is_from_oldest or latest == BEGINNING else latest)
                end[kind.value + SINCE] = since
            until = None if target is None else TracePosition.parse(target)
            position, has_more = server.reach(kind, TracePosition.parse(since), rows=share, until=until)
            while has_more and share is None:
                position, has_more = server.reach(kind, position, rows=None, until=until)
            end[kind.value] = str(position)
        return end


def as_stream(batch: Any, piece: RowsPartition, schema: Any) -> Any:
    """Return a page's rows with the columns of the stream."""
    region, _, broker = piece.broker.name.partition("/")
    count = batch.num_rows
    words = {"trace_kind": piece.kind.value, "trace_region": region, "trace_broker": broker}
    arrays = []
    for column in schema:
        if column.name in words:
            arrays.append(pa.repeat(words[column.name], count))
        elif batch.schema.get_field_index(column.name) >= 0:
            arrays.append(batch.column(column.name).cast(column.type))
        else:
            arrays.append(pa.nulls(count, column.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
