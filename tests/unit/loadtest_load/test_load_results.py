"""The folder of a run is judged by what is in it: one of Locust alone by what Locust does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadtest.history.history_file import HistoryWriter
from loadtest.history.operation import Kind
from loadtest.load.campaign_file import CampaignError
from loadtest.load.results import ALONE, PLAYED, RUN_FORMAT, Results
from loadtest.load.samples_core import Samples
from loadtest.load.verdict_core import BREACH, INVALID, PASS, Judgement

CAMPAIGN = """\
about = "Two records, and everything that can be judged."
[target]
published_share_min = 1.0
deliver_p99_ms_max = 50
[topology]
kind = "up"
regions = ["us", "eu"]
[[topics]]
name = "orders"
home = "us"
[[stages]]
for = "10s"
users = 1
rate = 0.5
[[users]]
kind = "native"
topics = ["orders"]
regions = ["us"]
[[readers]]
topics = ["orders"]
[[programs]]
kind = "transactional-writer"
topics = ["orders"]
[[faults]]
at = "2s"
do = "link-cut"
what = "us-eu"
for = "2s"
[checks]
report = true
replicas = true
orphans = true
silence_s_max = 5
caught_up_s_max = 5
slowdown_max = 2
[generator]
idle_share_min = 0.5
"""


def rows(path: Path, *found: object) -> None:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in found))


def folder_of(folder: Path, *, campaign: str = CAMPAIGN, files: tuple[str, ...] = ()) -> Path:
    """Return what Locust leaves of two records that us sent and both readers had."""
    (folder / "unit.toml").write_text(campaign)
    (folder / "histories").mkdir()
    sender = HistoryWriter(folder / "histories" / "w-0-us.history", "w-0-us")
    records = [(offset, f"w-0-us:{offset}") for offset in range(2)]
    for offset, value in records:
        sender.produced(sender.invoke(Kind.PRODUCE, "orders/0", value=value), offset)
    for region in ("us", "eu"):
        name = f"w-deliver0.0-{region}"
        reader = HistoryWriter(folder / "histories" / f"{name}.history", name)
        reader.fetched(reader.invoke(Kind.FETCH, "orders/0", site=region, position=0), records)
        reader.close()
    sender.close()
    (folder / "began.json").write_text(json.dumps({"wall_ns": 1_000_000_000_000}))
    samples = Samples()
    for _ in records:
        samples.add(7.0)
    counted = [("publish", "orders"), ("deliver", "us->us"), ("deliver", "us->eu")]
    done = [{"method": method, "name": name, **samples.told()} for method, name in counted]
    of_engine = {"worker": "w", "cpu_share": 0.1, "lag_p99_ms": 0.1}
    rows(
        folder / "seconds-w.jsonl",
        {"second": 1_002, "role": "publish", "done": done[:1], **of_engine},
        {"second": 1_002, "role": "read", "done": done[1:], **of_engine},
    )
    rows(folder / "ended-publish-w.json", {"sent": 2, "unanswered": 0, "clock_stepped_ms": 0.0})
    rows(folder / "ended-read-w.json", {"has_all": True, "clock_stepped_ms": 0.0})
    entries = [{"method": method, "name": name, "n": len(records), "failed": 0} for method, name in counted]
    (folder / "locust.json").write_text(json.dumps({"entries": entries}))
    for name in files:
        (folder / name).write_text("{}\n" if name.endswith("json") else "")
    return folder


def test_latencies_of_the_warm_up_are_not_judged_but_its_records_are(tmp_path: Path) -> None:
    for name, warm_up in (("all", "0s"), ("later", "2s")):
        (tmp_path / name).mkdir()
        campaign = CAMPAIGN + f'warm_up = "{warm_up}"\n'
        lines = {line.what: line for line in Results(folder_of(tmp_path / name, campaign=campaign)).judge().lines}
        assert lines["deliver us->eu p99"].found == ("7 ms of 2" if name == "all" else "nothing was read")
        assert lines["acknowledged"].found == "100.0000% of 2"
        assert lines["Locust and histories"].is_kept


def whats(judgement: Judgement, *, kept: bool) -> list[str]:
    return [line.what for line in judgement.lines if line.is_kept == kept]


def test_locust_alone_is_judged_by_what_locust_does(tmp_path: Path) -> None:
    results = Results(folder_of(tmp_path))
    judgement = results.judge()
    assert (judgement.verdict, judgement.invalid) == (PASS, ())
    assert whats(judgement, kept=True) == [
        "deliver us->eu p99",
        "deliver us->us p99",
        "acknowledged",
        "every reader has",
        "history",
        "longest silence",
        "Locust and histories",
    ]
    assert results.figures[0] == ALONE


def test_locust_alone_in_some_regions_is_judged_there(tmp_path: Path) -> None:
    campaign = CAMPAIGN.replace('regions = ["us"]\n[[readers]]', "[[readers]]").replace(
        '"us", "eu"]', '"us", "eu", "ap"]'
    )
    campaign = campaign.replace("rate = 0.5", "rate = 50")
    folder = folder_of(tmp_path, campaign=campaign)
    whole = Results(folder).judge()
    assert whole.verdict == INVALID and "deliver ap->us p99" in whats(whole, kept=False)
    (folder / "plan-w.json").write_text(json.dumps({"regions": ["us", "eu"]}))
    some = Results(folder).judge()
    assert some.invalid == () and whats(some, kept=False) == ["deliver eu->eu p99", "deliver eu->us p99"]


def test_locust_alone_breaks_what_it_breaks(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    rows(folder / "ended-read-w.json", {"has_all": False, "clock_stepped_ms": 0.0})
    assert whats(Results(folder).judge(), kept=False) == ["every reader has"]


def test_without_a_fault_no_loss_has_to_be_found(tmp_path: Path) -> None:
    campaign = CAMPAIGN.replace("[checks]", "[checks]\nfinds_loss = true")
    assert Results(folder_of(tmp_path, campaign=campaign)).judge().verdict == PASS


def test_a_whole_run_that_did_not_come_to_its_end_says_nothing(tmp_path: Path) -> None:
    campaign = CAMPAIGN.partition("[[programs]]")[0]
    folder = folder_of(tmp_path, campaign=campaign, files=("run.json",))
    assert Results(folder).judge().invalid == ()  # of before there was that file
    (folder / "run.json").write_text(json.dumps({"format": RUN_FORMAT}))
    assert Results(folder).judge().invalid == ("the run did not come to its end: what it did not do cannot be judged",)
    (folder / PLAYED).write_text("{}")
    assert Results(folder).judge().verdict == PASS


def test_a_torn_line_is_said_with_its_file(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    (folder / "seconds-w.jsonl").write_text('{"second": 1')
    with pytest.raises(CampaignError, match=r"seconds-w\.jsonl cannot be read: a line of it is no JSON"):
        Results(folder)


def test_a_whole_run_without_its_report_is_broken(tmp_path: Path) -> None:
    campaign = CAMPAIGN.partition("[[programs]]")[0] + "[checks]\nreport = true\n"
    results = Results(folder_of(tmp_path, campaign=campaign, files=("run.json", PLAYED)))
    judgement = results.judge()
    assert (judgement.verdict, whats(judgement, kept=False)) == (BREACH, ["report and histories"])
    assert ALONE not in results.figures


@pytest.mark.parametrize("file", ["run.json", "cpu.jsonl", "events.jsonl"])
def test_a_whole_run_is_judged_by_everything_that_its_campaign_says(tmp_path: Path, file: str) -> None:
    judgement = Results(folder_of(tmp_path, files=(file,))).judge()
    assert judgement.verdict == INVALID
    assert {"caught up", "transactions", "replicas", "report and histories"} <= set(whats(judgement, kept=False))


def test_what_was_wrong_at_any_worker_makes_a_run_invalid(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    rows(folder / "trouble-us.jsonl", {"second": 1_003, "what": "the publish engine ended with 1"})
    rows(folder / "trouble-master.jsonl", {"second": 1_003, "what": "the worker eu was lost"})
    rows(folder / "trouble.jsonl", {"second": 1_003, "what": "as it was called once"})
    assert len(Results(folder).judge().invalid) == 3


@pytest.mark.parametrize(("do", "is_kept"), [("disk-lost", True), ("kill", True), ("stop", False)])
def test_what_the_report_has_untraced_is_explained_by_a_broker_that_was_killed(
    tmp_path: Path, do: str, is_kept: bool
) -> None:
    campaign = CAMPAIGN.partition("[[programs]]")[0].replace("rate = 0.5", "rate = 50") + "[checks]\nreport = true\n"
    folder = folder_of(tmp_path, campaign=campaign, files=("run.json",))
    rows(folder / "events.jsonl", *({"what": do, "of": f"{region}-1", "second": 1_003} for region in ("us", "eu")))
    account = {"topic": "orders", "partition": 0, "published": 2, "delivered": 1, "untraced": 1, "adds_up": True}
    integrity = {"accounts": [account | {"dest": region} for region in ("us", "eu")], "readers": []}
    (folder / "report").mkdir()
    (folder / "report" / "report.json").write_text(json.dumps({"integrity": integrity}))
    lines = {line.what: line for line in Results(folder).judge().lines}
    assert lines["report and histories"].is_kept is is_kept, lines["report and histories"]
