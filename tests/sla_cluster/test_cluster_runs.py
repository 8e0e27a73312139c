"""The jobs give the same tables and the same report wherever they run, and when a worker dies on the way."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from georelay.trace.kinds import TraceKind
from sla.cluster.launch import require_here
from sla.cluster.lifecycle import ClusterStatus, status
from sla.cluster.secret import FILE_NAME
from sla.jobs.verify import VerifyRequest, run_verify
from sla.tables import RollupTable
from tests.sla_cluster.job_runs import ROOT, RUN_S_MAX, Expected, judged, on, sla, tables

Cluster = Callable[[], ClusterStatus]
pytestmark = pytest.mark.timeout(2 * RUN_S_MAX)


def report(expected: Expected, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    rollups = ("--rollups", str(folder / "rollups"), "--out", str(folder / "report"))
    return sla("report", "--traces", expected.traces, *rollups, "--format", "json", "--fail-on", "never", *options)


def assert_same(expected: Expected, folder: Path) -> None:
    found = tables(folder / "rollups")
    assert [name for name, rows in expected.tables.items() if rows != found[name]] == []
    assert judged(folder / "report") == expected.report


def test_two_executors_in_processes_of_their_own_give_the_same(expected: Expected, tmp_path: Path) -> None:
    done = report(expected, tmp_path, "--master", "local-cluster[2,1,1024]")
    assert done.returncode == 0, done.stderr
    assert_same(expected, tmp_path)


def test_a_standalone_cluster_gives_the_same(expected: Expected, cluster: Cluster, tmp_path: Path) -> None:
    done = report(expected, tmp_path, *on(cluster()))
    assert done.returncode == 0, done.stderr
    assert_same(expected, tmp_path)


def test_a_worker_that_is_killed_on_the_way_changes_nothing(
    expected: Expected, cluster: Cluster, tmp_path: Path
) -> None:
    found = cluster()
    worker = next(daemon for daemon in found.daemons if daemon.name == "worker-1")
    rollups = tmp_path / "rollups"
    began = time.monotonic()
    arguments = ["rollup", "--traces", str(expected.traces), "--rollups", str(rollups), *on(found)]
    with subprocess.Popen([sys.executable, "-m", "sla", *arguments], stderr=subprocess.PIPE, text=True) as job:
        # One table of Spark's stands whole: what the others share is cached, and shuffled, on both workers.
        while not written_by_spark(rollups):
            assert job.poll() is None, job.stderr.read() if job.stderr else ""
            time.sleep(0.05)
        in_use = status(found.directory).master
        assert in_use is not None
        assert [one.cores_used for one in in_use.workers] == [1, 1]
        assert secret_of(found) not in process_list()
        assert listeners_elsewhere() == []
        os.kill(worker.pid, signal.SIGKILL)
        for executor in children_in(found.directory / "work" / "worker-1"):
            os.kill(executor, signal.SIGKILL)
        killed_after = time.monotonic() - began
        assert job.wait(RUN_S_MAX) == 0, job.stderr.read() if job.stderr else ""
    print(f"\n  a worker killed after {killed_after:.1f} s, done after {time.monotonic() - began:.1f} s", flush=True)
    assert {name: rows for name, rows in tables(rollups).items() if rows != expected.tables[name]} == {}
    assert not status(found.directory).is_whole
    assert sla("cluster", "status", "--dir", found.directory).returncode == 4
    healed = cluster()
    assert [daemon.pid for daemon in healed.daemons if daemon.name != "worker-1"] == [
        daemon.pid for daemon in found.daemons if daemon.name != "worker-1"
    ]


def test_a_job_with_another_secret_is_refused(expected: Expected, cluster: Cluster, tmp_path: Path) -> None:
    found = cluster()
    own, other = found.directory / FILE_NAME, tmp_path / FILE_NAME
    shutil.copy(own, other)
    other.write_text(other.read_text().replace(secret_of(found), "0" * 64))
    done = report(expected, tmp_path, *on(found)[:3], str(other))
    assert (done.returncode, "did not let us in" in done.stderr.splitlines()[-1]) == (4, True), done.stderr
    assert not (tmp_path / "report" / "report.json").exists()


def test_submitted_with_our_wheel_it_runs_on_hosts_without_our_code(
    expected: Expected, cluster: Cluster, packages: Path, tmp_path: Path
) -> None:
    bare = bare_python(tmp_path)
    options = ["--py-files", str(packages / "georelay_sla.zip"), *pythons(str(bare))]
    assert submit(
        cluster(), tmp_path, [*options, str(ROOT / "tests/sla_cluster/count_rows.py"), str(expected.traces)]
    ) == counts(expected)


def test_submitted_with_a_packed_environment_it_runs_on_hosts_without_pyarrow(
    expected: Expected, cluster: Cluster, packages: Path, tmp_path: Path
) -> None:
    # Our data source is planned by a Python beside the driver, under the name that it has on the executors.
    (tmp_path / "env").mkdir()
    with tarfile.open(packages / "georelay_sla_env.tar.gz") as archive:
        archive.extractall(tmp_path / "env", filter="fully_trusted")
    options = ["--archives", f"{packages / 'georelay_sla_env.tar.gz'}#env", *pythons("./env/bin/python")]
    assert submit(
        cluster(), tmp_path, [*options, str(ROOT / "tests/sla_cluster/count_rows.py"), str(expected.traces)]
    ) == counts(expected)


def test_submitted_reports_are_the_same_and_keep_their_exit_code(
    expected: Expected, cluster: Cluster, packages: Path, tmp_path: Path
) -> None:
    found = cluster()
    command = [
        *spark_submit(found), "--py-files", str(packages / "georelay_sla.zip"), str(ROOT / "sla/submit_main.py"),
        "report", "--traces", str(expected.traces), "--rollups", str(tmp_path / "rollups"),
        "--out", str(tmp_path / "report"), "--format", "json",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S_MAX, env=spark_home())
    # A few minutes of traces never prove availability.
    assert done.returncode == {"PASS": 0, "BREACH": 1}.get(str(expected.report["verdict"]).upper(), 3), done.stderr
    assert_same(expected, tmp_path)


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory that `make sla-package` fills."""
    if "GEORELAY_SLA_PACKAGES" in os.environ:
        return Path(os.environ["GEORELAY_SLA_PACKAGES"])
    folder = tmp_path_factory.mktemp("packages")
    subprocess.run(
        ["bash", "tools/sla_package.sh", sys.executable, str(folder)], cwd=ROOT, check=True, timeout=RUN_S_MAX
    )
    return folder


