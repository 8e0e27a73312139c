"""Who runs the plays of deploy/ansible on the hosts of the lab, as at any terminal, and the clients beside it.

Rule: nothing is done to brokers but by plays; the lab itself only takes power and disks away.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from array import array
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from deploy.lab.hosts import Host
from deploy.lab.layout import HOME, outputs_of
from deploy.lab.load import PARTITIONS
from deploy.lab.needs import ROOT, LabError, ansible

PLAYS: Final = ROOT / "deploy" / "ansible"
CHANGED: Final = re.compile(r"^(\S+) +: ok=\d+ +changed=(\d+)", re.MULTILINE)
TRACES_TO: Final = "/srv/traces"  # of each host: the lab has no bucket
LOOK_S: Final = 0.4
ACKNOWLEDGED_BYTES: Final = 8 * 50
BROKER_ADMIN: Final = 9096
GATEWAY_HTTP: Final = 8080
GATEWAY_KAFKA: Final = 19092
PASSWORD: Final = "lab-clients-of-kafka"  # noqa: S105 - of a user that ends with the lab


class Operator:
    """Inventory, plays, verbs and clients.

    Args:
        scratch: folder with the SSH key `key` and `known_hosts`; the inventory and the mesh's own folder come there.
        hosts: by name, up.
        members: names of those that stand in the inventory at first.
        release: the archive that the first site.yml installs.
    """

    def __init__(self, scratch: Path, hosts: dict[str, Host], *, members: Iterable[str], release: Path) -> None:
        self.hosts = hosts
        self.release = release
        self.releases: dict[str, Path] = {}
        self.scratch = scratch
        self.members = list(members)
        self.asker = f"gateway-1.{HOME}"
        self._georelay = Path(sys.executable).with_name("georelay")
        self._load: subprocess.Popen[str] | None = None
        self._runs = 0
        self._outputs = scratch / "outputs.json"

    @property
    def brokers(self) -> list[str]:
        """Return the names of the brokers that the inventory has now."""
        return [name for name in self.members if self.hosts[name].plan.has_disk]

    def of_region(self, region: str) -> list[Host]:
        """Return the hosts of one region that the inventory has now."""
        return [self.hosts[name] for name in self.members if self.hosts[name].plan.region == region]

    def join(self, names: Iterable[str]) -> None:
        """Boot hosts that were not there, and put them into the inventory. Raises LabError."""
        for name in names:
            self.hosts[name].boot()
            self.hosts[name].wait_booted()
            self.members.append(name)

    def play(self, name: str, *, interrupt_at: str = "", **variables: str) -> str:
        """Run a play and return what it printed; Ctrl-C comes when it prints `interrupt_at`.

        Raises:
            LabError: with its last message, when it fails; or it ended before it could be interrupted.
        """
        self._write_inventory()
        self._runs += 1
        log = self.scratch / f"{self._runs:02d}-{name}.log"
        words = [str(ansible() / "ansible-playbook"), "-i", "inventory/terraform.py"]
        words += ["-i", str(self.scratch / "inventory"), f"{name}.yml"]
        words += ["-e", f"georelay_asker={self.asker}"] if self.asker != f"gateway-1.{HOME}" else []
        words += ["-e", json.dumps(variables)]
        environment = {
            **os.environ,
            "ANSIBLE_CONFIG": str(PLAYS / "ansible.cfg"),
            "ANSIBLE_NOCOLOR": "1",
            "GEORELAY_TF_OUTPUT": str(self._outputs),
        }
        with log.open("w") as file:
            running = subprocess.Popen(
                words,
                cwd=PLAYS,
                env=environment,
                stdout=file,
                stdin=subprocess.DEVNULL,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        if interrupt_at:
            _interrupt(running, log, interrupt_at)
            return log.read_text()
        said = log.read_text() if running.wait() == 0 else ""
        if running.returncode != 0:
            raise LabError(f"{name}.yml: {last_message(log.read_text())}")
        return said

    def _write_inventory(self) -> None:
        folder = self.scratch / "inventory"
        (folder / "group_vars").mkdir(parents=True, exist_ok=True)
        settings = {
            "ansible_ssh_private_key_file": str(self.scratch / "key"),
            "ansible_ssh_common_args": f"-o UserKnownHostsFile={self.scratch / 'known_hosts'}",
            "georelay_home": HOME,
            "georelay_mesh_dir": str(self.scratch / "mesh"),
            "georelay_cli": str(self._georelay),
            "georelay_release": str(self.release),
            "georelay_traces_to": TRACES_TO,
            "base_clock_service": "",  # a container may not set the clock
        }
        # Hosts are in Terraform's outputs; what the lab adds for them are the variables beside this one.
        (folder / "lab.yml").write_text("mesh:\n")
        (folder / "group_vars/mesh.yml").write_text(json.dumps(settings))
        self._outputs.write_text(json.dumps(outputs_of(self.members)))

    def gateway(self, port: int) -> str:
        """Return "host:port" of the gateway that is asked."""
        return f"{self.hosts[self.asker].plan.address}:{port}"

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

    def make_topic(self, *, regions: int) -> None:
        """Make the topic orders, at home in the region that is lost later, and a user that may use it.

        Args:
            regions: that have a record before it is acknowledged.
        """
        where = ["--partitions", str(PARTITIONS), "--home", HOME, "--set", f"min.insync.regions={regions}"]
        self.verb("topics", "create", "orders", *where)
        self.verb("users", "add", "load", given=f"{PASSWORD}\n")
        everything = [word for right in ("read", "write", "describe") for word in ("--operation", right)]
        self.verb("acls", "add", "--principal", "User:load", *everything, "--resource", "topic", "--name", "orders")
        self.verb(
            "acls", "add", "--principal", "User:load", "--operation", "read", "--resource", "group", "--name", "lab"
        )

    def start_load(self, rate: int) -> None:
        """Start one producer and one consumer of the topic orders through the gateways."""
        gateways = [plan for name in self.members if not (plan := self.hosts[name].plan).has_disk]
        self.make_topic(regions=min(2, len({plan.region for plan in gateways})))
        settings = {
            "bootstrap.servers": ",".join(f"{plan.address}:{GATEWAY_KAFKA}" for plan in gateways),
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

    def await_records(self, wait_s: float) -> None:
        """Wait until records that are sent from now on are acknowledged. Raises LabError."""
        file, deadline = self.scratch / "times", time.monotonic() + wait_s
        known = file.stat().st_size
        while file.stat().st_size <= known + ACKNOWLEDGED_BYTES:
            if time.monotonic() > deadline:
                raise LabError(f"no record is acknowledged {wait_s:g} s later")
            time.sleep(LOOK_S)

    def await_verb(self, *words: str, wait_s: float) -> str:
        """Run a verb until it does not fail. Raises LabError with its last line."""
        deadline = time.monotonic() + wait_s
        while True:
            try:
                return self.verb(*words)
            except LabError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(1)


def _interrupt(running: subprocess.Popen[bytes], log: Path, text: str) -> None:
    while text not in log.read_text():
        if running.poll() is not None:
            raise LabError(f"the play ended before {text!r}: {last_message(log.read_text())}")
        time.sleep(LOOK_S)
    time.sleep(1)
    os.killpg(running.pid, signal.SIGINT)
    running.wait()


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
    """Return which host failed a play and why, in its own words."""
    found = re.findall(
        r"^fatal: \[([^\] ]+)[^\n]*\n(?: +[^\n]*\n)*? +msg: (?:[|>][-+]?\n)?( *[^\n]+(?:\n {8,}[^\n]+)*)",
        said,
        re.MULTILINE,
    )
    if not found:
        return (said.strip().splitlines() or ["it said nothing"])[-1]
    host, text = found[-1]
    text = " ".join(text.split())
    if text[:1] == text[-1:] == "'":  # as YAML quotes what has a colon
        text = text[1:-1].replace("''", "'")
    return text if host in text or host == "localhost" else f"{host}: {text}"
