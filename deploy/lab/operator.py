"""Who runs the plays of deploy/ansible on the hosts of the lab, as at any terminal, and the clients beside it.

Rule: nothing is done to brokers but by plays; the lab itself only takes power and disks away.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from deploy.lab.hosts import Host
from deploy.lab.needs import ROOT, LabError, ansible

PLAYS: Final = ROOT / "deploy" / "ansible"
CHANGED: Final = re.compile(r"^(\S+) +: ok=\d+ +changed=(\d+)", re.MULTILINE)
LOOK_S: Final = 0.4
BROKER_ADMIN: Final = 9096
GATEWAY_HTTP: Final = 8080
GATEWAY_KAFKA: Final = 19092
PASSWORD: Final = "lab-clients-of-kafka"  # noqa: S105 - of a user that ends with the lab


class Operator:
    """Inventory, plays, verbs and clients.

    Args:
        scratch: folder with the SSH key `key` and `known_hosts`; the inventory and the mesh's own folder come there.
        hosts: by name, up.
        release: the archive that the first site.yml installs.
    """

    def __init__(self, scratch: Path, hosts: dict[str, Host], *, release: Path) -> None:
        self.hosts = hosts
        self.release = release
        self.releases: dict[str, Path] = {}
        self.scratch = scratch
        self.members = [name for name in hosts if name not in ("broker-4.us", "broker-5.us")]
        self._georelay = Path(sys.executable).with_name("georelay")
        self._load: subprocess.Popen[str] | None = None
        self._runs = 0

    @property
    def brokers(self) -> list[str]:
        """Return the names of the brokers that the inventory has now."""
        return [name for name in self.members if self.hosts[name].plan.has_disk]

    def play(self, name: str, **variables: str) -> str:
        """Run a play and return what it printed. Raises LabError with its last message when it fails."""
        self._write_inventory()
        self._runs += 1
        log = self.scratch / f"{self._runs:02d}-{name}.log"
        words = [str(ansible() / "ansible-playbook"), "-i", str(self.scratch / "inventory"), f"{name}.yml"]
        for key, value in variables.items():
            words += ["-e", f"{key}={value}"]
        environment = {**os.environ, "ANSIBLE_CONFIG": str(PLAYS / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"}
        with log.open("w") as file:
            done = subprocess.run(
                words, check=False, cwd=PLAYS, env=environment, stdout=file, stderr=subprocess.STDOUT, text=True
            )
        said = log.read_text()
        if done.returncode != 0:
            raise LabError(f"{name}.yml: {last_message(said)}")
        return said

    def _write_inventory(self) -> None:
        folder = self.scratch / "inventory"
        (folder / "group_vars").mkdir(parents=True, exist_ok=True)
        groups: dict[str, dict[str, Any]] = {"brokers": {"hosts": {}}, "gateways": {"hosts": {}}}
        for name in self.members:
            group = "brokers" if self.hosts[name].plan.has_disk else "gateways"
            groups[group]["hosts"][name] = {"ansible_host": self.hosts[name].plan.address}
        mesh = {"mesh": {"hosts": {"localhost": {"ansible_connection": "local"}}, "children": groups}}
        settings = {
            "ansible_user": "admin",
            "ansible_ssh_private_key_file": str(self.scratch / "key"),
            "ansible_ssh_common_args": f"-o UserKnownHostsFile={self.scratch / 'known_hosts'}",
            "georelay_mesh_id": "shop",
            "georelay_home": "us",
            "georelay_mesh_dir": str(self.scratch / "mesh"),
            "georelay_cli": str(self._georelay),
            "georelay_release": str(self.release),
            "base_clock_service": "",  # a container may not set the clock
        }
        (folder / "hosts.yml").write_text(json.dumps(mesh))
        (folder / "group_vars/mesh.yml").write_text(json.dumps(settings))
        (folder / "group_vars/brokers.yml").write_text("georelay_data_device: /dev/data\n")

    def gateway(self, port: int) -> str:
        """Return "host:port" of the first gateway."""
        return f"{self.hosts['gateway-1.us'].plan.address}:{port}"

    def verb(self, *words: str, given: str = "") -> str:
        """Run a verb of the product as the administrator. Raises LabError with its one line when it fails."""
        mesh = self.scratch / "mesh"
        user = self.scratch / "admin"
        user.touch(mode=0o600)
        user.write_text(f"admin:{(mesh / 'admin.password').read_text().strip()}\n")
        where = ["--gateway", f"https://{self.gateway(GATEWAY_HTTP)}", "--ca", str(mesh / "pki/bundle.crt")]
        command = [str(self._georelay), *words, *where, "--user", f"@{user}"]
        done = subprocess.run(command, check=False, input=given, capture_output=True, text=True)
        if done.returncode != 0:
            raise LabError(f"georelay {' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    def start_load(self, rate: int) -> None:
        """Make a user that may use the topic orders, and start one producer and one consumer through the gateway."""
        self.verb("users", "add", "load", given=f"{PASSWORD}\n")
        everything = [word for right in ("read", "write", "create", "describe") for word in ("--operation", right)]
        self.verb("acls", "add", "--principal", "User:load", *everything, "--resource", "topic", "--name", "orders")
        self.verb(
            "acls", "add", "--principal", "User:load", "--operation", "read", "--resource", "group", "--name", "lab"
        )
        settings = {
            "bootstrap.servers": self.gateway(GATEWAY_KAFKA),
            "security.protocol": "sasl_ssl",
            "ssl.ca.location": str(self.scratch / "mesh/pki/bundle.crt"),
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": "load",
            "sasl.password": PASSWORD,
        }
        (self.scratch / "clients.json").write_text(json.dumps(settings))
        words = [sys.executable, "-m", "deploy.lab.load", "--settings", str(self.scratch / "clients.json")]
        words += ["--rate", str(rate), "--times", str(self.scratch / "times")]
        errors = (self.scratch / "load.log").open("w")
        self._load = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=ROOT
        )
        errors.close()
        if self._load.stdout is None or self._load.stdout.readline() != "sending\n":
            raise LabError(f"the clients did not start; see {self.scratch / 'load.log'}")

    def end_load(self) -> tuple[array[float], dict[str, Any]]:
        """Return when records were acknowledged, and the clients' verdict. Raises LabError when they say none."""
        if self._load is None:
            return array("d"), {}
        said, _ = self._load.communicate("end\n")
        times = array("d")
        times.frombytes((self.scratch / "times").read_bytes())
        try:
            return times, json.loads(said.splitlines()[-1])
        except (ValueError, IndexError):
            raise LabError(f"the clients said no verdict; see {self.scratch / 'load.log'}") from None

    @contextmanager
    def watching(self) -> Iterator[list[int]]:
        """Note how many brokers were ready, as often as looked, while a step goes on."""
        seen: list[int] = []
        ended = threading.Event()

        def look() -> None:
            addresses = [self.hosts[name].plan.address for name in self.brokers]
            while not ended.wait(LOOK_S):
                seen.append(sum(map(_listens, addresses)))

        watcher = threading.Thread(target=look)
        watcher.start()
        try:
            yield seen
        finally:
            ended.set()
            watcher.join()

    def wait_ssh(self, name: str) -> None:
        """Wait until a host that was booted is up. Raises LabError."""
        self.hosts[name].wait_booted()
        time.sleep(0.5)


def _listens(address: str) -> bool:
    command = [
        "curl",
        "--silent",
        "--insecure",
        "--max-time",
        "1",
        "--output",
        "/dev/null",
        "--write-out",
        "%{http_code}",
    ]
    done = subprocess.run(
        [*command, f"https://{address}:{BROKER_ADMIN}/readyz"], check=False, capture_output=True, text=True
    )
    return done.stdout == "200"


def changes(said: str) -> int:
    """Return how many tasks changed anything, as the recap of a play says."""
    return sum(int(count) for _, count in CHANGED.findall(said))


def last_message(said: str) -> str:
    """Return why a play failed, in its own words."""
    found = re.findall(r"^ +msg: (.+(?:\n {8,}.+)*)", said, re.MULTILINE)
    return " ".join(found[-1].split()) if found else (said.strip().splitlines() or ["it said nothing"])[-1]
