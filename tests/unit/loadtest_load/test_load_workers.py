"""Several workers of Locust in a region: together they offer what the campaign says, and one of them reads."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from loadtest.child_process import ChildProcess
from loadtest.load.campaign import Campaign
from loadtest.load.campaign_file import parse
from loadtest.load.engine_values import Plan, WallClock, origin_of, publisher_name, read_plan, row_of, written
from loadtest.load.locust_processes import LocustProcesses, RunOptions, workers_of
from loadtest.load.reader import readers_of

CAMPAIGN = """\
about = "Three rows, of which two publish in some regions only."
[topology]
kind = "up"
regions = ["us", "eu"]
[[topics]]
name = "orders"
home = "us"
[[stages]]
for = "10s"
users = 12
rate = 120
[[users]]
kind = "kafka"
topics = ["orders"]
[[users]]
kind = "kafka"
topics = ["orders"]
regions = ["eu"]
[[users]]
kind = "kafka"
topics = ["orders"]
regions = ["us", "eu"]
[[readers]]
topics = ["orders"]
count = 2
[[readers]]
kind = "group"
topics = ["orders"]
count = 2
"""
FOUR = {"us-1": ["us"], "us-2": ["us"], "eu-1": ["eu"], "eu-2": ["eu"]}


@pytest.fixture
def campaign(tmp_path: Path) -> Campaign:
    (tmp_path / "unit.toml").write_text(CAMPAIGN)
    return parse(CAMPAIGN, name="unit", place="unit.toml")


class Locusts:
    """Makes what a process of Locust is for a campaign, alone, as master or as worker."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("LOCUST_SKIP_MONKEY_PATCH", "1")  # else it patches this whole process for gevent
        monkeypatch.setattr(sys, "argv", ["locust", "--campaign", str(folder / "unit.toml")])
        from locust import runners

        from loadtest.load import locust_run

        self.module, self.runners = locust_run, runners
        self.out = folder / "out"

    def run(self, kind: str, workers: dict[str, list[str]]) -> Any:
        """Return a run whose results are in the folder `out`, and whose workers have said who they are."""
        classes: dict[str, Any] = {"master": self.runners.MasterRunner, "worker": self.runners.WorkerRunner}
        runner: Any = object.__new__(classes[kind]) if kind in classes else None  # connected to nothing
        if runner is not None:
            runner.greenlet = None  # which its end looks at
        words = {"load_worker": "", "endpoints": "", "load_regions": "", "load_publishers_only": False}
        options = SimpleNamespace(results=self.out, expect_workers=len(workers), **words)
        environment: Any = SimpleNamespace(parsed_options=options, runner=runner)
        run = self.module.LocustRun(environment)
        for name, regions in workers.items():
            run.worker_named(f"host_{name}", {"worker": name, "regions": regions, "reads": name != "eu-2"})
        return run

    def dispatch(self, *goals: int | str) -> list[dict[str, list[int]]]:
        """Return the users of each of FOUR workers, row by row, after each goal: so many users, or who is lost."""
        of_campaign = type("OfCampaign", (self.module.RegionDispatcher,), {"run": self.run("master", FOUR)})
        nodes = {name: self.runners.WorkerNode(f"host_{name}") for name in FOUR}
        classes = self.module.make_users()
        dispatcher = of_campaign(worker_nodes=[*nodes.values()], user_classes=[*classes.values()])
        told: list[dict[str, list[int]]] = []
        count = 0
        for goal in goals:
            if isinstance(goal, str):
                dispatcher.remove_worker(nodes[goal])
            else:
                count = goal
            dispatcher.new_dispatch(count, 1000.0)
            users = [*dispatcher][-1]
            told.append(
                {client.removeprefix("host_"): [each[name] for name in classes] for client, each in users.items()}
            )
        return told


