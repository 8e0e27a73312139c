"""One Spark session for all tests in this folder, and builders of small tables.

All of them run in one process (ONE_PROCESS in tests/file_by_file.py): a second session would start a JVM of its own.
What needs no session stands in tests/sla.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from georelay.trace.kinds import TraceKind

Rows = Callable[..., Any]
LEDGER_DEFAULTS: dict[str, Any] = {
    "kind": "delivered", "region": "eu", "broker": "2001", "origin": "", "topic": "orders", "partition": 0, "epoch": 1,
    "group": None, "first_ns": 0, "last_ns": 0, "attempt": 1, "session_epoch": 1, "deliver_seq": 0,
}  # fmt: skip
HIST_DEFAULTS: dict[str, Any] = {
    "second": 0, "origin": "us", "dest": "eu", "topic": "orders", "group": "", "grid": 5, "stage": "total",
    "clock_offset_us": 0, "clock_err_us": 0,
}  # fmt: skip
# Python processes of the JVM would compile what they import of pyspark, each anew: a zip with sources stands first in
# their path. What is installed is the same, and compiled.
NOT_FROM_THE_ZIP = 'import sys; sys.path[:] = [path for path in sys.path if not path.endswith("pyspark.zip")]'


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    if shutil.which("java") is None:
        pytest.fail("Java is not installed: run make setup")
    from sla.session import build_session

    folder = tmp_path_factory.mktemp("spark")
    (folder / "sitecustomize.py").write_text(NOT_FROM_THE_ZIP)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
        session = build_session(
            master="local[2]",
            conf={"spark.sql.warehouse.dir": str(folder)},
            is_quick=True,
            jvm_log=folder / "spark.log",
        )
    yield session
    session.stop()


@pytest.fixture
def ledger(spark: Any) -> Rows:
    """Build a ledger from deliveries [from, to) in delivery order, and from ranges of other kinds."""
    from sla.schemas import DDL
    from tests.sla.spark_rows import table_of

    def build(
        *sessions: Sequence[tuple[int, int]],
        committed: Sequence[tuple[int, int]] = (),
        replicated: Sequence[tuple[int, int]] = (),
        extra: Sequence[dict[str, Any]] = (),
    ) -> Any:
        rows = [
            LEDGER_DEFAULTS | {"from_offset": first, "to_offset": end, "session_epoch": number, "deliver_seq": sequence}
            for number, session in enumerate(sessions)
            for sequence, (first, end) in enumerate(session)
        ]
        for kind, region, ranges in (("commit", "us", committed), ("replicated", "eu", replicated)):
            rows += [
                LEDGER_DEFAULTS | {"kind": kind, "region": region, "from_offset": first, "to_offset": end}
                for first, end in ranges
            ]
        rows += [LEDGER_DEFAULTS | row for row in extra]
        return table_of(spark, rows, DDL[TraceKind.LEDGER])

    return build


@pytest.fixture
def latency_hist(spark: Any) -> Rows:
    """Build latency rows from {latency_us: records} per row."""
    from georelay.trace.histogram import LatencyHistogram
    from sla.schemas import DDL
    from tests.sla.spark_rows import table_of

    def build(*rows: tuple[dict[int, int], dict[str, Any]]) -> Any:
        built = []
        for latencies, columns in rows:
            error_us = columns.get("clock_err_us", 0)
            histogram = LatencyHistogram(clock_error_us=error_us)
            for latency_us, count in latencies.items():
                histogram.add(latency_us, count)
            built.append(
                HIST_DEFAULTS
                | {
                    "n": histogram.n,
                    "n_good": histogram.n_good,
                    "n_good_lo": None if error_us is None else histogram.n_good_lo,
                    "n_good_hi": None if error_us is None else histogram.n_good_hi,
                    "lat_sum_us": histogram.lat_sum_us,
                    "lat_max_us": histogram.lat_max_us,
                    "hist": sorted(histogram.buckets.items()),
                }
                | columns
            )
        return table_of(spark, built, DDL[TraceKind.LATENCY_HIST])

    return build
