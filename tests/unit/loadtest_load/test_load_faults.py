"""Faults of a campaign: what is noted, and when."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from loadtest.campaign.mesh import CampaignFailed
from loadtest.child_process import ChildProcess
from loadtest.free_ports import free_ports
from loadtest.load import faults, homes
from loadtest.load import stage as stage_module
from loadtest.load.campaign import Fault, Topology
from loadtest.load.campaign_file import find, load
from loadtest.load.links import LinkedMesh
from loadtest.load.locust_processes import LocustProcesses, RunOptions
from loadtest.load.running_mesh import RunningMesh
from loadtest.load.stage import Stage
from loadtest.wan.wan_mesh import WanMesh


def mesh_of(folder: Path, regions: dict[str, Any], **more: Any) -> Any:
    """Return what a stage wants of a mesh."""
    told: dict[str, Any] = {"directory": folder, "data": folder / "mesh", "user": None, "ca": None, "headers": {}}
    told |= {"endpoints": {"regions": regions}, "endpoints_file": folder / "endpoints.json"}
    told |= {"scheme": "http", "ssl_context": None}
    return SimpleNamespace(**told | more)


async def test_a_fault_is_noted_once_it_is_done_and_once_it_is_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = tmp_path / "events.jsonl"
    seen: list[tuple[str, list[str]]] = []

    def noted() -> list[str]:
        return [json.loads(line)["what"] for line in events.read_text().splitlines()] if events.exists() else []

    @asynccontextmanager
    async def strike(*_: object) -> AsyncIterator[None]:
        seen.append(("breaking", noted()))
        yield
        seen.append(("healing", noted()))

    monkeypatch.setitem(faults.STRIKES, "stop", strike)
    stage = Stage(tmp_path, mesh_of(tmp_path, {"us": {}}))
    await stage.break_it(Fault(at_s=0, do="stop", what="us-1"))
    assert seen == [("breaking", []), ("healing", ["stop"])]
    assert noted() == ["stop", "healed"]


async def test_links_here_are_cut_once_between_two_regions_or_around_one(tmp_path: Path) -> None:
    mesh = LinkedMesh(tmp_path, regions=("us", "eu", "ap"), brokers_per_region=1)
    done: list[tuple[str, tuple[str, str]]] = []

    def watched(what: str, wire: tuple[str, str]) -> object:
        async def change() -> None:
            done.append((what, wire))

        return change

    for wire, forwarder in mesh.links.items():
        await forwarder.close()
        forwarder.cut = watched("cut", wire)  # type: ignore[assignment, method-assign]
        forwarder.heal = watched("heal", wire)  # type: ignore[assignment, method-assign]
    await mesh.cut("us", "eu")
    await mesh.cut("eu")
    assert done[:2] == [("cut", ("us", "eu-1")), ("cut", ("eu", "us-1"))]
    assert {wire for _, wire in done[2:]} == {("eu", "ap-1"), ("ap", "eu-1")}
    done.clear()
    await mesh.heal("us", "eu")
    await mesh.heal("us", "eu")
    assert len(done) == 2


class Told:
    """Admin listeners of brokers: each answers what is in `answers`, 503 for None, and counts its questions."""

    def __init__(self, folder: Path) -> None:
        self.answers: dict[str, dict[str, Any] | None] = {}
        self.asked: list[str] = []
        self.folder = folder
        self._runners: list[web.AppRunner] = []

    async def listen(self, broker: str) -> str:
        async def describe(_: web.Request) -> web.Response:
            self.asked.append(broker)
            answer = self.answers[broker]
            return web.json_response(answer, status=200 if answer else 503)

        async def homes_told(_: web.Request) -> web.Response:
            answer = self.answers[broker]
            return web.json_response({"homes": [{"home": "us"}] if answer else []}, status=200 if answer else 503)

        app = web.Application()
        app.router.add_get("/v1/topics/orders", describe)
        app.router.add_get("/v1/homes", homes_told)
        runner = web.AppRunner(app)
        await runner.setup()
        self._runners.append(runner)
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        return f"127.0.0.1:{runner.addresses[0][1]}"

    async def stage(self) -> Stage:
        (first,) = free_ports(1)
        admins = {"us": [f"127.0.0.1:{first}", await self.listen("us-2"), await self.listen("us-3")]}
        regions = {region: {"admin": addresses} for region, addresses in admins.items()}
        (self.folder / "mesh" / "run").mkdir(parents=True)
        return Stage(self.folder, mesh_of(self.folder, regions))

    async def close(self) -> None:
        for runner in self._runners:
            await runner.cleanup()


@pytest.fixture
async def told(tmp_path: Path) -> AsyncIterator[Told]:
    listeners = Told(tmp_path)
    yield listeners
    await listeners.close()


def leads(broker: int) -> dict[str, Any]:
    return {"partition_states": [{"leader": broker}]}


async def test_the_leader_is_asked_of_whoever_answers_though_others_are_down(told: Told) -> None:
    told.answers = {"us-2": None, "us-3": leads(1003)}
    assert await (await told.stage()).leader_of("orders") == "us-3"
    assert set(told.asked) == {"us-2", "us-3"}


async def test_a_leader_that_is_held_down_is_none_any_more(told: Told) -> None:
    told.answers = {"us-2": leads(1001), "us-3": leads(1003)}
    stage = await told.stage()
    stage.hold_file("us-1").touch()
    assert await stage.leader_of("orders") == "us-3"


async def test_the_leader_is_known_of_a_mesh_whose_processes_are_elsewhere(told: Told) -> None:
    told.answers = {"us-2": None, "us-3": leads(1003)}
    stage = await told.stage()
    stage._mesh.data = None
    assert await stage.leader_of("orders") == "us-3"


async def test_that_nobody_knows_a_leader_is_said_in_one_line(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_module, "LEADER_S", 0.01)
    told.answers = {"us-2": None, "us-3": leads(-1)}
    with pytest.raises(CampaignFailed, match=r"^orders has no leader \(for 0\.01 s\)$"):
        await (await told.stage()).leader_of("orders")


async def test_what_is_down_already_stays_down_and_cannot_be_stopped(told: Told) -> None:
    stage = await told.stage()
    ended = await asyncio.create_subprocess_exec(sys.executable, "-c", "")
    await ended.wait()
    (told.folder / "mesh" / "run" / "us-1.pid").write_text(str(ended.pid))
    assert stage.pids() == {}
    async with faults.STRIKES["kill"](stage, Fault(at_s=0, do="kill", what="us-1"), "us-1"):
        assert stage.hold_file("us-1").exists()
    assert not stage.hold_file("us-1").exists()
    with pytest.raises(CampaignFailed, match="us-1 is down and cannot be stopped"):
        async with faults.STRIKES["stop"](stage, Fault(at_s=0, do="stop", what="us-1"), "us-1"):
            pass


@pytest.mark.parametrize(
    ("fault", "change"),
    [
        (Fault(at_s=0, do="link-cut", what="us-eu"), ("cut", "us", "eu")),
        (Fault(at_s=0, do="link-cut", what="eu"), ("cut", "eu")),
        (Fault(at_s=0, do="link-one-way", what="eu-us"), ("cut", "eu", "us", "--one-way")),
        (Fault(at_s=0, do="link-slow", what="us-eu", ms=200), ("slow", "us", "eu", "--rtt", "200ms")),
        (Fault(at_s=0, do="link-loss", what="us-eu", percent=0.5), ("slow", "us", "eu", "--loss", "0.5%")),
        (
            Fault(at_s=0, do="link-cap", what="us-eu", mbit=50),
            ("slow", "us", "eu", "--rate", "50mbit", "--queue", "100ms"),
        ),
    ],
)
async def test_a_link_is_changed_as_the_test_bed_wants_it_and_healed(fault: Fault, change: tuple[str, ...]) -> None:
    done: list[tuple[str, ...]] = []

    async def wan(*words: str) -> None:
        done.append(words)

    stage: Any = SimpleNamespace(wan=wan)
    async with faults.STRIKES[fault.do](stage, fault, fault.what):
        assert done == [change]
    assert done[1:] == [("heal", *fault.what.split("-"))]


async def test_a_test_bed_is_noted_as_it_was_since_the_load_began(
    told: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lags = [[9, 7_000], [10, 1_500], [11, 900]]
    stat = {"router": {"lag_seconds_us": lags, "realtime": True}}
    mesh = WanMesh(tmp_path / "bed", brokers_per_region=1)
    monkeypatch.setattr(mesh, "wan", lambda *words: stat)
    monkeypatch.setattr(mesh, "congestion_control", lambda: "cubic")
    stage = await told.stage()
    await stage.note_bed(10 * 10**9 + 5)
    assert not (tmp_path / "bed.json").exists(), "this mesh is in no bed"
    monkeypatch.setattr(stage, "_mesh", mesh)
    await stage.note_bed(10 * 10**9 + 5)
    noted = json.loads((tmp_path / "bed.json").read_text())
    assert noted == {"lag_us": [1_500, 900], "realtime": True, "congestion_control": "cubic"}


async def test_workers_in_a_test_bed_have_the_network_of_their_region_and_reach_the_master_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched: dict[str, list[str]] = {}

    async def launch(process: ChildProcess, *words: str, **_: object) -> None:
        launched[process.name] = [*words]

    monkeypatch.setattr(ChildProcess, "launch", launch)
    mesh = WanMesh(tmp_path / "bed", brokers_per_region=1)
    bed = {"pid": 77, "networks": {"us": 5, "eu": 6, "ap": 7}, "plan": {"slot": 2}}
    monkeypatch.setattr(mesh, "wan", lambda *_: {"bed": bed})
    stage: Any = SimpleNamespace(bed=mesh, endpoints_file=tmp_path / "endpoints.json", settings={})
    (tmp_path / "began.json").write_text("{}")
    options = RunOptions(campaign_text="", out=tmp_path, workers_per_region=1)
    await LocustProcesses(load(find("cut-eu")), options, tmp_path, stage).start()
    assert list(launched) == ["master", "us", "eu", "ap"]
    assert "nsenter" not in launched["master"]
    assert launched["eu"][launched["eu"].index("nsenter") :][1:3] == ["--net=/proc/77/fd/6", "--"]
    for name, option in (("master", "--master-bind-host"), ("eu", "--master-host")):
        assert launched[name][launched[name].index(option) + 1] == "198.19.32.2"


async def test_who_is_not_root_is_told_so_before_a_test_bed_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 65_534)
    monkeypatch.setattr(stage_module, "_mesh_of", lambda *_: pytest.fail("it is made"))
    with pytest.raises(CampaignFailed, match="a campaign in a test bed needs root"):
        async with stage_module.meshed(load(find("wan-latency")), tmp_path):
            pass


class Powered:
    """A stage of three brokers, none of which is there."""

    elsewhere = None

    def __init__(self, folder: Path) -> None:
        self.rng = random.Random(1)
        self.killed: set[int] = set()
        self.done: list[str] = []
        self.folder = folder

    def pids(self) -> dict[str, int]:
        return {"us-1": 2**22 + 1, "us-2": 2**22 + 2, "eu-1": 2**22 + 3}  # beyond what this system gives

    def hold_file(self, name: str) -> Path:
        return self.folder / f"{name}.hold"

    def data_of(self, name: str) -> Path:
        return self.folder / name

    async def gone(self, name: str) -> Path:
        self.done.append(f"{name} is gone")
        return self.folder

    async def tell(self, name: str, **settings: bool | None) -> None:
        self.done.append(f"{name} {settings}")


@pytest.mark.parametrize(("do", "lies"), [("power-cut", {}), ("disk-lies", {"lying_syncs": True})])
async def test_power_is_taken_from_a_whole_region_whose_disks_forget(
    do: str, lies: dict[str, bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torn: list[str] = []

    async def tear(data: Path, _: int) -> str:
        torn.append(data.name)
        return data.name

    monkeypatch.setattr(faults, "_tear", tear)
    stage: Any = Powered(tmp_path)
    async with faults.STRIKES[do](stage, Fault(at_s=0, do=do), "us") as told:
        broken = {"volatile_writes": True, **lies}
        healed = dict.fromkeys(broken)
        assert stage.done[:2] == [f"us-1 {broken}", f"us-2 {broken}"]
        assert stage.done[2:] == ["us-1 is gone", f"us-1 {healed}", "us-2 is gone", f"us-2 {healed}"]
        assert stage.hold_file("us-1").exists() and stage.hold_file("us-2").exists()
        assert told == {"torn": torn} and bool(torn) is not bool(lies)
    assert stage.killed == {2**22 + 1, 2**22 + 2}
    assert not stage.hold_file("us-1").exists()


async def test_what_a_strike_finds_out_while_it_holds_is_noted_when_it_heals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @asynccontextmanager
    async def strike(*_: object) -> AsyncIterator[dict[str, Any]]:
        told: dict[str, Any] = {"begun": 1}
        yield told
        told["attempts"] = 7

    monkeypatch.setitem(faults.STRIKES, "flood", strike)
    stage = Stage(tmp_path, mesh_of(tmp_path, {"us": {}}))
    await stage.break_it(Fault(at_s=0, do="flood", what="us-1"))
    done, healed = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert (done["begun"], "attempts" in done) == (1, False)
    assert (healed["attempts"], "begun" in healed) == (7, False)


@pytest.mark.parametrize(("what", "broken"), [("any of us", "us-"), ("sealed-log of any of us", "sealed-log of us-")])
async def test_any_broker_of_a_region_is_the_same_one_for_the_same_seed(
    what: str, broken: str, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    struck: list[str] = []

    @asynccontextmanager
    async def strike(_: object, __: object, name: str) -> AsyncIterator[None]:
        struck.append(name)
        yield

    monkeypatch.setitem(faults.STRIKES, "kill", strike)
    stage = await told.stage()
    for _ in range(2):
        stage.rng = random.Random(7)
        await stage.break_it(Fault(at_s=0, do="kill", what=what))
    assert struck[0] == struck[1] and struck[0].startswith(broken)


async def test_what_runs_elsewhere_is_killed_and_started_by_commands_without_a_shell(tmp_path: Path) -> None:
    marks, script = tmp_path / "marks", tmp_path / "script.py"
    script.write_text("import sys; open(sys.argv[1], 'a').write(sys.argv[2])")
    commands = [f"{sys.executable} {script} {marks} '{word} {{region}}/{{broker}};'" for word in ("break", "mend")]
    endpoints = tmp_path / "endpoints.json"
    endpoints.write_text(json.dumps({"regions": {"us": {"admin": ["127.0.0.1:1"]}}}))
    topology = Topology(kind="endpoints", endpoints=str(endpoints), break_command=commands[0], mend_command=commands[1])
    stage = Stage(tmp_path, RunningMesh(topology))
    async with faults.STRIKES["region-loss"](stage, Fault(at_s=0, do="region-loss"), "us"):
        assert marks.read_text() == "break us/us-1;"
    assert marks.read_text() == "break us/us-1;mend us/us-1;"


async def test_a_running_mesh_is_broken_by_the_files_of_its_up_and_signed_in_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEORELAY_USER", "me:a:b")
    endpoints = tmp_path / "endpoints.json"
    endpoints.write_text(json.dumps({"regions": {"us": {"admin": ["127.0.0.1:1"]}}}))
    (tmp_path / "run").mkdir()
    sleeper = await asyncio.create_subprocess_exec(sys.executable, "-c", "import time; time.sleep(60)")
    (tmp_path / "run" / "us-1.pid").write_text(str(sleeper.pid))
    stage = Stage(tmp_path, RunningMesh(Topology(kind="endpoints", endpoints=str(endpoints), data=str(tmp_path))))
    async with faults.STRIKES["region-loss"](stage, Fault(at_s=0, do="region-loss"), "us"):
        assert await sleeper.wait() == -signal.SIGKILL
        assert (tmp_path / "run" / "us-1.hold").exists()
    assert not (tmp_path / "run" / "us-1.hold").exists()
    assert stage.signed_in == {"GEORELAY_USER": "me:a:b"}
    assert (stage.settings["sasl.username"], stage.settings["sasl.password"]) == ("me", "a:b")


async def test_a_running_mesh_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(CampaignFailed, match="nothing: no mesh there; `georelay up --endpoints FILE` writes it"):
        RunningMesh(Topology(kind="endpoints", endpoints=str(tmp_path / "nothing")))


async def test_a_lost_home_stays_lost_until_another_region_has_taken_over_and_gets_its_topic_back(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    homes_seen = iter(["us", "us", "eu", "eu", "us"])

    @asynccontextmanager
    async def strike(_: object, __: object, what: str) -> AsyncIterator[None]:
        done.append(f"{what} is lost")
        yield
        done.append("it is back")

    async def home_of(_: object, topic: str, *, but: str = "") -> str:
        done.append(f"home outside of {but or 'nowhere'}")
        return next(homes_seen)

    async def ready(_: object, region: str) -> None:
        done.append(f"{region} is ready")

    async def cli(*words: str) -> str:
        done.append(" ".join(words))
        return ""

    stage = await told.stage()
    monkeypatch.setitem(faults.STRIKES, "region-loss", strike)
    monkeypatch.setattr(homes, "home_of", home_of)
    monkeypatch.setattr(homes, "until_ready", ready)
    monkeypatch.setattr(stage, "cli", cli)
    await stage.break_it(Fault(at_s=0, do="region-loss", what="home of orders"))
    assert done == [
        "home outside of nowhere",
        "us is lost",
        *["home outside of us"] * 2,
        "it is back",
        "us is ready",
        *["home move orders us", "home outside of us"] * 2,
    ]
    events = [json.loads(line) for line in (told.folder / "events.jsonl").read_text().splitlines()]
    assert [(row["what"], row["of"]) for row in events] == [
        ("region-loss", "us"),
        ("healed", "us"),
        ("home back", "orders"),
    ]


async def test_a_home_that_nobody_takes_over_is_noted_and_the_region_comes_back(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def home_of(*_: object, **__: object) -> str:
        return "us"

    monkeypatch.setattr(homes, "MOVED_S", 0.0)
    monkeypatch.setattr(homes, "home_of", home_of)
    stage = await told.stage()
    await homes.until_moved(stage, "orders", "us")
    (event,) = [json.loads(line) for line in (told.folder / "events.jsonl").read_text().splitlines()]
    assert event["what"].startswith("no other region became home of orders")
