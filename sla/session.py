"""Builds the Spark session: every setting a correct report depends on, in one place.

PYSPARK_PYTHON names this interpreter (or Spark picks any `python3`), times are UTC, page checksums are verified (a
flipped byte is otherwise silently a wrong sum), with a master on loopback nothing listens elsewhere. The JVM's words go
to a file. Secrets go to the JVM in a file too, never as arguments. Below spark-submit its master stands. Ctrl-C is the
program's, not Spark's: see `_own_interrupts`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
import urllib.parse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NoReturn

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from sla.cluster.secret import FILE_NAME
from sla.cluster.settings import LOOPBACK, is_loopback, parse_master
from sla.errors import JobFailed
from sla.java_archive import archive_options, archive_path
from sla.spark_cause_core import cause_of
from sla.spark_properties import REDACTED, encode_properties, is_secret

LOG_SETTINGS: Final = Path(__file__).with_name("log4j2.properties")
JAVA_STOP_SECONDS_MAX: Final = 10
_QUICK_JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_LOCAL_JAVA: Final = "-XX:+UseParallelGC"  # nobody waits for a pause; a tenth less CPU than with Java's choice
EXECUTOR_S_MAX: Final = 120
CONNECT_S_MAX: Final = 10
# Spark's own 200 parts of a shuffle are for a cluster: on one machine the parts cost more than what is in them.
PARTITIONS_PER_CORE: Final = 8
_LIGHT_JAVA: Final = "-XX:TieredStopAtLevel=1"  # compiling well what soon ends takes longer than it saves
# Up to so much the second compiler takes more CPU than it saves: of a year of roll-ups in 2 GB 25 s, and saves 7 s.
LIGHT_TRACE_BYTES_MAX: Final = 32 * 1024 * 1024
LIGHT_ROLLUP_BYTES_MAX: Final = 3 * 1024 * 1024 * 1024
QUICK_BYTES_MAX: Final = 16 * 1024 * 1024  # of trace files; below it a fast start is worth more than fast code


def build_session(
    *,
    master: str,
    conf: Mapping[str, str],
    is_quick: bool = False,
    is_light: bool = False,
    jvm_log: Path | None = None,
) -> SparkSession:
    """Start Spark, or return the session of this process.

    Args:
        master: such as `local[2]` or `spark://host:7077`.
        conf: settings that overrule ours.
        is_quick: for little data: a fast start before fast code.
        is_light: for data of which most is read once: code that is compiled soon before code that is compiled well;
            of a master on this machine only.
        jvm_log: file that takes what the JVM writes to standard error.

    Raises:
        UsageError: `spark://` and no host and port behind it.
        JobFailed: Java or Spark did not start, the line says why; no master answers, it does not let us in, or no
            worker of it took the job.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ  # spark-submit has started the JVM, and knows the master
    host = urllib.parse.urlsplit(master).hostname if master.startswith("spark://") else None
    is_local = master.startswith("local") or (host is not None and is_loopback(host))
    if is_local and not is_submitted:
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    settings = {**_settings(is_local=is_local and not is_submitted, is_quick=is_quick, is_light=is_light), **conf}
    if (cores := local_cores(master)) is not None and not is_submitted:
        settings.setdefault("spark.sql.shuffle.partitions", str(cores * PARTITIONS_PER_CORE))
    builder = SparkSession.builder.appName("georelay-sla")
    if not is_submitted:
        builder = builder.master(master)
    secret = {} if SparkContext._gateway is not None or is_submitted else _secrets(settings)
    for key, value in settings.items():
        if key not in secret:
            builder = builder.config(key, value)
    if host is not None and not is_submitted:
        _require_master(master)
    with _own_interrupts(), _standard_error_to(jvm_log), _submitted_with(secret):
        try:
            session = builder.getOrCreate()
            session._jsparkSession.sessionState()  # settings of SQL are looked at here, else with the first query
        except (PySparkException, Py4JError) as error:
            if host is not None and isinstance(error, Py4JError):
                raise JobFailed(
                    f"{master} did not let us in; is --properties-file the {FILE_NAME} of that cluster? (see {jvm_log})"
                ) from error
            log = jvm_log.read_text(errors="replace") if jvm_log is not None else ""
            where = "" if jvm_log is None else f" (see {jvm_log})"
            raise JobFailed(f"Spark does not start: {cause_of(str(error), log)}{where}") from error
    if session.sparkContext.master.startswith("spark://"):
        _wait_for_executor(session)
    return session


def local_cores(master: str) -> int | None:
    """Return how many cores `local`, `local[N]` or `local[N,RETRIES]` takes; None for any other master."""
    found = re.fullmatch(r"local(?:\[(\d+|\*)(?:,\s*\d+)?\])?", master)
    if found is None:
        return None
    named = found[1]
    return (os.cpu_count() or 1) if named == "*" else int(named or 1)


def _secrets(settings: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in settings.items() if is_secret(key)}


