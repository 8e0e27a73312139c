"""Hosts of the lab: each a systemd of its own in a container, with a network namespace, an address and a data disk.

Rule 1: all of it is in namespaces of one process (`unshare --mount --net --pid --kill-child`): when that ends, by
        whatever, the kernel takes hosts, networks and mounts away.
Rule 2: a host keeps its root and its data disk over stop, kill and boot; `replace_disk` is the one way to lose it.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from deploy.lab.layout import HostPlan
from deploy.lab.needs import LabError, run
from deploy.lab.network import device

BOOT_S: Final = 180  # of a machine that is busy; a quiet one needs 10
STOP_S: Final = 90
DISK_BYTES: Final = 4 * 1024**3  # of a sparse file
_HALT: Final = signal.SIGRTMIN + 4  # systemd(1): start halt.target
NAMESERVER_OF_NOBODY: Final = "# a host of the lab reaches nobody but the lab\n"


class Host:
    """A host that may be up or down.

    Args:
        base: root file system below its own changes.
        folder: its own, on a real file system.
        index: number in the lab, from 1; names of devices are made of it.
    """

    def __init__(self, plan: HostPlan, *, base: Path, folder: Path, index: int, public_key: str) -> None:
        self.plan = plan
        self._folder = folder
        self._index = index
        self._root = folder / "root"
        self._device = ""
        self._supervisor: subprocess.Popen[bytes] | None = None
        upper = folder / "upper"
        for path in (upper, folder / "work", self._root):
            path.mkdir(parents=True)
        options = f"lowerdir={base},upperdir={upper},workdir={folder / 'work'}"
        run(["mount", "-t", "overlay", "overlay", "-o", options, str(self._root)], f"{plan.name}: no root")
        self._write_identity(public_key)
        self._connect()
        if plan.has_disk:
            self._new_disk()

    def _write_identity(self, public_key: str) -> None:
        name, etc = self.plan.name, self._root / "etc"
        (etc / "hostname").write_text(f"{name}\n")
        (etc / "hosts").write_text(f"127.0.0.1 localhost\n127.0.1.1 {name}\n{self.plan.router} lab\n")
        (etc / "resolv.conf").unlink(missing_ok=True)
        (etc / "resolv.conf").write_text(NAMESERVER_OF_NOBODY)
        (etc / "machine-id").write_text("")
        keys = self._root / "home/admin/.ssh"
        keys.mkdir(mode=0o700)
        (keys / "authorized_keys").write_text(public_key)
        owner = (self._root / "home/admin").stat()
        for path in (keys, keys / "authorized_keys"):
            os.chown(path, owner.st_uid, owner.st_gid)

    def _connect(self) -> None:
        space, inside, what = f"lab-{self._index}", f"lab-{self._index}", f"{self.plan.name}: no network"
        run(["ip", "netns", "add", space], what)
        run(["ip", "link", "add", inside, "type", "veth", "peer", "name", "host0", "netns", space], what)
        run(["ip", "link", "set", inside, "master", device("br", self.plan.region), "up"], what)
        address = f"{self.plan.address}/{self.plan.network.prefixlen}"
        for words in (
            ["addr", "add", address, "dev", "host0"],
            ["link", "set", "lo", "up"],
            ["link", "set", "host0", "up"],
            ["route", "add", "default", "via", self.plan.router],
        ):
            run(["ip", "-n", space, *words], what)

    def _new_disk(self) -> None:
        file = self._folder / "disk"
        file.unlink(missing_ok=True)
        with file.open("wb") as opened:
            opened.truncate(DISK_BYTES)
        found = run(["losetup", "--find", "--show", str(file)], f"{self.plan.name}: no loop device for its disk")
        self._device = found.strip()

    def boot(self) -> None:
        """Start it; returns at once."""
        disk = [f"--bind={self._device}:{self.plan.device}"] if self._device else []
        log = (self._folder / "console.log").open("ab")
        self._supervisor = subprocess.Popen(
            [
                *("systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--boot", "-M", f"lab-{self._index}"),
                *("-D", str(self._root), f"--network-namespace-path=/run/netns/lab-{self._index}"),
                *("--console=pipe", *disk),
            ],
            env={**os.environ, "SYSTEMD_NSPAWN_API_VFS_WRITABLE": "network"},  # sysctl of its own network
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        log.close()

    def wait_booted(self, *, without: str = "") -> None:
        """Wait until systemd says that it is up; the unit `without` may fail, as a mount of an empty disk does.

        A broker that is alone in its region starts until the others are up, so its own start is not waited for.

        Raises:
            LabError: with the units that failed, or after BOOT_S.
        """
        deadline = time.monotonic() + BOOT_S
        state = "no SSH"
        while time.monotonic() < deadline:
            if not self._answers_ssh():  # nobody enters its namespaces before they are whole
                time.sleep(0.2)
                continue
            state = self.inside(["systemctl", "is-system-running"]).stdout.strip()
            if state == "running":
                return
            if state == "degraded" or (state == "starting" and self._starts_brokers_alone()):
                failed = self.inside(["systemctl", "--failed", "--no-legend", "--plain"]).stdout.strip()
                if all(without and line.startswith(without) for line in failed.splitlines()):
                    return
                raise LabError(f"{self.plan.name}: {failed}")
            time.sleep(0.2)
        raise LabError(f"{self.plan.name} is not up after {BOOT_S} s ({state}); see {self._folder / 'console.log'}")

    def _starts_brokers_alone(self) -> bool:
        return starts_brokers_alone(self.inside(["systemctl", "list-jobs", "--no-legend", "--plain"]).stdout)

    def _answers_ssh(self) -> bool:
        try:
            with socket.create_connection((self.plan.address, 22), timeout=1) as connection:
                return connection.recv(4) == b"SSH-"
        except OSError:
            return False

    def inside(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run a command as root on the host, as its console would."""
        leader = self._leader()
        if leader == 0:
            return subprocess.CompletedProcess(list(command), 1, "", "the host is down")
        words = ["nsenter", "--target", str(leader), "--all", *command]
        return subprocess.run(words, check=False, capture_output=True, text=True)

    def stop(self) -> None:
        """Shut it down in order. Raises LabError when it does not go down."""
        self._end(_HALT)

    def kill(self) -> None:
        """Take its power away: every process is gone at once."""
        self._end(signal.SIGKILL)

    def _end(self, number: int) -> None:
        supervisor, leader = self._supervisor, self._leader()
        if supervisor is None or leader == 0:
            return
        os.kill(leader, number)
        try:
            supervisor.wait(STOP_S)
        except subprocess.TimeoutExpired:
            raise LabError(f"{self.plan.name} is not down after {STOP_S} s") from None
        self._supervisor = None

    def cut_off(self, *, cut: bool) -> None:
        """Take its network away, or give it back."""
        run(["ip", "link", "set", f"lab-{self._index}", "down" if cut else "up"], f"{self.plan.name}: no network")

    def replace_disk(self) -> None:
        """Give a host that is down an empty data disk."""
        if self._device:
            run(["losetup", "--detach", self._device], f"{self.plan.name}: its disk is in use")
        self._new_disk()

    def remove(self) -> None:
        """Take its power and its disk away for good."""
        self.kill()
        if self._device:
            run(["losetup", "--detach", self._device], f"{self.plan.name}: its disk is in use")
            self._device = ""
        run(["umount", str(self._root)], f"{self.plan.name}: its root is in use")
        shutil.rmtree(self._folder)

    def _leader(self) -> int:
        """Return the process id of its systemd, as seen here; 0: it is down."""
        if self._supervisor is None or self._supervisor.poll() is not None:
            return 0
        pid = self._supervisor.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return int(children[0]) if children else 0


def starts_brokers_alone(jobs: str) -> bool:
    """Return whether nothing but processes of georelay still starts, as `systemctl list-jobs --no-legend` says it."""
    units = [words[1] for words in map(str.split, jobs.splitlines()) if words[-1:] == ["running"]]
    return bool(units) and all(unit.startswith("georelay-") for unit in units)


def release_disks(folder: Path) -> None:
    """Give back the loop devices of files below `folder`, which no namespace takes along. Raises LabError."""
    for line in run(["losetup", "--all"], "losetup failed").splitlines():
        if f"({folder}/" in line:
            run(["losetup", "--detach", line.partition(":")[0]], "a loop device is in use")