@pytest.fixture
def locusts(campaign: Campaign, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Locusts:
    return Locusts(tmp_path, monkeypatch)


def plan_of(campaign: Campaign, folder: Path, worker: str, regions: Sequence[str], *, reads: bool = True) -> Plan:
    told: dict[str, Any] = {"endpoints": {}, "folder": folder, "settings": {}}
    return Plan(campaign=campaign, regions=tuple(regions), worker=worker, reads=reads, **told)


def offered(campaign: Campaign, folder: Path, users: dict[str, list[int]]) -> Counter[tuple[int, str]]:
    """Return the records per second of each row in each region, as engines offer them."""
    found: Counter[tuple[int, str]] = Counter()
    for worker, of_row in users.items():
        rows = plan_of(campaign, folder, worker, FOUR[worker]).rows()
        for row, _, region in rows:
            sharing = sum(row == other for other, _, _ in rows)
            found[row, region] += campaign.rate_of_one_user(0) * of_row[row] / sharing  # type: ignore[assignment]
    return found


def test_two_workers_of_each_region_offer_together_what_the_campaign_says(
    locusts: Locusts, campaign: Campaign, tmp_path: Path
) -> None:
    (users,) = locusts.dispatch(12)
    rates = offered(campaign, tmp_path, users)
    assert sum(rates.values()) == 120
    assert [sum(rate for (of, _), rate in rates.items() if of == row) for row in range(3)] == [40, 40, 40]
    assert {place: rate for place, rate in rates.items() if place[0] == 1} == {(1, "eu"): 40}
    assert rates[0, "us"] == rates[0, "eu"] == rates[2, "us"] == rates[2, "eu"] == 20
    assert all(sum(of_row) for of_row in users.values()), "nobody stands idle"


def test_users_come_and_go_and_stay_in_the_regions_of_their_row(locusts: Locusts) -> None:
    few, many, again = locusts.dispatch(3, 30, 6)
    for users, count in ((few, 3), (many, 30), (again, 6)):
        assert sum(map(sum, users.values())) == count
        assert users["us-1"][1] == users["us-2"][1] == 0
    assert [sum(of_row[row] for of_row in again.values()) for row in range(3)] == [2, 2, 2]


def test_users_of_a_lost_worker_go_to_the_others(locusts: Locusts) -> None:
    _, after = locusts.dispatch(12, "eu-2")
    assert set(after) == {"us-1", "us-2", "eu-1"}
    assert sum(map(sum, after.values())) == 12
    assert after["eu-1"][1] == 4


def test_a_region_without_a_worker_makes_the_run_invalid(locusts: Locusts) -> None:
    locusts.run("master", {"us": ["us"]}).wait_for_workers()
    (file,) = locusts.out.glob("trouble-*.jsonl")
    told = [json.loads(line)["what"] for line in file.read_text().splitlines()]
    assert told == [
        "no worker is in eu: what users[1] offer is missing",
        "no worker is in eu: what its clients do is missing",
    ]


def test_a_region_whose_workers_do_not_read_makes_the_run_invalid(locusts: Locusts) -> None:
    locusts.run("master", {"us": ["us"], "eu-2": ["eu"]}).wait_for_workers()
    (file,) = locusts.out.glob("trouble-*.jsonl")
    (row,) = file.read_text().splitlines()
    assert json.loads(row)["what"] == "no worker in eu reads: give one of them its readers"


@pytest.mark.parametrize(("kind", "files"), [("alone", ["unit.toml"]), ("master", ["unit.toml"]), ("worker", [])])
def test_who_is_alone_or_the_master_leaves_the_campaign_beside_the_results(
    kind: str, files: list[str], locusts: Locusts
) -> None:
    locusts.run(kind, FOUR)
    found = sorted(locusts.out.glob("*.toml"))
    assert [path.name for path in found] == files
    assert [path.read_text() for path in found] == [CAMPAIGN for _ in files]


def test_a_campaign_that_lies_there_already_stays(locusts: Locusts) -> None:
    locusts.out.mkdir()
    (locusts.out / "shortened.toml").write_text("as it is run")
    locusts.run("alone", {})
    assert [path.name for path in locusts.out.glob("*.toml")] == ["shortened.toml"]


def test_workers_are_named_by_their_region_and_a_number_where_there_are_several() -> None:
    assert workers_of("us", 1) == [("us", "us", True)]
    assert workers_of("us", 2) == [("us-1", "us", True), ("us-2", "us", False)]


async def test_so_many_workers_are_started_for_each_region_and_the_first_one_reads(
    campaign: Campaign, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched: dict[str, list[str]] = {}

    async def launch(process: ChildProcess, *words: str, **_: object) -> None:
        launched[process.name] = [*map(str, words)]

    monkeypatch.setattr(ChildProcess, "launch", launch)
    (tmp_path / "began.json").write_text("{}")
    stage: Any = SimpleNamespace(bed=None, endpoints_file=tmp_path / "endpoints.json", settings={})
    options = RunOptions(campaign_text="", out=tmp_path, workers_per_region=2)
    await LocustProcesses(campaign, options, tmp_path, stage).start()
    assert list(launched) == ["master", *FOUR]
    assert launched["master"][launched["master"].index("--expect-workers") + 1] == "4"
    for name, regions in FOUR.items():
        assert launched[name][launched[name].index("--load-regions") + 1] == regions[0]
        assert ("--load-publishers-only" in launched[name]) == name.endswith("-2")


def test_names_of_all_workers_are_their_own_and_tell_row_and_region(campaign: Campaign, tmp_path: Path) -> None:
    places = [
        (worker, row, region)
        for worker, regions in FOUR.items()
        for row, _, region in plan_of(campaign, tmp_path, worker, regions).rows()
    ]
    names = [publisher_name(*place) for place in places]
    assert len(set(names)) == len(names) == 10
    assert [(row_of(f"{name}:7"), origin_of(name)) for name in names] == [place[1:] for place in places]


def test_there_are_as_many_readers_as_the_campaign_says(campaign: Campaign, tmp_path: Path) -> None:
    (tmp_path / "histories").mkdir()
    names: list[str] = []
    for worker, regions in FOUR.items():
        plan = plan_of(campaign, tmp_path, worker, regions, reads=worker.endswith("-1"))
        readers_of(plan, WallClock(), is_final=False)
        names += [name for name, *_ in plan.readers()]
    assert Counter(name.rpartition("-")[2] for name in names) == {"us": 4, "eu": 4}
    assert sorted(names) == sorted(path.stem for path in (tmp_path / "histories").iterdir())
    assert {name.partition("-deliver")[0] for name in names} == {"us-1", "eu-1"}


@pytest.mark.parametrize("reads", [True, False])
def test_a_plan_says_whether_its_worker_reads(reads: bool, campaign: Campaign, tmp_path: Path) -> None:
    (tmp_path / "endpoints.json").write_text("{}")
    places = {"campaign": tmp_path / "unit.toml", "endpoints": tmp_path / "endpoints.json", "folder": tmp_path}
    file = written(tmp_path / "plan.json", regions=["us"], worker="us-2", reads=reads, **places)
    assert bool(read_plan(file, {}).readers()) == reads


@pytest.mark.parametrize("worker", ["us", "us-2", "us-east-1-2", "ip-10-0-0-7"])
def test_the_region_of_a_publisher_may_have_hyphens(worker: str) -> None:
    name = publisher_name(worker, 3, "us-east-1")
    assert (row_of(f"{name}:7"), origin_of(name)) == (3, "us-east-1")