@contextlib.contextmanager
def _own_interrupts() -> Iterator[None]:
    """Let Spark start, and keep the program's handler of SIGINT.

    Spark's own asks the JVM to cancel its jobs over a connection that may be in use at that moment: three tracebacks,
    and queries of other threads go on. Where nobody handles SIGINT, ours ends the JVM: whoever waits for an answer of
    it gets an error, and what was begun is cleaned up.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, _end_java if before is signal.default_int_handler else before)


def _end_java(_: int, __: types.FrameType | None) -> NoReturn:
    # Connections break now, as they should: threads of py4j and Spark would print a traceback each.
    logging.disable()
    server = getattr(SparkContext._active_spark_context, "_accumulatorServer", None)
    if server is not None:
        server.handle_error = lambda *_: None
    process = getattr(SparkContext._gateway, "proc", None)
    if process is not None:
        process.terminate()
        _wait(process)
    raise KeyboardInterrupt


@contextlib.contextmanager
def _submitted_with(secret: Mapping[str, str]) -> Iterator[None]:
    """Let the JVM that starts meanwhile read settings from a file of mode 0600, gone afterwards."""
    if not secret:
        yield
        return
    found = os.environ.get("PYSPARK_SUBMIT_ARGS")
    if found is not None and "--properties-file" in found:
        raise JobFailed("PYSPARK_SUBMIT_ARGS names a file of settings: give it as --properties-file of this command")
    with tempfile.NamedTemporaryFile(prefix="georelay-sla-", suffix=".conf") as file:
        file.write(encode_properties(secret))
        file.flush()
        # Without the second option Spark would leave its own spark-defaults.conf unread.
        arguments = f"--properties-file {file.name} --load-spark-defaults"
        os.environ["PYSPARK_SUBMIT_ARGS"] = f"{arguments} {found or 'pyspark-shell'}"
        try:
            yield
        finally:
            if found is None:
                del os.environ["PYSPARK_SUBMIT_ARGS"]
            else:
                os.environ["PYSPARK_SUBMIT_ARGS"] = found


def _require_master(master: str) -> None:
    """Refuse a master that nobody is at: Spark would ask for a minute, and blame itself in the end."""
    address = parse_master(master)
    try:
        socket.create_connection(address, timeout=CONNECT_S_MAX).close()
    except OSError as error:
        raise JobFailed(f"no Spark master answers at {master}: {error.strerror or error}") from None


def _wait_for_executor(session: SparkSession) -> None:
    """Refuse a cluster that gives us nothing: Spark alone would wait for ever and say so only in its log."""
    context = session.sparkContext
    deadline = time.monotonic() + EXECUTOR_S_MAX
    while context._jsc.sc().getExecutorMemoryStatus().size() < 2:  # the driver is one of them
        if time.monotonic() > deadline:
            master = context.master
            session.stop()
            raise JobFailed(
                f"no worker of {master} took the job within {EXECUTOR_S_MAX} s: none runs, other jobs have their "
                "cores, or spark.executor.memory (1g unless set) is more than a worker has"
            )
        time.sleep(0.1)


def java_options(*, is_quick: bool) -> str:
    """Return the options of every JVM of a driver, and those of a fast start."""
    options = f"-Dlog4j2.configurationFile={LOG_SETTINGS.as_uri()} -Duser.timezone=UTC"
    return f"{options} {_QUICK_JAVA}" if is_quick else options


def _settings(*, is_local: bool, is_quick: bool, is_light: bool = False) -> dict[str, str]:
    started = [java_options(is_quick=is_quick)]
    if is_local:
        started += [_LOCAL_JAVA] * (not is_quick) + [_LIGHT_JAVA] * is_light + [archive_options(archive_path())]
    settings = {
        "spark.driver.extraJavaOptions": " ".join(filter(None, started)),
        "spark.sql.session.timeZone": "UTC",
        "spark.hadoop.parquet.page.verify-checksum.enabled": "true",
        "spark.sql.files.ignoreCorruptFiles": "false",
        # Files are given by name: looking them up is quicker than a job of many tasks that does, read by read.
        "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        # Where in our code each column was named, and plans as formatted text: each costs CPU, and nobody looks.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        "spark.sql.dataFrameQueryContext.enabled": "false",
        "spark.sql.ui.explainMode": "simple",
        "spark.redaction.regex": REDACTED,
    }
    if is_local:
        settings |= {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
    if is_quick:
        settings |= {
            "spark.executor.extraJavaOptions": _QUICK_JAVA,
            "spark.sql.shuffle.partitions": "1",
            "spark.sql.adaptive.enabled": "false",
            "spark.sql.autoBroadcastJoinThreshold": "-1",  # sorting some rows is quicker than a job that sends them
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


def stop_java(wait_s_max: float = JAVA_STOP_SECONDS_MAX) -> None:
    """End the JVM that this process started and wait for it: a report leaves nothing running behind it."""
    context = SparkContext._active_spark_context
    gateway = SparkContext._gateway
    process = getattr(gateway, "proc", None)
    if process is not None and process.poll() is not None:
        return  # it has ended, and nobody is there to be asked to stop
    if context is not None:
        context.stop()
    if gateway is None:
        return
    gateway.shutdown()
    if process is None:
        return
    if process.stdin is not None:
        process.stdin.close()  # the JVM ends when its standard input does
    _wait(process, wait_s_max)


def _wait(process: subprocess.Popen[bytes], wait_s_max: float = JAVA_STOP_SECONDS_MAX) -> None:
    """Wait until the JVM has ended; one that takes too long is killed."""
    try:
        process.wait(wait_s_max)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
