"""The start-up archive of Spark's JVM on real JVMs: made, used, and no obstacle where it does not fit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

ANSWER_S_MAX = 240
# A session of its own process, with an archive and a further option of the JVM; its log names where classes are from.
SESSION = """
import sys
from pathlib import Path
from sla import session
archive, log, option = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
session.archive_path = lambda: archive
options = session._settings(is_local=True, is_quick=True)["spark.driver.extraJavaOptions"]
conf = {"spark.driver.extraJavaOptions": f"{options} {option}", "spark.sql.warehouse.dir": str(log.parent)}
spark = session.build_session(master="local[1]", conf=conf, is_quick=True, jvm_log=log)
print(spark.range(3).count())
session.stop_java()
"""
MAKE = """
import sys
from pathlib import Path
from sla.jobs.java_archive import make_archive
make_archive(Path(sys.argv[1]))
"""


def python(code: str, *arguments: str | Path) -> str:
    """Run a program of ours and return what it printed."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_S_MAX, check=False, env=os.environ)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_session_takes_most_classes_of_spark_from_the_archive(tmp_path: Path) -> None:
    archive, classes = tmp_path / "made" / "spark.jsa", tmp_path / "classes"
    python(MAKE, archive)
    assert [path.name for path in archive.parent.iterdir()] == ["spark.jsa"]
    assert python(SESSION, archive, tmp_path / "jvm.log", f"-Xlog:class+load=info:file={classes}") == "3\n"
    of_spark = [line for line in classes.read_text().splitlines() if " org.apache.spark." in line]
    shared = [line for line in of_spark if "shared objects file" in line]
    assert len(shared) > 0.5 * len(of_spark) > 1_000


@pytest.mark.slow
def test_an_archive_that_is_damaged_or_of_another_java_is_passed_over_without_a_word(tmp_path: Path) -> None:
    archive, log = tmp_path / "spark.jsa", tmp_path / "jvm.log"
    archive.write_bytes(b"of another Java")
    assert python(SESSION, archive, log, "-Dgeorelay.test=1") == "3\n"
    assert "archive" not in log.read_text()
