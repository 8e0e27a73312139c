"""Turns this process into a master or a worker: for `up`, and for the service manager of each host.

What stands in the way is said before Java starts; then the process writes its file and becomes `spark-class`, which
becomes Java: one process id from beginning to end.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Final, NoReturn

from sla.cluster.daemon_file import DaemonFile, read_daemon
from sla.cluster.ports import take_port
from sla.cluster.secret import FILE_NAME, check_secret, ensure_secret
from sla.cluster.settings import LOOPBACK, MasterSettings, WorkerSettings, environment
from sla.errors import JobFailed
from sla.jobs.doctor import check_java

MASTER: Final = "master"
OWNER_ONLY_DIRECTORY: Final = 0o700


def run_master(directory: Path, *, host: str, port: int, web_port: int) -> NoReturn:
    """Become the master of a directory; its secret is made when there is none.

    Raises:
        UsageError: host, port or secret cannot be used.
        JobFailed: no Java, a port is taken, or the directory's master runs already.
    """
    spark_home = require_here()
    open_directory(directory)
    _refuse_second(directory, MASTER)
    secret = directory / FILE_NAME
    ensure_secret(secret)
    settings = MasterSettings(
        host=host,
        port=take_port(host, port, "--port"),
        web_port=take_port(LOOPBACK, web_port, "--webui-port"),
        secret=secret.resolve(),
    )
    daemon = DaemonFile.of_this_process(
        name=MASTER, url=settings.url, host=host, port=settings.port, web_port=settings.web_port
    )
    daemon.write(directory)
    _become(settings.command(spark_home), spark_home)


def run_worker(
    directory: Path, *, name: str, master: str, secret: Path, host: str, port: int, cores: int, memory_mib: int
) -> NoReturn:
    """Become a worker.

    Args:
        directory: of its file and of what its executors leave.
        name: `worker-N`.
        secret: the master's file, or a copy of it.

    Raises: see run_master.
    """
    spark_home = require_here()
    open_directory(directory)
    _refuse_second(directory, name)
    check_secret(secret)
    settings = WorkerSettings(
        master=master,
        host=host,
        port=take_port(host, port, "--port"),
        web_port=take_port(LOOPBACK, 0, "--host"),
        cores=cores,
        memory_mib=memory_mib,
        work=(directory / "work" / name).resolve(),
        secret=secret.resolve(),
    )
    daemon = DaemonFile.of_this_process(
        name=name, url=master, host=host, port=settings.port, web_port=settings.web_port
    )
    daemon.write(directory)
    _become(settings.command(spark_home), spark_home)


def open_directory(directory: Path) -> None:
    """Make the directory of a cluster, for its owner alone.

    Raises:
        JobFailed: it cannot be made.
    """
    try:
        directory.mkdir(mode=OWNER_ONLY_DIRECTORY, parents=True, exist_ok=True)
    except OSError as error:
        raise JobFailed(f"the directory {directory} cannot be made: {error.strerror}") from None


def require_here() -> Path:
    """Return the directory of Spark, having found Java.

    Raises:
        JobFailed: one is missing; the line says what to install.
    """
    java = check_java()
    if not java.is_ok:
        raise JobFailed(f"{java.name}: {java.text}")
    found = importlib.util.find_spec("pyspark")
    if found is None or not found.submodule_search_locations:
        raise JobFailed("pyspark: not installed: pip install 'georelay-server[sla]'")
    return Path(found.submodule_search_locations[0])


def _refuse_second(directory: Path, name: str) -> None:
    known = read_daemon(directory, name)
    if known is not None and known.is_running():
        raise JobFailed(f"the {name} of {directory} runs already as process {known.pid}")


def _become(command: list[str], spark_home: Path) -> NoReturn:
    os.execve(command[0], command, environment(os.environ, spark_home))  # noqa: S606 (no shell, all arguments ours)
