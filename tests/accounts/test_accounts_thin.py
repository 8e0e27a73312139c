"""Every record accounted for, thin: two regions under load, a broker killed, ledgers held against the clients' books.

`make accounts` goes on with the campaign `accounts`: real delays, a cut link, more load and the whole report.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from loadtest.history.checker_core import check
from loadtest.history.history_file import read_history
from loadtest.load.books_core import books_of, differences_to_report
from loadtest.load.campaign_file import find, parse, shortened
from loadtest.load.locust_processes import RunOptions
from loadtest.load.runner import run_campaign
from sla.judging.accounts import accounts_of
from sla.judging.completeness import Completeness
from sla.judging.facts import AccountFacts
from sla.judging.offset_sets import OffsetSet
from sla.sources.sealing import seal_left_rows

pytestmark = pytest.mark.timeout(300)
SECONDS, RATE = 6, 300
UNTRACED_MAX = {"eu": RATE // 25}  # 0.2 s of the five streams


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
    text = find("accounts-here").read_text(encoding="utf-8")
    text = shortened(text.replace("rate = 1000", f"rate = {RATE}").replace("report = true", "report = false"), SECONDS)
    campaign = parse(text, name="thin", place="thin.toml")
    await run_campaign(campaign, RunOptions(campaign_text=text, out=tmp_path), lambda _: None)
    (folder,) = tmp_path.iterdir()
    seal_left_rows(folder / "traces")  # of brokers that a busy machine did not let end in time
    accounts = [asdict(account) for account in accounts_of(facts_of(folder / "traces"), Completeness(()))]
    operations = read_history(sorted((folder / "histories").glob("*.history")))
    books = books_of(operations)
    compared, differences = differences_to_report(
        books, accounts, untraced_max=UNTRACED_MAX, sent_once=campaign.sent_once()
    )
    assert differences == []
    assert check(operations).is_valid
    streams = {stream for topic in campaign.topics for stream in topic.streams(("us", "eu"))}
    assert {(dest, key) for dest, keys in books.read_at.items() for key in keys} == {
        (dest, f"{stream}/0") for stream in streams for dest in ("us", "eu")
    }
    assert books.acked_total > 0
    assert compared >= books.acked_total
