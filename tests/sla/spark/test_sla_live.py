"""The live job over brokers that serve their traces: exact totals through batches, restarts and SIGKILL."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from sla.errors import JobFailed, UsageError
from sla.live.state_core import MINUTE_S, LiveState
from sla.live.store import LiveStore
from tests.sla.live_brokers import START_S, TracedBroker, serving

ROOT = Path(__file__).parents[3]
KILLS = int(os.environ.get("GEORELAY_SLA_KILLS", "1"))  # `make sla-kill` asks for more
TRUTH = {("us", "eu"): (40, 36), ("eu", "us"): (20, 20)}  # per second: records, in time


class Mesh:
    """Two brokers whose every second has the records of TRUTH, some probes and other stages."""

    def __init__(self, folder: Path) -> None:
        self.eu = TracedBroker(folder / "eu", "eu/2001")
        self.us = TracedBroker(folder / "us", "us/1001")
        self.urls = ""
        self.seconds = 0

    def traffic(self, seconds: int) -> None:
        for second in range(START_S + self.seconds, START_S + self.seconds + seconds):
            self.eu.latencies(second, "us", [40_000] * 36 + [60_000] * 4)
            self.eu.latencies(second, "us", [1_000] * 40, stage="deliver")
            self.us.latencies(second, "eu", [30_000] * 20)
            self.eu.probe(second, "us", "lost" if second % 10 == 0 else "ok")
        self.seconds += seconds

    def expect_exact(self, state: LiveState) -> None:
        """Compare with what was written, row for row."""
        for pair, (n, good) in TRUTH.items():
            found = state.totals[pair]
            assert (found.n, found.n_good) == (n * self.seconds, good * self.seconds), pair
        assert state.totals["us", "eu"].probes_bad == self.seconds // 10
        assert state.rows == {"latency_hist": 3 * self.seconds, "probe": self.seconds}


@contextmanager
def serving_mesh(folder: Path) -> Iterator[Mesh]:
    mesh = Mesh(folder)
    with serving(mesh.eu.app(), mesh.us.app()) as brokers:
        mesh.urls = ",".join(f"http://{address}" for address in brokers)
        yield mesh


def minute_rows(checkpoint: Path) -> list[dict[str, Any]]:
    return list(pq.read_table(checkpoint / "minutes").to_pylist())


def forget_last_commit(checkpoint: Path) -> None:
    """Leave what a kill between our commit of a batch and Spark's leaves."""
    commits = checkpoint / "spark/commits"
    marker = max(commits.glob("[0-9]*"), key=lambda path: int(path.name))
    marker.unlink()
    (commits / f".{marker.name}.crc").unlink()


def expect_minutes_once(checkpoint: Path, state: LiveState, mesh: Mesh) -> None:
    """Every closed minute has one row per pair, and all minutes and late rows are the totals."""
    rows = minute_rows(checkpoint)
    assert max(Counter((row["ts_s"], row["origin"], row["dest"]) for row in rows).values()) == 1
    for pair, (per_second, _) in TRUTH.items():
        closed = sum(row["n"] for row in rows if (row["origin"], row["dest"]) == pair)
        in_hist = sum(b["n"] for row in rows if (row["origin"], row["dest"]) == pair for b in row["hist"])
        still_open = sum(c.n for key, c in state.minutes.items() if key[1:] == pair and not state.is_closed(key[0]))
        late = state.late[pair].n if pair in state.late else 0
        assert closed == in_hist
        assert closed + still_open + late == per_second * mesh.seconds


