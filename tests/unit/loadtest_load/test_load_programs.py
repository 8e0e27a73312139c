"""Programs beside the load: killed, started again, ended, and judged by what they did."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from loadtest.campaign.mesh import CampaignFailed
from loadtest.groups.verdict_core import Generation
from loadtest.history.history_file import HistoryWriter
from loadtest.history.operation import Kind
from loadtest.load import programs
from loadtest.load.campaign import Campaign, Fault, Programs, Stage, Topic, Users
from loadtest.load.faults import STRIKES
from loadtest.load.programs import PROGRAMS, Program, Told
from loadtest.load.programs_core import Leg, moved

CAMPAIGN = Campaign(
    name="unit",
    about="",
    topics=(Topic(name="paid", partitions=3), Topic(name="shipped", partitions=3)),
    stages=(Stage(seconds=10, users=1, rate=10),),
    users=(Users(kind="kafka", topics=("paid",)),),
)


class Sleeper(Program):
    """Does nothing for ever."""

    def command(self, name: str, number: int, start: int) -> tuple[str, ...]:
        return (sys.executable, "-c", "import time; time.sleep(600)")

    def words(self, name: str, number: int, start: int) -> tuple[str, ...]:
        return ()

    async def judged(self) -> list[Told]:
        return [{"what": "sleep", "wanted": "some", "found": "enough", "kept": True}]


@pytest.fixture
def stage(tmp_path: Path) -> Any:
    return SimpleNamespace(
        folder=tmp_path,
        regions=("us",),
        endpoints={"regions": {"us": {"kafka": ["one:1", "two:2"]}}, "gateway": {"http": ["gate:1"]}},
        rng=random.Random(1),
        campaign=CAMPAIGN,
        programs={},
        settings={},
    )


async def test_a_program_that_is_killed_is_started_again_and_what_came_of_it_is_kept(stage: Any) -> None:
    program = Sleeper(stage, Programs(kind="transformer", topics=("paid",), count=1))
    stage.programs["transformer"] = program
    await program.start()
    (process,) = program.processes
    await until(lambda: process.is_running)
    async with STRIKES["kill-client"](stage, Fault(at_s=0, do="kill-client"), "transformer"):
        await until(lambda: process.starts == 2 and process.is_running)
    await program.finish()
    assert not process.is_running
    (line,) = (stage.folder / "programs.jsonl").read_text().splitlines()
    assert json.loads(line)["found"] == "enough; killed 1 times, started 2 times"


async def until(is_so: Any) -> None:
    await asyncio.wait_for(_until(is_so), 30)


async def _until(is_so: Any) -> None:
    while not is_so():
        await asyncio.sleep(0.01)


def test_a_writer_that_starts_again_has_the_same_identity_and_another_name_and_history(stage: Any) -> None:
    writers = PROGRAMS["transactional-writer"](
        stage, Programs(kind="transactional-writer", topics=("paid", "shipped"), count=2)
    )
    first, second = (writers.words("program-w-0", 0, start) for start in (1, 2))
    assert first[:5] == ("one:1,two:2", "program-w-0", "program-w-0.1-us", "3", "paid,shipped")
    assert (second[1], second[2]) == ("program-w-0", "program-w-0.2-us")
    assert Path(first[5]).name != Path(second[5]).name


@pytest.mark.parametrize(
    ("cooked", "kept"), [([b"<a:1:7:>", b"<a:2:7:>"], True), ([b"<a:1:7:>"] * 2, False), ([b"<a:9:7:>"], False)]
)
async def test_a_pipeline_is_judged_by_what_went_in_and_what_came_out(
    cooked: list[bytes], kept: bool, stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = {"paid": [b"a:1:7:", b"a:2:7:"], "shipped": cooked}
    monkeypatch.setattr(programs, "read_all", lambda _, topic: stored[topic])
    monkeypatch.setattr(programs, "LOOK_S", 0.0)
    monkeypatch.setattr(programs, "DRAIN_S", 0.05)
    (line,) = await PROGRAMS["transformer"](stage, Programs(kind="transformer", topics=("paid", "shipped"))).judged()
    assert line["kept"] is kept


async def test_programs_have_settled_when_the_same_is_found_twice_and_is_enough(
    stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "LOOK_S", 0.0)
    found = iter([1, 1, 5, 6, 6, 7])

    async def look() -> int:
        return next(found)

    program = Sleeper(stage, Programs(kind="transformer", topics=("paid",)))
    assert await program.settled(look, lambda found: found >= 5, 60) == 6
    assert await program.settled(look, lambda found: False, -1) == 7, "there is no time left"


def group(stage: Any, client: str, assignor: str = "range") -> Any:
    stage.endpoints["regions"]["us"]["grpc"] = ["one:3"]
    row = Programs(kind="group-member", topics=("paid",), client=client, assignor=assignor)
    return PROGRAMS["group-member"](stage, row)


class NotThere(programs.Transformers):
    """Cannot be started."""

    def command(self, name: str, number: int, start: int) -> tuple[str, ...]:
        return ("/no/such/program",)


async def test_a_program_that_cannot_be_started_fails_the_run(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "read_all", lambda *_: [])
    monkeypatch.setattr(programs, "DRAIN_S", 10.0)
    monkeypatch.setattr(programs, "LOOK_S", 0.01)
    program = NotThere(stage, Programs(kind="transformer", topics=("paid", "shipped")))
    await program.start()
    await asyncio.wait((program.processes[0]._task,))
    with pytest.raises(FileNotFoundError, match="/no/such/program"):
        await program.finish()


async def test_a_queue_is_judged_when_it_is_empty_and_a_run_without_that_fails(
    stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = dict.fromkeys(("ready", "delayed", "leased", "dead_lettering", "dead_lettered"), 0)
    told = {**counts, "acknowledged": 1, "partitions": [{"cursor": 1}]}

    async def ask(*_: object) -> dict[str, Any]:
        return told

    stage.ask = ask
    stored = {"paid": [b"a:1:7:"], programs.LETTERS: []}
    monkeypatch.setattr(programs, "read_all", lambda _, topic: stored[topic])
    monkeypatch.setattr(programs, "LOOK_S", 0.0)
    monkeypatch.setattr(programs, "DRAIN_S", 0.2)
    consumers = PROGRAMS["queue-consumer"](stage, Programs(kind="queue-consumer", topics=("paid",)))
    (line,) = await consumers.judged()
    assert "1 never acknowledged" in line["found"] and not line["kept"], "no consumer wrote anything down"
    told["leased"] = 1
    with pytest.raises(CampaignFailed, match=r"not empty after 0\.2 s: .*'leased': 1"):
        await consumers.judged()


@pytest.mark.parametrize(("offsets", "kept"), [((0, 1), True), ((0,), False), ((0, 1, 1), True)])
async def test_a_group_is_judged_by_what_is_stored_what_members_did_and_what_the_coordinator_decided(
    offsets: tuple[int, ...], kept: bool, stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def generations(*_: object) -> list[Generation]:
        return [Generation(number=1, stored_ms=1, assigned={"m": frozenset({0, 1, 2})}, committed={})]

    monkeypatch.setattr(programs, "read_generations", generations)
    monkeypatch.setattr(programs, "ends_of", lambda *_: {("paid", 0): 2})
    monkeypatch.setattr(programs, "LOOK_S", 0.0)
    monkeypatch.setattr(programs, "GROUP_S", 0.05)
    members = group(stage, "aiokafka", "cooperative-sticky")
    assert members.row.name == "aiokafka cooperative-sticky"
    process: Any = SimpleNamespace(name="member", starts=2, log_file=stage.folder / "m.log", check=lambda: None)
    members.processes.append(process)
    held = {"e": "assigned", "t": 2, "member": "m", "partitions": [0, 1, 2]}
    reads = [{"e": "read", "t": 3, "member": "m", "partition": 0, "offsets": [offset]} for offset in offsets]
    (stage.folder / "member-1.events").write_text(json.dumps(held) + "\n")
    (stage.folder / "member-2.events").write_text("".join(json.dumps(row) + "\n" for row in (held, *reads)))
    (line,) = await members.judged()
    assert line["kept"] is kept, line


@pytest.mark.parametrize("is_told_to_leave", [True, False])
async def test_what_a_kcat_dropped_as_it_was_told_to_leave_is_not_waited_for_and_what_a_killed_one_did_is(
    is_told_to_leave: bool, stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def generations(*_: object) -> list[Generation]:
        return [Generation(number=1, stored_ms=1, assigned={"m": frozenset({0, 1, 2})}, committed={})]

    monkeypatch.setattr("loadtest.groups.member_process.shutil.which", lambda _: "/there")
    monkeypatch.setattr(programs, "read_generations", generations)
    monkeypatch.setattr(programs, "ends_of", lambda *_: {("paid", 0): 3})
    monkeypatch.setattr(programs, "LOOK_S", 0.0)
    monkeypatch.setattr(programs, "GROUP_S", 60.0 if is_told_to_leave else 0.05)
    members = group(stage, "kcat")
    for name, offset in (("first", 0), ("second", 2)):
        log = stage.folder / f"{name}.log"
        log.write_text(f"% Group g rebalanced (memberid m): assigned: paid [0]\n0 {offset}\n")
        process: Any = SimpleNamespace(name=name, log_file=log, is_running=name == "second", check=lambda: None)
        members.processes.append(process)
    if is_told_to_leave:
        members.told_to_leave.add("first")
    async with asyncio.timeout(20):
        (line,) = await members.judged()
    assert line["kept"] is is_told_to_leave, line
    assert ("1 dropped by kcat" in line["found"]) is is_told_to_leave


async def test_a_member_that_was_killed_has_to_become_one_again(stage: Any) -> None:
    members = group(stage, "aiokafka", "cooperative-sticky")
    process: Any = SimpleNamespace(name="member", starts=2, log_file=stage.folder / "log")
    members.processes.append(process)
    held = {"e": "assigned", "t": 2, "member": "m", "partitions": [0]}
    (stage.folder / "member-1.events").write_text(json.dumps(held) + "\n")
    assert [len(events) for events in members._all_events().values()] == [0, 1]


async def test_one_more_joins_and_the_oldest_leaves(stage: Any) -> None:
    program = Sleeper(stage, Programs(kind="transformer", topics=("paid",)))
    stage.programs["transformer"] = program
    await program.start()
    async with STRIKES["client-joins"](stage, Fault(at_s=0, do="client-joins"), "transformer"):
        await until(lambda: len(program.processes) == 2 and all(each.is_running for each in program.processes))
    async with STRIKES["client-leaves"](stage, Fault(at_s=0, do="client-leaves"), "transformer"):
        assert [each.is_running for each in program.processes] == [False, True]
    assert program.told_to_leave == {program.processes[0].name}
    await program.stop()


@pytest.mark.parametrize(
    ("legs", "missing", "again", "in_flight"),
    [
        ([Leg(0, [0, 1, 2])], 0, 0, 0),
        ([Leg(2, [0, 1]), Leg(0, [2])], 0, 0, 0),
        ([Leg(1, [0, 1]), Leg(0, [1, 2])], 0, 1, 1),
        ([Leg(1, [0, 1]), Leg(0, [0, 1, 2])], 0, 2, 1),
        ([Leg(2, [0, 1]), Leg(0, [])], 1, 0, 0),
        ([Leg(0, [0]), Leg(0, [0, 1]), Leg(0, [0, 1, 2])], 0, 3, 3),
    ],
)
def test_a_reader_that_moves_may_get_again_what_it_had_not_saved_its_position_behind(
    legs: list[Leg], missing: int, again: int, in_flight: int
) -> None:
    found = moved(legs, 3)
    assert (found["missing"], found["again"], found["in flight"]) == (missing, again, in_flight)


async def test_a_moving_reader_goes_on_in_another_region_by_what_it_saved_last(stage: Any, tmp_path: Path) -> None:
    stage.regions, stage.endpoints_file = ("us", "eu", "ap"), tmp_path / "endpoints.json"
    stage.campaign = replace(CAMPAIGN, topics=(Topic(name="paid", home="us"),))
    reader = PROGRAMS["moving-reader"](stage, Programs(kind="moving-reader", topics=("paid",)))

    def told(start: int) -> tuple[list[str], list[str]]:
        plan, topic, *positions = reader.words("r", 0, start)
        assert topic == "paid"
        return json.loads(Path(plan).read_text())["regions"], [Path(each).name for each in positions]

    assert told(1) == (["us"], ["r.1.position"])
    assert told(2) == (["ap"], ["r.2.position"]), "nothing was saved: from the first record on"
    (tmp_path / "r.1.position").write_text("{}")
    assert told(2) == (["ap"], ["r.2.position", "r.1.position"])
    assert told(3) == (["ap"], ["r.3.position", "r.1.position"])


@pytest.mark.parametrize(("second", "is_kept"), [([1, 2], True), ([0, 1, 2], False), ([2], False)])
async def test_a_moving_reader_is_judged_by_its_histories_and_positions(
    second: list[int], is_kept: bool, stage: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "histories").mkdir()
    for start, offsets in ((1, [0, 1] if is_kept else [0]), (2, second)):
        history = HistoryWriter(tmp_path / "histories" / f"r.{start}.history", f"r.{start}")
        number = history.invoke(Kind.FETCH, "paid/0", site="us", position=offsets[0])
        history.fetched(number, [(offset, f"a:{offset}") for offset in offsets])
    (tmp_path / "r.1.position").write_text('{"offset": 1, "epoch": 1}')
    monkeypatch.setattr(programs, "LOOK_S", 0.0)
    monkeypatch.setattr(programs, "GROUP_S", 0.2)
    monkeypatch.setattr(programs, "ends_of", lambda *_: {("paid", 0): 3})
    reader = PROGRAMS["moving-reader"](stage, Programs(kind="moving-reader", topics=("paid",)))
    reader.processes = [SimpleNamespace(name="r", starts=2, check=lambda: None)]  # type: ignore[list-item]
    (line,) = await reader.judged()
    assert line["kept"] is is_kept, line
