"""The cluster of the report's jobs: what its daemons are started with, who may know the secret, what is ended."""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sla import cli, session
from sla.cluster import lifecycle
from sla.cluster.daemon_file import DaemonFile, all_daemons, began_ticks, read_daemon
from sla.cluster.launch import require_here
from sla.cluster.lifecycle import ClusterStatus, UpRequest, down, status, up
from sla.cluster.master_page import MasterState, WorkerState, decode_state
from sla.cluster.ports import take_port
from sla.cluster.secret import FILE_NAME, check_secret, ensure_secret
from sla.cluster.settings import (
    MasterSettings,
    WorkerSettings,
    check_cores,
    check_host,
    environment,
    parse_master,
    parse_memory_mib,
)
from sla.errors import JobFailed, UsageError
from sla.spark_properties import decode_properties, encode_properties, read_properties

SPARK_HOME = Path("/spark")
MASTER = MasterSettings(host="10.1.0.5", port=7077, web_port=18_080, secret=Path("/c/secret.conf"))
WORKER = WorkerSettings(
    master="spark://10.1.0.5:7077", host="10.1.0.6", port=40_001, web_port=40_002, cores=4, memory_mib=8192,
    work=Path("/c/work/worker-1"), secret=Path("/c/secret.conf"),
)  # fmt: skip


# --- the secret --------------------------------------------------------------------------------------------


def test_a_secret_is_made_once_for_its_owner_alone_and_switches_everything_on(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    assert ensure_secret(path)
    settings = dict(read_properties(path))
    assert path.stat().st_mode & 0o777 == 0o600
    assert re.fullmatch(r"[0-9a-f]{64}", settings.pop("spark.authenticate.secret"))
    assert settings == {
        "spark.authenticate": "true", "spark.network.crypto.enabled": "true",
        "spark.network.crypto.authEngineVersion": "2", "spark.network.crypto.cipher": "AES/GCM/NoPadding",
        "spark.master.rest.enabled": "false",
    }  # fmt: skip
    before = path.read_bytes()
    assert not ensure_secret(path)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == [FILE_NAME]


def test_of_two_that_make_the_secret_at_once_the_first_ones_stays(tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / FILE_NAME
    ensure_secret(path)
    first = path.read_bytes()
    monkeypatch.setattr(Path, "exists", lambda _: False)  # the second looked before the first had written
    assert not ensure_secret(path)
    assert path.read_bytes() == first


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda path: path.chmod(0o640), "chmod 600"),
        (lambda path: path.unlink(), "there is no secret"),
        (lambda path: path.write_text("spark.authenticate.secret short\n"), "at least 32 characters"),
        (lambda path: path.write_text(path.read_text().replace("rest.enabled=false", "rest.enabled=true")), "rest"),
        (lambda path: path.write_text(path.read_text().replace("crypto.enabled=true", "x=y")), "crypto.enabled true"),
        (lambda path: path.write_text(path.read_text().replace("AES/GCM", "AES/CTR")), "cipher AES/GCM/NoPadding"),
        (lambda path: path.write_bytes(b"\xff\xfe"), "no UTF-8"),
        (lambda path: path.write_bytes(b"#" * 70_000), "longer than"),
    ],
)
def test_a_secret_that_would_leave_the_cluster_open_is_refused(tmp_path: Path, change: Any, words: str) -> None:
    path = tmp_path / FILE_NAME
    ensure_secret(path)
    change(path)
    with pytest.raises(UsageError, match=words):
        check_secret(path)


def test_a_settings_file_with_a_secret_that_others_can_read_is_refused_one_without_is_not(tmp_path: Path) -> None:
    path = tmp_path / "spark.conf"
    path.write_text("# ours\nspark.executor.memory 2g\n\nspark.sql.shuffle.partitions = 8\nspark.x: a b\n")
    path.chmod(0o644)
    expected = [("spark.executor.memory", "2g"), ("spark.sql.shuffle.partitions", "8"), ("spark.x", "a b")]
    assert read_properties(path) == expected
    path.write_text("spark.hadoop.fs.s3a.secret.key abc\n")
    with pytest.raises(UsageError, match="other users can read"):
        read_properties(path)


