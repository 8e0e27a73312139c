"""Synthetic traces begin and end where every part of the pipeline can count: elsewhere they are refused, not empty."""

from __future__ import annotations

from pathlib import Path

import pytest

from sla import cli
from sla.commands.arguments import moment
from sla.generate.request import Fault, GenerateRequest
from sla.generate.run import run_generate
from tests.tiers import first


@pytest.mark.parametrize(
    "given",
    [
        "--start 0001-01-01",
        "--start 1969-01-01",
        "--start 1970-01-01T23:59:59",
        "--start 2260-01-01T00:00:01",
        "--start 2300-04-01",
        "--start 9999-12-31T23:59:59",
        "--start 2259-12-31T23:59:55",
        "--start 2026-01-01 --rows 1000000000 --rate 1 --regions us",
    ],
)
def test_a_time_that_cannot_be_counted_exits_2(given: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    length = [] if "--rows" in given else ["--seconds", "10"]
    status = cli.main(["gen", "--out", str(tmp_path / "o"), *given.split(), *length])
    out, err = capsys.readouterr()
    assert (status, out, err.count("\n")) == (2, "", 1), err
    assert "traces must lie from 1970-01-02 to 2260-01-01" in err
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize("ms", first(1, [600_000, -600_000]))
def test_traces_at_both_ends_are_whole(ms: int, tmp_path: Path) -> None:
    faults = (Fault.parse(f"wrong-clock:region=us,ms={ms}"), Fault.parse("link-cut:region=us,peer=eu,at=2,for=600"))

    def delivered(start: str) -> int:
        world = GenerateRequest(
            out=tmp_path / start, start=moment(start), seconds=10, faults=faults, brokers=1, partitions=1
        )
        return int(run_generate(world).files["delivery_rows"])

    usual = delivered("2026-01-01")
    assert usual > 0
    for start in ("1970-01-02", "2116-02-21", "2259-12-31T23:59:50"):
        assert delivered(start) == usual, start
