"""A test bed for the whole session, and probes that run inside its regions.

These tests need network namespaces and /dev/net/tun. `make wan` runs them; where they cannot run it says what is
missing and fails. Other runs of pytest do not collect them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mesh.testbed.bed_client import BedClient
from mesh.testbed.bed_process import BedOptions, BedProcess, missing_here, open_bed
from mesh.testbed.plan_core import parse_wan
from mesh.testbed.run_directory import RunDirectory

PAIRS = "us-eu=70ms,us-ap=150ms,eu-ap=120ms"
PROBE = Path(__file__).parent / "probe.py"
collect_ignore_glob = [] if os.environ.get("GEORELAY_WAN") else ["test_*.py"]


class Bed:
    """A running bed and what tests do with it."""

    def __init__(self, process: BedProcess, directory: RunDirectory) -> None:
        self.process = process
        self.directory = directory
        self.client = BedClient(process.plan.name, directory)

    def address(self, region: str) -> str:
        return self.process.plan.region(region).wan(1)

    def start(self, region: str, *arguments: object) -> subprocess.Popen[str]:
        """Start the probe in a region; a receiver is ready when this returns."""
        words = [*self.process.record.enter_argv(region, contained=True), sys.executable, str(PROBE)]
        probe = subprocess.Popen([*words, *map(str, arguments)], stdout=subprocess.PIPE, text=True)
        if "receive" in str(arguments[0]):
            assert probe.stdout is not None
            assert json.loads(probe.stdout.readline()) == {"ready": True}
        return probe

    def answer(self, probe: subprocess.Popen[str]) -> dict[str, Any]:
        output, _ = probe.communicate(timeout=120)
        assert probe.returncode == 0, output
        document: dict[str, Any] = json.loads(output)
        return document

    def udp(self, source: str, destination: str, *, count: int, per_second: int) -> list[tuple[int, float]]:
        """Send packets and return (number, delay in us) of those that arrived, in order of arrival."""
        receiver = self.start(destination, "udp-receive", self.address(destination), count / per_second + 1)
        self.answer(self.start(source, "udp-send", self.address(source), self.address(destination), count, per_second))
        return [(number, delay) for number, delay in self.answer(receiver)["rows"]]

    def worst_lag_us(self, since_s: int) -> int:
        """Return the worst lag of the router from a second of the monotonic clock on."""
        router: Any = self.client.stat()["router"]
        return max(int(lag) for second, lag in router["lag_seconds_us"] if second >= since_s)


@pytest.fixture(scope="session")
def beds(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    missing = missing_here()
    if missing:
        pytest.exit(f"make wan: this machine cannot run a test bed: {'; '.join(missing)}", returncode=1)
    return RunDirectory(tmp_path_factory.mktemp("beds"))


@pytest.fixture(scope="session")
def running(beds: RunDirectory) -> Iterator[Bed]:
    with open_bed(BedOptions(spec=parse_wan(PAIRS), name="tests"), beds) as process:
        yield Bed(process, beds)


@pytest.fixture
def bed(running: Bed) -> Iterator[Bed]:
    """The bed as it was started."""
    yield running
    running.client.heal()


@pytest.fixture
def quantile() -> Callable[[list[float], float], float]:
    return lambda values, share: sorted(values)[min(len(values) - 1, int(share * len(values)))]