@pytest.mark.parametrize("text", ["spark.x\n", "spark.x a\\\nb\n"])
def test_a_line_that_is_not_understood_is_refused_with_its_number(text: str) -> None:
    with pytest.raises(UsageError, match="f, line 1"):
        decode_properties(text, "f")


@given(
    st.dictionaries(st.from_regex(r"[a-z.]{1,20}", fullmatch=True), st.from_regex(r"[!-\[\]-~]{0,30}", fullmatch=True))
)
def test_settings_that_were_written_are_read_again(settings: dict[str, str]) -> None:
    assert dict(decode_properties(encode_properties(settings).decode(), "f")) == settings


def test_a_value_that_would_be_a_second_setting_is_refused() -> None:
    with pytest.raises(UsageError, match="cannot be written"):
        encode_properties({"spark.x": "a\nspark.authenticate false"})


def test_secrets_reach_the_jvm_in_a_file_of_mode_0600_that_is_gone_afterwards(monkeypatch: Any) -> None:
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--jars a.jar pyspark-shell")
    settings = {"spark.authenticate.secret": "s3cret", "spark.authenticate": "true", "spark.hadoop.fs.token": "t"}
    secret = session._secrets(settings)
    assert secret == {"spark.authenticate.secret": "s3cret", "spark.hadoop.fs.token": "t"}
    with session._submitted_with(secret):
        arguments = os.environ["PYSPARK_SUBMIT_ARGS"].split()
        path = Path(arguments[arguments.index("--properties-file") + 1])
        assert arguments[-3:] == ["--jars", "a.jar", "pyspark-shell"]
        assert path.stat().st_mode & 0o777 == 0o600
        assert dict(read_properties(path)) == secret
    assert not path.exists()
    assert os.environ["PYSPARK_SUBMIT_ARGS"] == "--jars a.jar pyspark-shell"


def test_a_master_that_nobody_is_at_is_said_at_once_and_not_after_a_minute() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(JobFailed, match=f"no Spark master answers at spark://127.0.0.1:{port}: Connection refused"):
        session.build_session(master=f"spark://127.0.0.1:{port}", conf={})


# --- command lines -----------------------------------------------------------------------------------------


def test_a_master_and_a_worker_are_started_by_spark_class_on_one_address_each() -> None:
    assert MASTER.command(SPARK_HOME) == [
        "/spark/bin/spark-class", "org.apache.spark.deploy.master.Master", "--host", "10.1.0.5", "--port", "7077",
        "--webui-port", "18080", "--properties-file", "/c/secret.conf",
    ]  # fmt: skip
    assert WORKER.command(SPARK_HOME) == [
        "/spark/bin/spark-class", "org.apache.spark.deploy.worker.Worker", "--host", "10.1.0.6", "--port", "40001",
        "--webui-port", "40002", "--cores", "4", "--memory", "8192m", "--work-dir", "/c/work/worker-1",
        "--properties-file", "/c/secret.conf", "spark://10.1.0.5:7077",
    ]  # fmt: skip


def test_a_daemons_pages_stay_on_loopback_and_nothing_of_the_callers_environment_opens_them() -> None:
    base = {
        "PATH": "/bin", "JAVA_HOME": "/java", "SPARK_LOCAL_IP": "0.0.0.0", "SPARK_MASTER_HOST": "0.0.0.0",
        "SPARK_WORKER_OPTS": "-Dspark.authenticate=false", "SPARK_DAEMON_JAVA_OPTS": "-Dx=y",
        "_SPARK_AUTH_SECRET": "s", "PYSPARK_SUBMIT_ARGS": "x", "SPARK_PUBLIC_DNS": "h",
    }  # fmt: skip
    made = environment(base, SPARK_HOME)
    options = made.pop("SPARK_DAEMON_JAVA_OPTS").split()
    assert made == {
        "PATH": "/bin", "JAVA_HOME": "/java", "SPARK_HOME": "/spark", "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "512m",
    }  # fmt: skip
    assert {"-Dspark.port.maxRetries=0", "-Dspark.master.ui.decommission.allow.mode=DENY"} <= set(options)


@pytest.mark.parametrize("host", ["0.0.0.0", "0", "0x0", "::", "", "224.0.0.1", "a b", "-x", "h/../x", "*"])
def test_a_host_that_is_every_address_or_none_is_refused(host: str) -> None:
    with pytest.raises(UsageError, match="--host"):
        check_host(host)


