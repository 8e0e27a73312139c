"""Builds the Spark session: every setting a correct report depends on, in one place.

PYSPARK_PYTHON names this interpreter (or Spark picks any `python3`), times are UTC, page checksums are verified (a
flipped byte is otherwise silently a wrong sum), local masters listen on loopback only. The JVM's words go to a file.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from pyspark import SparkContext
from pyspark.sql import SparkSession

LOG_SETTINGS: Final = Path(__file__).with_name("log4j2.properties")
JAVA_STOP_SECONDS_MAX: Final = 10
QUICK_BYTES_MAX: Final = 16 * 1024 * 1024  # of trace files; below it a fast start is worth more than fast code


def build_session(
    *, master: str, conf: Mapping[str, str], is_quick: bool = False, jvm_log: Path | None = None
) -> SparkSession:
    """Start Spark, or return the session of this process.

    Args:
        master: such as `local[2]` or `spark://host:7077`.
        conf: settings that overrule ours.
        is_quick: for little data: a fast start before fast code.
        jvm_log: file that takes what the JVM writes to standard error.

    Raises:
        PySparkRuntimeError: Java did not start.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    is_local = master.startswith("local")
    if is_local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.appName("georelay-sla").master(master)
    for key, value in {**_settings(is_local=is_local, is_quick=is_quick), **conf}.items():
        builder = builder.config(key, value)
    with _standard_error_to(jvm_log):
        return builder.getOrCreate()


def _settings(*, is_local: bool, is_quick: bool) -> dict[str, str]:
    java_options = f"-Dlog4j2.configurationFile={LOG_SETTINGS.as_uri()} -Duser.timezone=UTC"
    if is_quick:
        java_options += " -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    settings = {
        "spark.driver.extraJavaOptions": java_options,
        "spark.sql.session.timeZone": "UTC",
        "spark.hadoop.parquet.page.verify-checksum.enabled": "true",
        "spark.sql.files.ignoreCorruptFiles": "false",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
    }
    if is_local:
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    if is_quick:
        settings |= {
            "spark.sql.shuffle.partitions": "1",
            "spark.sql.adaptive.enabled": "false",
            # Interpreted plans: generating and compiling code takes longer than running them over a few rows.
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        }
    return settings


@contextlib.contextmanager
def _standard_error_to(path: Path | None) -> Iterator[None]:
    """Point descriptor 2 at a file while the JVM starts: the JVM keeps it, this process gets its own back."""
    if path is None:
        yield
        return
    own = os.dup(2)
    try:
        with path.open("wb") as target:
            os.dup2(target.fileno(), 2)
        yield
    finally:
        os.dup2(own, 2)
        os.close(own)


def stop_java() -> None:
    """End the JVM that this process started and wait for it: a report leaves nothing running behind it."""
    context = SparkContext._active_spark_context
    gateway = SparkContext._gateway
    if context is not None:
        context.stop()
    if gateway is None:
        return
    process = getattr(gateway, "proc", None)
    gateway.shutdown()
    if process is None:
        return
    if process.stdin is not None:
        process.stdin.close()  # the JVM ends when its standard input does
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(JAVA_STOP_SECONDS_MAX)
