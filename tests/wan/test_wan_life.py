"""A test bed ends with whoever wanted it, and leaves nothing: by stop, by kill -9, with strangers inside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mesh.testbed.bed_process import BedOptions, open_bed
from mesh.testbed.plan_core import parse_wan
from mesh.testbed.run_directory import BedRecord, RunDirectory

CLI = (sys.executable, "-P", "-m", "georelay.cli")
SECONDS_MAX = 10.0
OWNER = """
import sys, time
from pathlib import Path
from mesh.testbed.bed_process import BedOptions, open_bed
from mesh.testbed.plan_core import parse_wan
from mesh.testbed.run_directory import BedRecord, RunDirectory
with open_bed(BedOptions(spec=parse_wan("us-eu=20ms"), name="killed"), RunDirectory(Path(sys.argv[1]))) as bed:
    print("ready", flush=True)
    time.sleep(600)
"""


def namespaces_of(record: BedRecord) -> set[str]:
    """Return the network namespaces of a bed, as links of /proc name them."""
    return {os.readlink(f"/proc/{record.pid}/fd/{number}") for number in record.networks.values()}


def in_use(namespaces: set[str]) -> set[str]:
    """Return those of the namespaces in which processes of this machine are."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found.add(os.readlink(entry / "ns" / "net"))
            except OSError:
                continue  # it ended, or is another user's
    return found & namespaces


def has_device(record: BedRecord) -> bool:
    return record.plan.host_device in os.listdir("/sys/class/net")


def until(what: Callable[[], bool]) -> float:
    """Wait until `what` is true and return how long that took."""
    began = time.monotonic()
    while not what():
        assert time.monotonic() - began < SECONDS_MAX, "waited in vain"
        time.sleep(0.02)
    return time.monotonic() - began


def test_a_killed_owner_leaves_no_process_namespace_or_device(tmp_path: Path) -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    assert owner.stdout.readline() == "ready\n"
    directory = RunDirectory(tmp_path)
    record = directory.find("killed")
    own = namespaces_of(record)
    inside = subprocess.Popen([*record.enter_argv("us", contained=True), "sleep", "600"])
    until(lambda: len(in_use(own)) == 2)  # hub, and us; nobody is in eu
    assert has_device(record) == record.host_link
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    owner.stdout.close()
    took_s = until(lambda: not in_use(own) and not has_device(record) and inside.poll() is not None)
    print(f"gone {took_s:.2f} s after kill -9")
    assert directory.running() == []
    assert directory.collect()
    assert directory.collect() == []
    assert list(tmp_path.glob("*.lock")) == list(tmp_path.glob("*.sock")) == []


def test_a_killed_router_ends_what_runs_inside(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    with open_bed(BedOptions(spec=parse_wan("us-eu=20ms"), name="killed"), directory) as bed:
        own = namespaces_of(bed.record)
        inside = subprocess.Popen([*bed.record.enter_argv("us", contained=True), "sleep", "600"])
        os.kill(bed.record.pid, signal.SIGKILL)
        bed.wait()
        assert inside.wait(SECONDS_MAX) != 0
        assert not bed.is_running
    until(lambda: not in_use(own))


def test_two_beds_run_side_by_side(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    with (
        open_bed(BedOptions(spec=parse_wan("us-eu=20ms"), name="one"), directory) as one,
        open_bed(BedOptions(spec=parse_wan("us-eu=20ms"), name="two"), directory) as two,
    ):
        assert one.plan.region("us").wan(1) != two.plan.region("us").wan(1)
        assert [record.plan.name for record in directory.running()] == ["one", "two"]


@pytest.mark.skipif(os.geteuid() != 0, reason="the host's end needs root; others enter the hub")
def test_the_host_reaches_a_region_over_the_management_network(tmp_path: Path) -> None:
    with open_bed(BedOptions(spec=parse_wan("us-eu=500ms"), name="host"), RunDirectory(tmp_path)) as bed:
        assert bed.record.host_link
        probe = Path(__file__).parent / "probe.py"
        words = [*bed.record.enter_argv("eu", contained=True), sys.executable, str(probe)]
        address = bed.plan.region("eu").wan(1)
        receiver = subprocess.Popen([*words, "tcp-receive", address, "1"], stdout=subprocess.PIPE, text=True)
        assert receiver.stdout is not None
        receiver.stdout.readline()
        connect = [sys.executable, str(probe), "tcp-connect", "0.0.0.0", address]
        connected = json.loads(subprocess.check_output(connect, text=True))
        receiver.communicate(timeout=10)
    assert connected["connect_ms"] < 100


def test_the_commands_work_together(tmp_path: Path) -> None:
    environment = os.environ | {"XDG_RUNTIME_DIR": str(tmp_path)}

    def georelay(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*CLI, "wan", *words], text=True, capture_output=True, env=environment, timeout=30)

    name = ("--name", "commands")
    up = georelay("up", "us-eu=70ms", *name, "--detach")
    assert up.returncode == 0, up.stderr
    try:
        assert "test bed commands is ready" in up.stdout
        assert georelay("cut", "us", "eu", "--one-way", *name).returncode == 0
        rows = json.loads(georelay("stat", "--json", *name).stdout)["paths"]
        assert {(row["from"], row["to"]): row["cut"] for row in rows} == {("us", "eu"): True, ("eu", "us"): False}
        assert georelay("heal", *name).returncode == 0
        assert georelay("slow", "us", "eu", "--rtt", "200ms", "--loss", "1%", "--rate", "50mbit", *name).returncode == 0
        assert "100 ms" in georelay("stat", *name).stdout
        inside = georelay("exec", "us", *name, "--", "cat", "/proc/sys/net/ipv4/tcp_slow_start_after_idle")
        assert inside.stdout == "0\n", inside
        refused = georelay("cut", "us", "mars", *name)
        assert refused.returncode == 1
        assert refused.stderr.strip() == "georelay: there is no region 'mars' in this test bed (us, eu)"
    finally:
        down = georelay("down", *name)
    assert down.returncode == 0, down.stderr
    gone = georelay("stat", *name)
    assert gone.returncode == 1
    assert "georelay wan up" in gone.stderr
    assert georelay("gc").stdout == ""
