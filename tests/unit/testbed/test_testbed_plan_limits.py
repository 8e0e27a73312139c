"""What a test bed cannot be, and packets that never arrive."""

from __future__ import annotations

import random
from typing import Any

import pytest

from georelay.errors import ConfigError
from georelay.fields import FieldError
from mesh.testbed.delay_line_core import IPV4_HEADER_BYTES, DelayLine
from mesh.testbed.path_core import Path, PathSettings
from mesh.testbed.plan_core import BedPlan, Engine, parse_wan


def plan(**changes: Any) -> BedPlan:
    given: dict[str, Any] = {"name": "dev", "slot": 2, "spec": parse_wan("us-eu=70ms"), "token": "t"}
    return BedPlan(**given | changes)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"name": ""}, "is no name of a test bed"),
        ({"name": "Dev"}, "is no name of a test bed"),
        ({"name": "x" * 21}, "is no name of a test bed"),
        ({"addresses": 0}, "0 addresses per region are not 1..250"),
        ({"mtu_bytes": 575}, "an MTU of 575 bytes"),
        ({"mtu_bytes": 9_001}, "an MTU of 9001 bytes"),
        ({"congestion_control": "vegas"}, "congestion control 'vegas' is not reno, cubic or bbr"),
    ],
)
def test_a_bed_that_cannot_be_built_is_refused_with_what_is_wrong(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        plan(**changed)


@pytest.mark.parametrize("control", ["", "reno", "cubic", "bbr"])
def test_the_congestion_controls_that_a_kernel_has_are_taken(control: str) -> None:
    assert plan(congestion_control=control, addresses=250, mtu_bytes=576).congestion_control == control


def test_a_region_is_found_by_its_name_and_the_others_are_named_when_it_is_not_there() -> None:
    assert (plan().region("eu").index, plan().region("eu").slot) == (2, 2)
    with pytest.raises(ConfigError, match=r"no region 'ap' in this test bed \(us, eu\)"):
        plan().region("ap")


def test_every_address_of_a_bed_is_in_the_block_of_its_slot() -> None:
    bed = plan()
    assert bed.core_address == "198.18.32.1"
    assert (bed.hub_address, bed.host_address, bed.wan_network) == ("198.19.32.1", "198.19.32.2", "198.18.32.0/20")
    assert [place.management for place in bed.regions] == ["198.19.32.11", "198.19.32.12"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"regions": ["us", 1]}, "something else than names of regions"),
        ({"regions": ["us", "EU"]}, "something else than names of regions"),
        ({"rtt_us": [["us", "eu"]]}, "something else than"),
        ({"rtt_us": ["us-eu"]}, "something else than"),
        ({"rtt_us": [["us", "us", 1]]}, "something else than"),
        ({"rtt_us": [["us", "ap", 1]]}, "something else than"),
        ({"rtt_us": [["us", "eu", "1"]]}, "something else than"),
        ({"rtt_us": [["us", "eu", True]]}, "something else than"),
        ({"rtt_us": [["us", "eu", -1]]}, "something else than"),
        ({"rtt_us": [["us", "eu", 60_000_001]]}, "something else than"),
        ({"rtt_us": []}, "does not name every pair once"),
        ({"engine": "magic"}, "engine"),
        ({"slot": 16}, "slot"),
        ({"more": 1}, "more"),
    ],
)
def test_a_plan_that_another_version_wrote_is_refused_with_what_is_wrong(change: dict[str, Any], said: str) -> None:
    raw = plan().to_json()
    assert BedPlan.from_json(dict(raw)) == plan()
    with pytest.raises(FieldError, match=said):
        BedPlan.from_json(raw | change)


def test_the_engine_of_a_plan_survives_the_way_to_the_process_that_builds_it() -> None:
    for engine in Engine:
        assert BedPlan.from_json(plan(engine=engine).to_json()).engine is engine


def packet(destination: int) -> bytes:
    raw = bytearray(IPV4_HEADER_BYTES)
    raw[0] = 0x45
    raw[16:20] = bytes([198, 18, destination, 1])
    return bytes(raw)


def test_a_packet_that_its_path_drops_is_not_held_and_is_not_strange() -> None:
    paths = {
        (1, 2): Path(PathSettings(delay_us=10, is_cut=True), random.Random(1)),
        (1, 3): Path(PathSettings(delay_us=10), random.Random(1)),
    }
    line = DelayLine(paths)
    line.accept(1, packet(2), 0)
    assert (line.held_bytes, line.next_due_ns, line.strange, line.overflown) == (0, -1, 0, 0)
    line.accept(1, packet(3), 0)
    assert line.held_bytes == IPV4_HEADER_BYTES
    assert line.take() == (10_000, 3, packet(3))
    with pytest.raises(IndexError):
        line.take()