@pytest.mark.parametrize("url", ["spark://h", "http://h:1", "spark://h:0", "spark://h:70000", "spark://a:1,b:2", "x"])
def test_what_is_no_master_is_refused(url: str) -> None:
    with pytest.raises(UsageError):
        parse_master(url)


def test_sizes_have_units_and_limits() -> None:
    assert (parse_memory_mib("1024m"), parse_memory_mib("4G"), check_cores(1)) == (1024, 4096, 1)
    for text in ("1024", "511m", "0g", "4t", "-1g"):
        with pytest.raises(UsageError, match="memory size"):
            parse_memory_mib(text)
    with pytest.raises(UsageError, match="--cores"):
        check_cores(0)


# --- ports, Java, arguments: one line each ------------------------------------------------------------------


def test_a_taken_port_is_one_line_with_exit_code_4(tmp_path: Path, capsys: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        code = cli.main(["cluster", "up", "--dir", str(tmp_path / "c"), "--port", str(port)])
        text = capsys.readouterr().err
    assert (code, text.splitlines()[-1]) == (
        4, f"georelay-sla: port {port} of 127.0.0.1 is taken by another process: end it, or give --port",
    )  # fmt: skip
    assert all_daemons(tmp_path / "c") == []


@pytest.mark.parametrize(("host", "port"), [("192.0.2.99", 0), ("127.0.0.1", 70_000), ("no.such.host.invalid", 0)])
def test_an_address_that_is_not_this_machines_is_refused(host: str, port: int) -> None:
    with pytest.raises(UsageError):
        take_port(host, port, "--port")


def test_without_java_up_says_what_to_install(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert cli.main(["cluster", "up", "--dir", str(tmp_path / "c")]) == 4
    assert "install Java 17" in capsys.readouterr().err
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["up", "--host", "0.0.0.0"], ["up", "--workers", "65"], ["up", "--memory", "1"], ["up", "--cores", "0"],
        ["worker", "--master", "h:1"], ["worker", "--master", "spark://h:1", "--name", "../x"],
        ["worker", "--master", "spark://127.0.0.1:1"],
    ],
)  # fmt: skip
def test_a_wrong_argument_is_one_line_with_exit_code_2(tmp_path: Path, capsys: Any, arguments: list[str]) -> None:
    assert cli.main(["cluster", *arguments, "--dir", str(tmp_path / "c")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_status_of_a_directory_in_which_nothing_was_started_exits_with_4(tmp_path: Path, capsys: Any) -> None:
    assert cli.main(["cluster", "status", "--dir", str(tmp_path)]) == 4
    assert "cluster up" in capsys.readouterr().err


# --- processes ---------------------------------------------------------------------------------------------


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    yield process
    process.kill()
    process.wait()


def file_of(pid: int, name: str = "master", **changes: Any) -> DaemonFile:
    own = DaemonFile.of_this_process(name=name, url="spark://127.0.0.1:1", host="127.0.0.1", port=1, web_port=1)
    began = began_ticks(pid)
    assert began is not None
    return dataclasses.replace(own, **{"pid": pid, "began": began} | changes)


def test_down_ends_what_was_started_and_takes_its_file_away(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    file_of(sleeper.pid).write(tmp_path)
    assert read_daemon(tmp_path, "master") == file_of(sleeper.pid)
    assert status(tmp_path).running == {"master"}
    assert down(tmp_path) == ["master"]
    assert sleeper.wait(10) == -signal.SIGTERM
    assert all_daemons(tmp_path) == []
    assert down(tmp_path) == []


@pytest.mark.parametrize("changes", [{"began": 1}, {"boot_id": "another boot"}])
def test_down_leaves_a_process_alone_that_got_the_number_of_a_dead_daemon(
    tmp_path: Path, sleeper: subprocess.Popen[bytes], changes: dict[str, Any]
) -> None:
    file_of(sleeper.pid, **changes).write(tmp_path)
    assert status(tmp_path).running == frozenset()
    assert down(tmp_path) == []
    assert sleeper.poll() is None
    assert all_daemons(tmp_path) == []


def test_a_daemon_that_does_not_listen_is_killed(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(lifecycle, "STOP_S_MAX", 0.3)
    code = (
        "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(); sys.stdout.flush(); signal.pause()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        file_of(process.pid, "worker-1").write(tmp_path)
        assert down(tmp_path) == ["worker-1"]
        assert process.wait(10) == -signal.SIGKILL


def test_a_process_of_which_only_the_exit_code_is_left_does_not_run(sleeper: subprocess.Popen[bytes]) -> None:
    known = file_of(sleeper.pid)
    sleeper.kill()
    deadline = time.monotonic() + 10
    while known.is_running():  # until the kernel has ended it; nobody has waited for it yet
        assert time.monotonic() < deadline
    assert Path(f"/proc/{sleeper.pid}/stat").exists()


def test_a_file_that_nobody_can_read_is_said_not_skipped(tmp_path: Path) -> None:
    (tmp_path / "worker-1.pid").write_text("{")
    with pytest.raises(JobFailed, match="cannot be understood"):
        status(tmp_path)


def test_one_up_or_down_at_a_time_works_on_a_directory(tmp_path: Path) -> None:
    with lifecycle._locked(tmp_path), pytest.raises(JobFailed, match="another up or down"):
        down(tmp_path)


def test_up_refuses_to_take_over_a_master_that_listens_elsewhere(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    file_of(sleeper.pid).write(tmp_path)
    with pytest.raises(UsageError, match="run down first"):
        up(UpRequest(directory=tmp_path, port=7078))
    assert sleeper.poll() is None


def test_a_daemon_that_ends_at_once_is_explained_by_its_own_words(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "worker-1.log"
    log.parent.mkdir()
    log.write_text("INFO began\njava.net.BindException: Address already in use\n\tat x\nINFO bye\n")
    assert lifecycle._why("worker-1", log) == (
        f"worker-1 ended: java.net.BindException: Address already in use (log: {log})"
    )


def test_spark_is_found_beside_this_interpreter() -> None:
    assert (require_here() / "bin" / "spark-class").exists()


# --- the master's page -------------------------------------------------------------------------------------

PAGE = b"""{"url": "spark://127.0.0.1:34193", "workers": [
  {"id": "worker-1", "host": "127.0.0.1", "port": 43057, "webuiaddress": "http://127.0.0.1:37793", "cores": 2,
   "coresused": 1, "coresfree": 1, "memory": 1024, "memoryused": 512, "memoryfree": 512, "resources": {},
   "resourcesused": {}, "resourcesfree": {}, "state": "ALIVE", "lasthearbeat": 1},
  {"id": "worker-2", "host": "127.0.0.1", "port": 39945, "webuiaddress": "", "cores": 1, "coresused": 0,
   "memory": 1024, "memoryused": 0, "state": "DEAD", "lastheartbeat": 1}],
  "aliveworkers": 1, "cores": 2, "activeapps": [{"id": "app-1"}], "status": "ALIVE"}"""


def test_the_masters_page_is_read_as_spark_writes_it() -> None:
    found = decode_state(PAGE)
    assert found is not None
    assert (found.state, found.applications, found.alive) == ("ALIVE", 1, {("127.0.0.1", 43_057)})
    assert found.workers[1] == WorkerState(
        host="127.0.0.1", port=43_057, state="ALIVE", cores=2, cores_used=1, memory_mib=1024, memory_used_mib=512
    )
    assert decode_state(PAGE[:-1]) is None
    assert decode_state(b'{"status": "ALIVE"}') is None


def test_a_cluster_is_whole_only_with_every_daemon_that_was_started(tmp_path: Path) -> None:
    master, worker = (file_of(os.getpid(), name, port=port) for name, port in (("master", 1), ("worker-1", 43_057)))
    whole = ClusterStatus(
        directory=tmp_path,
        daemons=(master, worker),
        running=frozenset({"master", "worker-1"}),
        master=decode_state(PAGE),
    )
    assert (whole.is_whole, whole.url) == (True, "spark://127.0.0.1:1")
    assert not dataclasses.replace(whole, running=frozenset({"master"})).is_whole
    assert not dataclasses.replace(whole, master=None).is_whole
    assert not dataclasses.replace(whole, master=MasterState(state="STANDBY", workers=(), applications=0)).is_whole
    forgotten = dataclasses.replace(worker, port=39_945)  # the master says that it is dead
    assert not dataclasses.replace(whole, daemons=(master, forgotten)).is_whole
