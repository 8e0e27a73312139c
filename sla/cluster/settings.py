"""What a master and a worker of Spark are started with. No I/O: values in, command lines and environments out.

Rule 1: a daemon listens on one address that was named, loopback unless somebody says another; never on all of them.
Rule 2: its web page stays on loopback wherever the daemon itself listens: Spark asks nobody there for a password.
Rule 3: a port that was asked for is used or it is an error: Spark would silently take the next one.
Rule 4: the secret is named by its file only.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sla.errors import UsageError

LOOPBACK: Final = "127.0.0.1"
MASTER_PORT: Final = 7077
MASTER_CLASS: Final = "org.apache.spark.deploy.master.Master"
WORKER_CLASS: Final = "org.apache.spark.deploy.worker.Worker"
CORES_MAX: Final = 1024
MEMORY_MIB_MIN: Final = 512
DAEMON_MEMORY: Final = "512m"
OLD_APPLICATION_S: Final = 86_400
_HOST: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
_MASTER: Final = re.compile(r"spark://([^:/,\s]+):([0-9]{1,5})")
_MEMORY: Final = re.compile(r"([1-9][0-9]{0,6})([mg])", re.IGNORECASE)
_DAEMON_OPTIONS: Final = {
    "spark.port.maxRetries": "0",
    "spark.master.ui.decommission.allow.mode": "DENY",
    "spark.ui.killEnabled": "false",
    "spark.worker.cleanup.enabled": "true",
    "spark.worker.cleanup.appDataTtl": str(OLD_APPLICATION_S),
}
# Of the caller's environment these would change what a daemon does behind its arguments' back.
_NOT_INHERITED: Final = re.compile(
    r"SPARK_(MASTER|WORKER|DAEMON|PUBLIC|LOCAL_IP|LOCAL_HOSTNAME|AUTH)|_SPARK_AUTH|PYSPARK_(SUBMIT|GATEWAY)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterSettings:
    """One master.

    Args:
        host: address to listen on, IPv4 or a name of this machine.
        port: of jobs and workers. web_port: of its page and of `status`, on loopback.
        secret: settings file (sla.cluster.secret).
    """

    host: str
    port: int
    web_port: int
    secret: Path

    @property
    def url(self) -> str:
        """Return what workers and jobs are given."""
        return f"spark://{self.host}:{self.port}"

    def command(self, spark_home: Path) -> list[str]:
        """Return the command line."""
        return [
            *_spark_class(spark_home, MASTER_CLASS),
            *("--host", self.host, "--port", str(self.port), "--webui-port", str(self.web_port)),
            *("--properties-file", str(self.secret)),
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """One worker.

    Args:
        master: URL such as `spark://10.1.0.5:7077`.
        host: address to listen on; other workers fetch from it.
        port, web_port: 0 is for the kernel to choose.
        cores: executors' threads. memory_mib: of executors, all jobs together.
        work: directory of the executors' logs and files.
        secret: see MasterSettings.
    """

    master: str
    host: str
    port: int
    web_port: int
    cores: int
    memory_mib: int
    work: Path
    secret: Path

    def command(self, spark_home: Path) -> list[str]:
        """Return the command line."""
        return [
            *_spark_class(spark_home, WORKER_CLASS),
            *("--host", self.host, "--port", str(self.port), "--webui-port", str(self.web_port)),
            *("--cores", str(self.cores), "--memory", f"{self.memory_mib}m", "--work-dir", str(self.work)),
            *("--properties-file", str(self.secret), self.master),
        ]


def _spark_class(spark_home: Path, class_name: str) -> tuple[str, str]:
    return str(spark_home / "bin" / "spark-class"), class_name


def environment(base: Mapping[str, str], spark_home: Path) -> dict[str, str]:
    """Return the environment of a daemon.

    Args:
        base: of the caller. spark_home: directory of Spark's `bin` and `jars`.
    """
    kept = {key: value for key, value in base.items() if _NOT_INHERITED.match(key) is None}
    return kept | {
        "SPARK_HOME": str(spark_home),
        "SPARK_LOCAL_IP": LOOPBACK,
        "SPARK_DAEMON_MEMORY": DAEMON_MEMORY,
        "SPARK_DAEMON_JAVA_OPTS": " ".join(f"-D{key}={value}" for key, value in _DAEMON_OPTIONS.items()),
    }


def check_host(host: str) -> str:
    """Return the host.

    Raises:
        UsageError: it stands for every address of the machine, or is none that Spark takes.
    """
    if not _HOST.fullmatch(host):
        raise UsageError(f"--host {host!r} is no IPv4 address and no name of a machine")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return _named(host)
    if address.is_unspecified or address.is_multicast:
        raise UsageError(f"--host {host} is not one address: name that of the interface that jobs come in by")
    return host


def _named(host: str) -> str:
    """Return a name; short forms such as `0` are addresses to the system, that of every interface among them."""
    try:
        socket.inet_aton(host)
    except OSError:
        return host
    raise UsageError(f"--host {host} is a short form of an address: write its four numbers")


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def parse_master(url: str) -> tuple[str, int]:
    """Return host and port of a master.

    Raises:
        UsageError: it is no `spark://HOST:PORT`.
    """
    match = _MASTER.fullmatch(url)
    if match is None or not 0 < int(match[2]) < 65_536:
        raise UsageError(f"{url!r} is no master: write spark://HOST:PORT")
    return check_host(match[1]), int(match[2])


def parse_memory_mib(text: str) -> int:
    """Return MiB of a size such as 1024m or 4g.

    Raises:
        UsageError: it is none, or less than an executor needs.
    """
    match = _MEMORY.fullmatch(text)
    memory_mib = 0 if match is None else int(match[1]) * (1024 if match[2].lower() == "g" else 1)
    if memory_mib < MEMORY_MIB_MIN:
        raise UsageError(f"{text!r} is no memory size of at least {MEMORY_MIB_MIN}m, such as 1024m or 4g")
    return memory_mib


def check_cores(cores: int) -> int:
    """Return the number.

    Raises:
        UsageError: it is outside 1..CORES_MAX.
    """
    if not 1 <= cores <= CORES_MAX:
        raise UsageError(f"--cores must be 1 to {CORES_MAX}, not {cores}")
    return cores