def bare_python(folder: Path) -> Path:
    """Return a Python that has pyspark and pyarrow and has never heard of us."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "bare")], check=True)
    python = folder / "bare" / "bin" / "python"
    [packages] = (folder / "bare").glob("lib/python3*/site-packages")
    [ours] = Path(sys.prefix).glob("lib/python3*/site-packages")
    (packages / "others.pth").write_text(f"{ours}\n")
    assert subprocess.run([python, "-c", "import pyarrow, pyspark"], cwd=folder).returncode == 0
    assert subprocess.run([python, "-c", "import sla"], cwd=folder, capture_output=True).returncode == 1
    return python


def pythons(executors: str) -> list[str]:
    return ["--conf", f"spark.pyspark.python={executors}", "--conf", f"spark.pyspark.driver.python={sys.executable}"]


def spark_submit(found: ClusterStatus) -> list[str]:
    assert found.url is not None
    return [
        str(require_here() / "bin" / "spark-submit"), "--master", found.url,
        "--properties-file", str(found.directory / FILE_NAME), "--conf", "spark.driver.host=127.0.0.1",
        "--conf", "spark.driver.bindAddress=127.0.0.1", "--conf", "spark.ui.enabled=false",
    ]  # fmt: skip


def spark_home() -> dict[str, str]:
    """Return what an activated environment has: its Python comes first, and with it its Spark."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return os.environ | {"SPARK_HOME": str(require_here()), "PATH": path}


def submit(found: ClusterStatus, folder: Path, arguments: list[str]) -> dict[str, object]:
    began = time.monotonic()
    done = subprocess.run(
        [*spark_submit(found), *arguments],
        capture_output=True,
        text=True,
        timeout=RUN_S_MAX,
        env=spark_home(),
        cwd=folder,
    )
    print(f"\n  spark-submit: {time.monotonic() - began:.1f} s", flush=True)
    assert done.returncode == 0, done.stderr[-3_000:]
    counted: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    assert counted.pop("master") == found.url
    return counted


def counts(expected: Expected) -> dict[str, int]:
    files = run_verify(VerifyRequest(traces=expected.traces))
    return {kind.value: files.rows_of(kind) for kind in (TraceKind.LEDGER, TraceKind.PROBE)}


def secret_of(found: ClusterStatus) -> str:
    [line] = [one for one in (found.directory / FILE_NAME).read_text().splitlines() if "secret=" in one]
    return line.partition("=")[2]


def written_by_spark(rollups: Path) -> list[Path]:
    """Return the tables on their way that are complete; the inputs' is written without Spark."""
    done = rollups.glob(".staging-*/*/date=*")
    return [path for path in done if path.parent.name != RollupTable.INPUTS_HOUR.value]


def process_list() -> str:
    return subprocess.check_output(["ps", "-eo", "args"], text=True)


def listeners_elsewhere() -> list[str]:
    """Return what processes of Java listen on but loopback."""
    lines = subprocess.check_output(["ss", "-Hltnp"], text=True).splitlines()
    return [line for line in lines if '"java"' in line and "127.0.0.1" not in line.split()[3]]


def children_in(work: Path) -> list[int]:
    """Return the processes whose working directory is below that of a worker: its executors."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                if (entry / "cwd").readlink().is_relative_to(work):
                    found.append(int(entry.name))
            except OSError:  # gone meanwhile
                continue
    return found
