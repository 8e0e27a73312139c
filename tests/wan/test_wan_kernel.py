"""Delays made by the kernel: what can be shown where it has no netem, and what is shown by itself where it has."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from georelay.errors import Unavailable
from mesh.testbed.bed_client import BedClient
from mesh.testbed.bed_process import BedOptions, open_bed
from mesh.testbed.plan_core import Engine, parse_wan
from mesh.testbed.run_directory import RunDirectory


@pytest.fixture(scope="module")
def seen() -> dict[str, Any]:
    """What the script saw; it leaves its namespaces to the kernel."""
    script = Path(__file__).parent / "kernel_core_script.py"
    words = ["unshare", "--map-root-user", "--net", "--pid", "--fork", "--kill-child=KILL", sys.executable, str(script)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def test_every_region_reaches_every_other_through_the_core(seen: dict[str, Any]) -> None:
    assert seen["all_arrive"] is True
    assert seen["counted"] > 0


def test_a_cut_in_the_core_is_of_one_direction_and_heals(seen: dict[str, Any]) -> None:
    assert seen["cut"] == [False, True, True]
    assert seen["healed"] is True


def test_a_kernel_that_does_not_delay_is_found_out(seen: dict[str, Any]) -> None:
    assert "us to eu" in seen["fault"]
    assert "not 35 ms" in seen["fault"]


def test_the_router_can_take_the_place_of_the_core(seen: dict[str, Any]) -> None:
    assert seen["tuns_after"] == [1, 2, 3]


def test_a_queueing_discipline_that_there_is_not_is_seen(seen: dict[str, Any]) -> None:
    assert seen["pfifo"] is True


def test_who_asks_for_netem_gets_it_or_is_told(beds: RunDirectory, seen: dict[str, Any]) -> None:
    options = BedOptions(spec=parse_wan("us-eu=70ms"), name="netem", engine=Engine.NETEM)
    if not seen["netem"]:
        with pytest.raises(Unavailable, match="no netem"), open_bed(options, beds):
            raise AssertionError("it runs")
        return
    with open_bed(options, beds):
        router: Any = BedClient("netem", beds).stat()["router"]
        assert router["engine"] == "netem"
