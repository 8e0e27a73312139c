"""Every record accounted for, thin: two regions under load, a broker killed, ledgers held against the clients' books.

`python -m loadtest.campaign report` is the same with real delays, a cut link, more load and the whole report.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from rich.console import Console

from loadtest.campaign.report_run import LoopbackMesh, ReportRun
from loadtest.campaign.report_verdict_core import compare
from sla.judging.accounts import accounts_of
from sla.judging.completeness import Completeness
from sla.judging.facts import AccountFacts
from sla.judging.offset_sets import OffsetSet
from sla.sources.sealing import seal_left_rows

pytestmark = pytest.mark.timeout(300)


def facts_of(traces: Path) -> list[AccountFacts]:
    """Return what the ledgers name, as sla.transforms.accounts does it with Spark."""
    ranges: dict[tuple[Any, ...], list[tuple[int, int]]] = defaultdict(list)
    records: dict[tuple[Any, ...], int] = defaultdict(int)
    for path in traces.glob("date=*/hour=*/region=*/ledger-*.parquet"):
        for row in pq.read_table(path, partitioning=None).to_pylist():
            key = (row["kind"], row["topic"], row["origin"], row["partition"], row["region"], row["group"] or "")
            ranges[key].append((row["from_offset"], row["to_offset"]))
            records[key] += row["records"] or 0
    return [
        AccountFacts(
            kind=kind, topic=topic, origin=origin, partition=partition, region=region, group=group, is_inside=True,
            records=records[key], is_whole=True, ranges=OffsetSet.union([tuple(named)]).ranges,
        )
        for key, named in ranges.items()
        for kind, topic, origin, partition, region, group in [key]
    ]  # fmt: skip


async def test_every_record_is_accounted_for_though_a_broker_was_killed(tmp_path: Path) -> None:
    options = argparse.Namespace(seconds=6.0, rate=300, cut_seconds=0.0, kill=True)
    mesh = LoopbackMesh(tmp_path, brokers_per_region=1, regions=["us", "eu"], clocks={})
    async with mesh:
        run = ReportRun(mesh, options, Console(quiet=True))
        await run.run()
    seal_left_rows(mesh.traces)  # of brokers that a busy machine did not let end in time
    accounts = [asdict(account) for account in accounts_of(facts_of(mesh.traces), Completeness(()))]
    lines = compare(run.books(), run.received(), accounts)
    assert len(lines) == 2 * len(run.streams)
    assert [(line.stream, line.dest, line.faults) for line in lines if line.faults] == []
    assert sum(book.acked.size for book in run.books()) > 0
