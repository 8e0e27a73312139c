"""Which beds run: locks tell, and nothing else is believed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from georelay.errors import ConfigError, Unavailable
from mesh.testbed.plan_core import BedPlan, parse_wan
from mesh.testbed.run_directory import TOKEN_VARIABLE, BedRecord, RunDirectory


def record(name: str, token: str = "t") -> BedRecord:
    plan = BedPlan(name=name, slot=0, spec=parse_wan("us-eu=70ms"), token=token)
    networks = {"hub": 4, "us": 9, "eu": 11}
    return BedRecord(plan=plan, pid=4_000_000, networks=networks, rootless=False, realtime=False, host_link=False)


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path / "beds")


def test_a_bed_is_found_while_it_is_held_and_not_after(directory: RunDirectory) -> None:
    with directory.claim("one") as claim:
        claim.publish(record("one"))
        assert directory.find() == directory.find("one") == record("one")
    with pytest.raises(Unavailable, match="wan up"):
        directory.find()


def test_a_name_is_held_once(directory: RunDirectory) -> None:
    with directory.claim("one"), pytest.raises(ConfigError, match="runs already"), directory.claim("one"):
        raise AssertionError("held twice")


def test_two_beds_of_a_machine_have_different_slots(tmp_path: Path) -> None:
    with RunDirectory(tmp_path / "a").claim("one") as one, RunDirectory(tmp_path / "b").claim("one") as other:
        assert one.slot != other.slot


def test_which_of_several_beds_must_be_said(directory: RunDirectory) -> None:
    with directory.claim("one") as one, directory.claim("two") as two:
        one.publish(record("one"))
        two.publish(record("two"))
        with pytest.raises(ConfigError, match="one, two"):
            directory.find()
        assert directory.find("two").plan.name == "two"


def test_what_a_killed_bed_left_is_taken_away_once(directory: RunDirectory) -> None:
    token = os.urandom(8).hex()
    (directory.path / "gone.lock").write_text(__import__("json").dumps(record("gone", token).to_json()))
    directory.socket_path("gone").touch()
    stray = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=os.environ | {TOKEN_VARIABLE: token}
    )
    try:
        done = directory.collect()
        assert stray.wait(10) == -9
    finally:
        stray.kill()
        assert stray.stdin is not None
        stray.stdin.close()
    assert f"killed process {stray.pid}" in done
    assert len(done) == 3
    assert directory.collect() == []


def test_a_bed_that_runs_is_left_alone(directory: RunDirectory) -> None:
    with directory.claim("one") as claim:
        claim.publish(record("one"))
        assert directory.collect() == []
        assert directory.find("one")


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b'{"plan": 1}'])
def test_a_file_that_says_nothing_readable_is_no_bed(directory: RunDirectory, raw: bytes) -> None:
    with directory.claim("one") as claim:
        claim.path.write_bytes(raw)
        assert directory.running() == []


def test_the_way_into_a_region_names_its_namespace(directory: RunDirectory) -> None:
    argv = record("one").enter_argv("us", contained=True)
    assert argv[-4:] == ("nsenter", "--pid=/proc/4000000/ns/pid", "--net=/proc/4000000/fd/9", "--")
    with pytest.raises(ConfigError, match="hub, us, eu"):
        record("one").enter_argv("mars")


@pytest.mark.parametrize("name", ["", "../x", "A", "x" * 21])
def test_a_name_that_is_no_file_name_is_refused(directory: RunDirectory, name: str) -> None:
    with pytest.raises(ConfigError, match="no name"), directory.claim(name):
        raise AssertionError("taken")