@pytest.mark.slow
def test_batches_late_rows_and_a_second_run_add_up_to_what_the_brokers_wrote(spark: Any, tmp_path: Path) -> None:
    from sla.jobs.live import LiveRequest, run_live

    with serving_mesh(tmp_path) as mesh:
        mesh.traffic(150)
        request = LiveRequest(
            sources=tuple(mesh.urls.split(",")), checkpoint=tmp_path / "live", is_once=True, is_from_oldest=True,
            rows_per_batch=1_200, watermark_s=30,
        )  # fmt: skip
        state = run_live(request)
        mesh.expect_exact(state)
        assert state.batch >= 1
        assert state.late_rows == 0
        expect_minutes_once(tmp_path / "live", state, mesh)

        forget_last_commit(tmp_path / "live")
        mesh.eu.boot()
        mesh.traffic(60)
        mesh.eu.latencies(START_S, "us", [90_000] * 7)  # of a minute that is closed
        again = run_live(request)
        late = again.late["us", "eu"]
        assert (again.late_rows, late.n, late.n_good) == (1, 7, 0)
        assert again.totals["us", "eu"].n == 40 * 210 + 7
        assert again.rows == {"latency_hist": 3 * 210 + 1, "probe": 210}
        side = spark.read.parquet(str(tmp_path / "live/late")).select("second", "n", "trace_region", "trace_boot")
        assert [tuple(row) for row in side.collect()] == [(START_S, 7, "eu", "b2")]
        first = [row for row in minute_rows(tmp_path / "live") if row["ts_s"] == START_S]
        assert [(row["origin"], row["n"], row["n_good"], row["probes_ok"]) for row in first] == [
            ("eu", 20 * MINUTE_S, 20 * MINUTE_S, 0),
            ("us", 40 * MINUTE_S, 36 * MINUTE_S, 54),
        ]
        document = json.loads((tmp_path / "live/live.json").read_text())
        assert document["state"] == "degraded"  # these traces are years old
        assert document["late_rows"] == 1

        min(mesh.us.directory.glob(".spool/latency*")).unlink()
        with pytest.raises(JobFailed, match=r"^http://.*: position b1/210 is gone, the oldest is /0.*to begin anew"):
            run_live(request)
    with pytest.raises(JobFailed, match="no broker that writes traces answers"):
        run_live(request)
    with pytest.raises(UsageError, match="is no http"):
        run_live(LiveRequest(sources=("eu:1",), checkpoint=tmp_path / "other"))


def kill_in_the_middle(command: list[str], store: LiveStore) -> int:
    """Run the view until it has made one more batch, kill it and its JVM, and return the number of that batch."""
    before = store.newest()
    process = subprocess.Popen(command, cwd=ROOT, start_new_session=True, stderr=subprocess.DEVNULL)
    try:
        deadline_s = time.monotonic() + 240
        while (newest := store.newest()) is None or newest <= max(0, before or 0):
            assert process.poll() is None, process.returncode
            assert time.monotonic() < deadline_s, "no batch came about"
            time.sleep(0.02)
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # the JVM too
        process.wait()
    return newest


@pytest.mark.timeout(300 * KILLS)
@pytest.mark.usefixtures("spark")
@pytest.mark.slow
def test_a_view_that_is_killed_in_the_middle_goes_on_and_counts_nothing_twice(tmp_path: Path) -> None:
    from sla.jobs.live import LiveRequest, run_live

    checkpoint = tmp_path / "live"
    store = LiveStore(checkpoint)
    with serving_mesh(tmp_path) as mesh:
        mesh.traffic(180 * KILLS)
        command = [
            sys.executable, "-m", "sla", "live", "--source", mesh.urls, "--checkpoint", str(checkpoint), "--once",
            "--begin", "oldest", "--rows", "360", "--watermark", "30s",
        ]  # fmt: skip
        for _ in range(KILLS):
            newest = kill_in_the_middle(command, store)
        assert store.state(newest).rows["latency_hist"] < 3 * mesh.seconds, "it was killed too late to show anything"
        request = LiveRequest(
            sources=tuple(mesh.urls.split(",")), checkpoint=checkpoint, is_once=True, is_from_oldest=True,
            rows_per_batch=360, watermark_s=30,
        )  # fmt: skip
        state = run_live(request)
        mesh.expect_exact(state)
        expect_minutes_once(checkpoint, state, mesh)
