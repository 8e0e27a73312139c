"""Makes the start-up archive of Spark's JVM: a JVM runs a small query and writes down what it loaded for it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from sla.errors import JobFailed
from sla.session import build_session, java_options, stop_java

ARCHIVE_S_MAX: Final = 300  # the JVM writes it when it ends, in 10 s on two quiet cores


def make_archive(path: Path, on_step: Callable[[str], None] = lambda _: None) -> None:
    """Make the archive anew; until it is whole the one of before stands.

    Args:
        path: of the archive; sessions look for theirs at `archive_path`.
        on_step: called with a short text whenever the next step begins.

    Raises:
        JobFailed: the directory cannot be written, Spark did not start, or its JVM wrote no archive.
    """
    fresh = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="georelay-sla-") as folder:
            on_step("running a query")
            _query_in(Path(folder), f"-XX:ArchiveClassesAtExit={fresh} -Xlog:cds*=off")
            on_step("writing the archive")
            stop_java(wait_s_max=ARCHIVE_S_MAX)
        if not fresh.is_file():
            raise JobFailed(f"Java wrote no archive to {path.parent}: is there room for 200 MB?")
        fresh.replace(path)
    except OSError as error:
        raise JobFailed(f"the archive cannot be written: {error}") from error
    finally:
        fresh.unlink(missing_ok=True)


def _query_in(folder: Path, options: str) -> None:
    pq.write_table(pa.table({"key": ["a", "b", "a"], "value": [1, 2, 3]}), folder / "rows.parquet")
    conf = {
        "spark.driver.extraJavaOptions": f"{java_options(is_quick=True)} {options}",
        "spark.sql.warehouse.dir": str(folder),
    }
    session = build_session(master="local[2]", conf=conf, is_quick=True, jvm_log=folder / "jvm.log")
    session.read.parquet(str(folder / "rows.parquet")).groupBy("key").sum("value").orderBy("key").collect()
