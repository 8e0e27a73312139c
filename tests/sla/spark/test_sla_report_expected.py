"""The whole command over a generated world: every count of report.json is what the generator says must be found.

The tables below the report are compared row by row elsewhere (test_sla_oracle.py, test_sla_end_to_end.py); here is
what a reader of the report gets to see.
"""

from __future__ import annotations

import datetime
import json
from collections import Counter
from typing import Any

import pytest

pytest.importorskip("pyspark")

from sla import cli
from sla.generate.expected import Expected
from sla.generate.request import Fault, GenerateRequest
from sla.generate.run import run_generate
from sla.session import build_session

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]  # half a minute of Spark, when the machine is idle
START = datetime.datetime(2026, 11, 20, 10, tzinfo=datetime.UTC)
FAULTS = (
    "gap:count=2", "duplicate:count=2", "duplicate:flagged=1", "reorder", "aborted:count=2", "expired", "rebalance",
    "link-cut:region=us,peer=eu,at=150,for=30", "slow-pair:region=us,peer=ap",
    "publish-refused:region=eu,at=100,for=10",
    "corrupt-file:region=us,rows=latency_hist", "torn-file:region=eu,rows=probe", "dropped-rows:region=ap,rows=outcome",
)  # fmt: skip
Key = tuple[Any, ...]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Expected:
    faults = tuple(Fault.parse(text) for text in FAULTS)
    out = tmp_path_factory.mktemp("gen")
    return run_generate(
        GenerateRequest(out=out, start=START, seconds=480, rate_per_s=40, seed=3, roll_s=120, faults=faults)
    )


@pytest.fixture(scope="module")
def report(spark: Any, expected: Expected) -> dict[str, Any]:
    """Run the command, on the Spark of this session, and return report.json."""
    assert build_session(master="local[2]", conf={}) is not None, spark
    out = expected.traces.parent / "report"
    assert cli.main(["report", "--traces", str(expected.traces), "--out", str(out), "--format", "json"]) == 1
    found: dict[str, Any] = json.loads((out / "report.json").read_text())
    return found


def summed(rows: list[dict[str, Any]], keys: str, columns: str) -> dict[Key, Key]:
    """Return the sums of columns by key."""
    sums: dict[Key, Counter[str]] = {}
    for row in rows:
        of_key = sums.setdefault(tuple(row[name] for name in keys.split()), Counter())
        of_key.update({name: row[name] for name in columns.split()})
    return {key: tuple(of_key[name] for name in columns.split()) for key, of_key in sums.items()}


def stages(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the latencies of all pairs, one row per pair, way and stage."""
    return [pair | stage for pair in report["latency"] for stage in pair["stages"]]


READERS = (
    "sessions delivered dup_flagged dup_unflagged gaps gap_records healed_records lost unexplained aborted expired "
    "order_violations pending"
)
SECTIONS: dict[str, tuple[str, str, str]] = {  # of the report: table of expected.json, keys, counts
    "latency": ("hour", "origin dest stage", "n n_good"),
    "readers": ("integrity_hour", "topic origin partition dest group", READERS),
    "streams": ("stream_hour", "topic origin partition", "committed aborted expired"),
    "mirrors": ("mirror_hour", "topic origin partition region", "replicated missing"),
    "probes": ("avail_minute", "origin dest", "probes probes_ok probes_late probes_lost probes_refused"),
    "requests": (
        "requests_minute",
        "region source op",
        "attempts ok client_error server_error timeout offered",
    ),
    "clocks": ("clock_hour", "region peer", "exchanges steps unsync"),
    "inputs": (
        "inputs_hour",
        "kind region",
        "files bytes rows quarantined_files missing_rows dropped_rows gone_rows",
    ),
}


def rows_of(report: dict[str, Any], section: str) -> list[dict[str, Any]]:
    where: dict[str, list[dict[str, Any]]] = {
        "latency": stages(report),
        "probes": report["availability"]["pairs"],
        "requests": report["availability"]["requests"],
        "clocks": report["clocks"],
        "inputs": report["inputs"]["rows"],
    }
    return where[section] if section in where else report["integrity"][section]


@pytest.mark.parametrize("section", SECTIONS)
def test_every_count_of_the_report_is_what_was_generated(
    report: dict[str, Any], expected: Expected, section: str
) -> None:
    table, keys, columns = SECTIONS[section]
    wanted = summed(expected.rows(table), keys, columns)
    assert summed(rows_of(report, section), keys, columns) == wanted != {}


def test_throughput_and_maxima_are_what_was_generated(report: dict[str, Any], expected: Expected) -> None:
    minutes = expected.rows("throughput_minute")
    wanted = summed(minutes, "dest", "delivered offered")
    assert {(row["region"],): (row["delivered"], row["offered"]) for row in report["throughput"]} == wanted
    for row in report["throughput"]:
        assert row["max_1s"] == max(minute["max_1s"] for minute in minutes if minute["dest"] == row["region"])
    slowest: dict[Key, float] = {}
    for hour in expected.rows("hour"):
        key = (hour["origin"], hour["dest"], hour["stage"])
        slowest[key] = max(slowest.get(key, 0), hour["lat_max_us"])
    found: dict[Key, float] = {}
    for stage in stages(report):
        key = (stage["origin"], stage["dest"], stage["stage"])
        found[key] = max(found.get(key, 0), stage["max_ms"])
    assert found == {key: pytest.approx(us / 1_000, abs=0.001) for key, us in slowest.items()}


def test_the_totals_are_those_of_the_faults(report: dict[str, Any], expected: Expected) -> None:
    totals = report["integrity"]["totals"]
    done = Counter[str]()
    for fault in expected.injected:
        done[fault["kind"]] += fault["records"]
    assert totals["lost"] == done["gap"] > 0
    assert totals["dup_unflagged"] + totals["dup_flagged"] == done["duplicate"] + done["rebalance"] > 0
    assert totals["aborted"] == done["aborted"] > 0
    assert totals["expired"] == done["expired"] > 0
    files = expected.files
    assert len(report["inputs"]["quarantined"]) == sum(files["broken"].values()) == 2
