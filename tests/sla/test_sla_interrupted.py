"""Ctrl-C and wrong settings of Spark, at whole commands: one line, the right exit code, no JVM left."""

from __future__ import annotations

import datetime
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.tiers import first

pytest.importorskip("pyspark")

from sla.generate.request import GenerateRequest
from sla.generate.run import run_generate

pytestmark = pytest.mark.timeout(600)
START = datetime.datetime(2026, 11, 20, 9, tzinfo=datetime.UTC)
STEP_S_MAX = 240  # a JVM beside three others on two cores
END_S_MAX = 30  # the queries that were begun take longer
POLL_S = 0.01
Moment = Callable[[subprocess.Popen[str], Path], bool]


@pytest.fixture(scope="module")
def half_an_hour(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Traces whose roll-up takes longer than a test needs to interrupt it."""
    out = tmp_path_factory.mktemp("gen")
    return run_generate(GenerateRequest(out=out, start=START, seconds=1_800, rate_per_s=20)).traces


@pytest.fixture(scope="module")
def a_second(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Traces for what ends before one row is read."""
    out = tmp_path_factory.mktemp("gen")
    return run_generate(GenerateRequest(out=out, start=START, seconds=1, rate_per_s=20, brokers=1)).traces


def command(traces: Path, rollups: Path, *given: str) -> list[str]:
    return [sys.executable, "-m", "sla", "rollup", "--traces", str(traces), "--rollups", str(rollups), *given]


def children(pid: int) -> list[int]:
    """Return the processes that a process and its children started."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        found = [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except OSError:  # it has ended
        return []
    return [*found, *(further for child in found for further in children(child))]


def is_java(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() == "java"
    except OSError:
        return False


def wait_for(is_true: Callable[[], bool], process: subprocess.Popen[str] | None = None) -> None:
    deadline = time.monotonic() + STEP_S_MAX
    while not is_true():
        assert process is None or process.poll() is None, "it ended by itself"
        assert time.monotonic() < deadline
        time.sleep(POLL_S)


def starts_java(process: subprocess.Popen[str], _: Path) -> bool:
    return any(map(is_java, children(process.pid)))


def makes_plans(_: subprocess.Popen[str], rollups: Path) -> bool:
    """Return whether Spark is asked for tables: the main thread waits for an answer of the JVM."""
    return any(rollups.glob(".staging-*/*/date=*"))


def writes_tables(_: subprocess.Popen[str], rollups: Path) -> bool:
    return any(rollups.glob(".staging-*/*/_temporary"))


@pytest.fixture
def begun(request: pytest.FixtureRequest, moment: Moment, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A roll-up that has begun."""
    traces = request.getfixturevalue("a_second" if moment is starts_java else "half_an_hour")
    process = subprocess.Popen(
        command(traces, tmp_path / "rollups"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with process:
        yield process
        process.kill()


@pytest.mark.parametrize("moment", first(1, [starts_java, makes_plans, writes_tables]))
def test_ctrl_c_is_one_line_and_130_and_leaves_no_java(
    begun: subprocess.Popen[str], tmp_path: Path, moment: Moment
) -> None:
    wait_for(lambda: moment(begun, tmp_path / "rollups"), begun)
    started = children(begun.pid)
    at_s = time.monotonic()
    os.kill(begun.pid, signal.SIGINT)
    out, err = begun.communicate(timeout=STEP_S_MAX)
    assert time.monotonic() - at_s < END_S_MAX
    said = [line for line in err.splitlines() if not line.endswith(" ...")]  # steps, on a machine that is slow
    assert (out, said) == ("", ["georelay-sla: interrupted"])
    # A shell says 130 of both: CPython ends by the signal itself where it came into an exec() of text (a dataclass that
    # is made), although the program had taken it.
    assert begun.returncode in (130, -signal.SIGINT)
    wait_for(lambda: not any(map(is_java, started)))
    assert list((tmp_path / "rollups").glob(".staging-*")) == []


@pytest.mark.parametrize(
    ("given", "cause"),
    first(
        0,
        [
            (["--master", "nonsense"], "Master must either be yarn or start with spark, k8s, or local"),
            (["--master", "local[x]"], "Could not parse Master URL: 'local[x]'"),
            (["--conf", "spark.driver.memory=banana"], "Invalid maximum heap size: -Xmxbanana"),
            (["--conf", "spark.sql.shuffle.partitions=banana"], "banana"),
        ],
    ),
)
def test_a_setting_that_spark_refuses_is_named_and_java_is_not_blamed(
    a_second: Path, tmp_path: Path, given: list[str], cause: str
) -> None:
    done = subprocess.run(command(a_second, tmp_path / "r", *given), capture_output=True, text=True, check=False)
    said = [line for line in done.stderr.splitlines() if not line.endswith(" ...")]
    assert (done.returncode, done.stdout, len(said)) == (4, "", 1), done.stderr
    assert said[0].startswith("georelay-sla: Spark does not start: ")
    assert cause in said[0]
    assert f"(see {tmp_path}/r/_spark.log)" in said[0]
    assert "doctor" not in said[0]
