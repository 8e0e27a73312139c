"""The whole pipeline over generated traces: every roll-up has exactly the rows that the generator expects.

What generator, pipeline and DuckDB (test_sla_oracle.py) say of the same files was counted three times, by three
programs that share nothing but definitions.
"""

from __future__ import annotations

import datetime
from typing import Any

import pytest

pytest.importorskip("pyspark")

from sla.generate.expected import KEYS, Expected
from sla.generate.request import Fault, GenerateRequest
from sla.generate.run import run_generate

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]  # a minute of Spark, when the machine is idle
START = datetime.datetime(2026, 11, 20, 9, 57, tzinfo=datetime.UTC)
SETTLE_S = 200  # gaps of the first hour are healed within it and after it
FAULTS = (
    "gap:count=3", "gap:at=120,count=2,heal=120", "gap:at=110,count=2,heal=400",
    "duplicate:count=2", "duplicate:flagged=1,count=2", "reorder:count=3", "aborted:count=2", "expired",
    "rebalance", "rebalance",
    "link-cut:region=us,peer=eu,at=150,for=40", "slow-pair:region=us,peer=ap",
    "wrong-clock:region=ap", "clock-revised:region=sa", "clock-step:region=eu,at=30",
    "region-outage:region=ap,at=230,for=15", "publish-refused:region=eu,at=100,for=10",
    "corrupt-file:region=us,at=400", "torn-file:region=eu,rows=probe",
    "wrong-schema:region=ap,rows=latency_hist,at=100", "empty-file:region=eu,rows=outcome,at=40",
    "missing-file:region=eu,rows=clock", "dropped-rows:region=us,rows=delivery",
    "late-traces:region=eu,at=310,for=20", "silent-region:region=us,at=510,for=20",
)  # fmt: skip


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Expected:
    request = GenerateRequest(
        out=tmp_path_factory.mktemp("gen"),
        start=START,
        regions=("us", "eu", "ap", "sa"),
        seconds=600,
        rate_per_s=30,
        seed=11,
        roll_s=200,
        settle_s=SETTLE_S,
        faults=tuple(Fault.parse(text) for text in FAULTS),
    )
    return run_generate(request)


@pytest.fixture(scope="module")
def rolled_up(spark: Any, expected: Expected, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """Roll the traces up and return the rows of every table, in the words of expected.json."""
    from sla.jobs.rollup import hours_of, roll_up
    from sla.jobs.rollup_plan import LATE_HOURS
    from sla.jobs.verify import VerifyRequest, run_verify
    from sla.rollups import RollupStore
    from sla.sources.layout import Period
    from sla.tables import RollupTable

    files = run_verify(VerifyRequest(traces=expected.traces, hours_after=LATE_HOURS))
    store = RollupStore.open(tmp_path_factory.mktemp("rollups"))
    hours = hours_of(Period(), files)
    roll_up(spark, files, store, hours, settle_s=SETTLE_S, now_s=START.timestamp() + 86_400)
    tables: dict[str, list[Any]] = {}
    for table in RollupTable:
        if table.value in KEYS:
            rows = store.read(spark, table, hours[0], hours[-1] + 3_600).collect()
            tables[table.value] = [row.asDict(recursive=True) for row in rows]
    return tables


def in_words_of(wanted: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    """Return the columns of a row that the generator knows exactly."""
    row = {name: row[name] for name in wanted if name in row}
    if "ranges" in row:
        row["ranges"] = [[pair["f"], pair["t"]] for pair in row["ranges"]]
    if "hist" in row:
        row["hist"] = [[bucket["b"], bucket["n"]] for bucket in row["hist"]]
    return row


@pytest.mark.parametrize("table", KEYS)
def test_the_pipeline_finds_exactly_what_was_generated(
    expected: Expected, rolled_up: dict[str, list[Any]], table: str
) -> None:
    wanted = {tuple(row[name] for name in KEYS[table]): row for row in expected.rows(table)}
    found = {tuple(row[name] for name in KEYS[table]): row for row in rolled_up[table]}
    assert len(found) == len(rolled_up[table]), "rows of one key"
    assert set(found) == set(wanted) != set()
    for key, row in wanted.items():
        mine = in_words_of(row, found[key])
        if found[key].get("n_clock_revised"):
            # What a fit makes of a histogram is known within bounds only, and a fit through a step of eu's not at all.
            exact = ("n",) if "eu" in (row["origin"], row["dest"]) else ("n", "n_clock_revised", "n_clock_unknown")
            mine = {name: mine[name] for name in exact}
        assert mine == {name: row[name] for name in mine}, key


def test_a_clock_that_brokers_did_not_believe_is_revised(rolled_up: dict[str, list[Any]]) -> None:
    totals = [row for row in rolled_up["hour"] if row["origin"] != row["dest"] and row["stage"] == "total"]
    away = [row for row in totals if "eu" not in (row["origin"], row["dest"])]  # whose clock is set on the way
    of_sa = [row for row in away if "sa" in (row["origin"], row["dest"])]
    settled = [row for row in away if "sa" not in (row["origin"], row["dest"])]
    assert len(of_sa) > len(settled) > 0
    assert [row for row in of_sa if row["n_clock_revised"] != row["n"]] == []
    assert [row for row in settled if row["n_clock_revised"]] == []


def test_nothing_that_was_in_time_is_called_late_and_the_other_way_round(
    expected: Expected, rolled_up: dict[str, list[Any]]
) -> None:
    stepped = START.timestamp() + 30  # until the step is noticed, a bound may be wrong
    truth = {tuple(row[name] for name in KEYS["minute"]): row["n_true"] for row in expected.rows("minute")}
    wrong = [
        row
        for row in rolled_up["minute"]
        if not row["n_good_lo"] <= truth[tuple(row[name] for name in KEYS["minute"])] <= row["n_good_hi"]
        and not (row["ts_s"] <= stepped < row["ts_s"] + 60 and "eu" in (row["origin"], row["dest"]))
    ]
    assert wrong == []
