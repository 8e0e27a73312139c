"""Lines of `georelay clocks`."""

from __future__ import annotations

from typing import Any

from georelay.cli.clocks import clock_lines

ANSWER: dict[str, Any] = {
    "region": "eu",
    "clocks": [
        {"region": "us", "broker": None, "offset_us": -79_872, "error_us": 36_564, "drift_ppm": -3.3, "rtt_us": 70_758},
        {"region": "ap", "broker": None, "offset_us": None, "error_us": None, "drift_ppm": None, "rtt_us": None},
        {
            "region": "us", "broker": 1001, "offset_us": -79_872, "error_us": 36_564, "drift_ppm": -3.3,
            "rtt_us": 70_758, "exchanges": 52, "steps": 1,
        },
        {"region": "us", "broker": 1002, "offset_us": 0, "error_us": 1, "drift_ppm": 0.0, "rtt_us": 1, "exchanges": 3},
    ],
}  # fmt: skip


def test_a_region_has_one_line_with_the_counts_of_its_brokers() -> None:
    assert clock_lines(ANSWER) == [
        {
            "from": "eu", "to": "us", "offset ms": "-79.872", "bound ms": "36.564", "drift ppm": "-3.3",
            "rtt ms": "70.758", "exchanges": 55, "steps": 1,
        },
        {
            "from": "eu", "to": "ap", "offset ms": "?", "bound ms": "?", "drift ppm": "?", "rtt ms": "?",
            "exchanges": 0, "steps": 0,
        },
    ]  # fmt: skip


def test_brokers_are_shown_on_demand() -> None:
    assert [line["to"] for line in clock_lines(ANSWER, with_brokers=True)] == ["us", "ap", "us/1001", "us/1002"]


def test_a_region_that_does_not_answer_has_no_line() -> None:
    assert clock_lines({"region": "ap", "error": "no broker"}) == []
