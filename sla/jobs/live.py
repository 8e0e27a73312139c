"""The live job: brokers' traces -> minutes per pair, every few seconds, exactly once through every crash.

Rule 1: Spark's checkpoint says which rows a batch has; what is made of it replaces what is there under its number, and
        the state comes last (sla.live.store). So a kill at any moment loses and doubles nothing.
Rule 2: late rows are counted before anything is aggregated, and kept as they are.
Rule 3: live.json is written every trigger, also while nothing comes: ages grow, and that is shown.
Rule 4: a query that fails is begun again, less and less often; only what no waiting mends ends the job.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from georelay.errors import TracesExpired
from sla.errors import JobFailed, UsageError
from sla.jobs.rollup import spark_errors
from sla.live.counting import KINDS, count, prepared
from sla.live.reaching import Broker, Credentials, NotReached, check_url, find_brokers
from sla.live.state_core import LiveState, advance
from sla.live.status_core import live_document
from sla.live.store import LiveStore
from sla.session import build_session
from sla.sources.broker import FIND_AGAIN_S, FORMAT, PATIENCE_S, ROWS_PER_BATCH, LiveSource

TRIGGER_S: Final = 5
WATERMARK_S: Final = 120
STALE_S: Final = 30
RESTART_S_MIN: Final = 1.0
RESTART_S_MAX: Final = 60.0
JVM_LOG_NAME: Final = "spark.log"
# What is asked for is refused: the same request is refused again.
_HOPELESS: Final = ("TracesExpired", "UsageError")
# On a machine that is busy for the ten seconds that Spark gives a Python process to start.
_PASSING: Final = "Python worker failed to connect back"
ONCE_STARTS_MAX: Final = 5
_RAISED: Final = re.compile(r"(?:\w+\.)*(TracesExpired|UsageError|JobFailed): ([^\n]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRequest:
    """What to follow.

    Args:
        sources: URLs of gateways or brokers.
        checkpoint: directory of this live view and of no other.
        trigger_s: a batch every so often, >= 1.
        watermark_s: how long a minute waits for late rows.
        stale_s: age from which a region's traces are stale.
        is_once: read what is there now, and end.
        is_from_oldest: begin with the oldest traces there are, else with new ones.
        rows_per_batch: at most.
        patience_s: how long a batch waits for a broker whose rows are in it.
        master, conf: of Spark.
    """

    sources: tuple[str, ...]
    checkpoint: Path
    trigger_s: int = TRIGGER_S
    watermark_s: int = WATERMARK_S
    stale_s: int = STALE_S
    is_once: bool = False
    is_from_oldest: bool = False
    rows_per_batch: int = ROWS_PER_BATCH
    patience_s: float = PATIENCE_S
    credentials: Credentials = field(default_factory=Credentials)
    master: str = "local[2]"
    conf: Mapping[str, str] = field(default_factory=dict)

    def check(self) -> None:
        """Refuse what cannot work. Raises UsageError."""
        for url in self.sources:
            check_url(url)
        if not self.sources:
            raise UsageError("--source names no gateway and no broker")
        self.credentials.check()


def run_live(
    request: LiveRequest,
    on_step: Callable[[str], None] = lambda _: None,
    *,
    is_stopped: Callable[[], bool] = lambda: False,
) -> LiveState:
    """Follow the traces until stopped; with `is_once` until everything that is there was read.

    Raises:
        UsageError: a wrong argument, or a checkpoint that is in use.
        JobFailed: nobody answers at first, rows were deleted before they were read, or Spark failed.
    """
    request.check()
    store = LiveStore(request.checkpoint)
    with store.alone():
        on_step("looking for brokers")
        brokers, silent = find_brokers(request.sources, request.credentials)
        if not brokers:
            raise JobFailed(f"no broker that writes traces answers: {'; '.join(silent) or 'none is named'}")
        on_step("starting Spark")
        jvm_log = store.root / JVM_LOG_NAME
        spark = build_session(master=request.master, conf=request.conf, is_quick=True, jvm_log=jvm_log)
        spark.dataSource.register(LiveSource)
        view = LiveView(request, store, spark, brokers=brokers, silent=silent)
        with spark_errors(jvm_log):
            return view.follow(on_step, is_stopped)


class LiveView:
    """One run of the job; `follow` is its life."""

    def __init__(
        self,
        request: LiveRequest,
        store: LiveStore,
        spark: SparkSession,
        *,
        brokers: Mapping[str, Broker],
        silent: list[str],
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._request = request
        self._store = store
        self._spark = spark
        self._known = gateways_of(brokers)
        self._silent = silent
        self._found_s = time.monotonic()
        self._now_s = now_s
        newest = store.newest()
        self.state = store.state(-1 if newest is None else newest)
        self._error = ""

    def follow(self, on_step: Callable[[str], None], is_stopped: Callable[[], bool]) -> LiveState:
        """See run_live."""
        pause_s = RESTART_S_MIN
        query: StreamingQuery | None = None
        starts = 0
        try:
            while not is_stopped():
                before, starts = self.state.batch, starts + 1
                query = None
                try:
                    query = self._begin()
                    self._watch(query, on_step, is_stopped)
                except (PySparkException, Py4JError) as error:
                    if query is not None and not isinstance(error, StreamingQueryException):
                        raise  # Spark itself failed
                    self._failed(error, is_begun=query is not None, may_repeat=starts < ONCE_STARTS_MAX)
                    pause_s = RESTART_S_MIN if self.state.batch > before else min(2 * pause_s, RESTART_S_MAX)
                    self._wait(pause_s, on_step, is_stopped)
                    continue
                if self._request.is_once:
                    break
            return self.state
        finally:
            self.show()
            if query is not None and query.isActive:
                query.stop()
                self.show()

    def _begin(self) -> StreamingQuery:
        request = self._request
        reader = (
            self._spark.readStream.format(FORMAT)
            .option("urls", ",".join(request.sources))
            .option("kinds", ",".join(kind.value for kind in KINDS))
            .option("rows_per_batch", str(request.rows_per_batch))
            .option("begin", "oldest" if request.is_from_oldest else "latest")
            .option("patience_s", str(request.patience_s))
        )
        for name in ("token_file", "ca_file", "cert_file", "key_file"):
            value = getattr(request.credentials, name)
            if value:
                reader = reader.option(name, str(Path(value).resolve()))
        writer = reader.load().writeStream.foreachBatch(self.take)
        writer = writer.option("checkpointLocation", str(self._store.checkpoint)).queryName("georelay-live")
        if request.is_once:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{request.trigger_s} seconds")
        return writer.start()

    def take(self, rows: DataFrame, number: int) -> None:
        """Make everything of one batch; Spark calls it, again after a crash.

        Raises:
            UsageError: the checkpoint and what stands beside it do not belong together.
        """
        newest = self._store.newest()
        if number not in (0 if newest is None else newest, 0 if newest is None else newest + 1):
            text = f"{self._store.root}: Spark is at batch {number}, the view at {newest}; delete the whole directory"
            raise UsageError(text)
        before = self._store.state(number - 1)
        batch = prepared(rows, watermark_s=before.watermark_s)
        counts = count(batch)
        late = self._store.replace_late(number)
        if counts.late_rows:  # read once more: rarely needed, and keeping every batch costs more
            batch.where("is_late").write.mode("overwrite").parquet(str(late))
        state, closed = advance(
            before, counts, number=number, now_s=int(self._now_s()), delay_s=self._request.watermark_s
        )
        self._store.commit(state, closed)
        self.state = state
        self._error = ""
        self.show()

    def _watch(self, query: StreamingQuery, on_step: Callable[[str], None], is_stopped: Callable[[], bool]) -> None:
        """Show the state every trigger until the query ends. Raises StreamingQueryException."""
        while not is_stopped():
            if query.awaitTermination(min(self._request.trigger_s, 1 if self._request.is_once else TRIGGER_S)):
                return
            self._look_for_brokers()
            self.show()
            on_step(self._summary())
        query.stop()

    def _wait(self, pause_s: float, on_step: Callable[[str], None], is_stopped: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + pause_s
        on_step(f"waiting: {self._error}")
        while time.monotonic() < deadline_s and not is_stopped():
            self.show()
            time.sleep(min(1.0, pause_s))

    def _failed(self, error: PySparkException | Py4JError, *, is_begun: bool, may_repeat: bool) -> None:
        """Note why the query ended, or was not begun. Raises JobFailed: no waiting mends it."""
        self._error = reason_of(error)
        is_hopeless = any(f"{name}: " in str(error) for name in _HOPELESS)
        is_passing = _PASSING in str(error)
        is_over = self._request.is_once and not (may_repeat and is_passing)
        if is_over or is_hopeless or not (is_begun or is_passing):
            advice = f"; delete {self._store.root} to begin anew" if TracesExpired.__name__ in str(error) else ""
            raise JobFailed(f"{self._error}{advice}") from error

    def _look_for_brokers(self) -> None:
        if time.monotonic() - self._found_s < FIND_AGAIN_S:
            return
        self._found_s = time.monotonic()
        with contextlib.suppress(NotReached, JobFailed, UsageError):  # the query meets the same, and says so
            found, self._silent = find_brokers(self._request.sources, self._request.credentials)
            if found:
                self._known = gateways_of(found)

    def document(self) -> dict[str, Any]:
        """Return what live.json says now."""
        return live_document(
            self.state,
            known=self._known,
            gateways=self._known,
            now_s=int(self._now_s()),
            stale_s=self._request.stale_s,
            silent=self._silent,
            error=self._error,
        )

    def show(self) -> None:
        """Write live.json."""
        self._store.show(json.dumps(self.document(), indent=1).encode() + b"\n")

    def _summary(self) -> str:
        document = self.document()
        lag_s = max((region["age_s"] for region in document["regions"] if region["age_s"] is not None), default=None)
        rows = sum(self.state.rows.values())
        if lag_s is None:
            return f"{document['state']}: no traces yet"
        return f"{document['state']}: batch {self.state.batch}, {rows} rows, newest traces {lag_s} s old"


def gateways_of(brokers: Mapping[str, Broker]) -> dict[str, str]:
    """Return the gateway's name of each, "" of a broker."""
    return {name: broker.gateway for name, broker in brokers.items()}


def reason_of(error: BaseException) -> str:
    """Return one line: what our own code raised inside Spark, else Spark's first line."""
    found = _RAISED.findall(str(error))
    if found:
        return str(found[-1][1]).strip()
    return (str(error).strip() or type(error).__name__).splitlines()[0]
