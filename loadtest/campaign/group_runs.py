"""`python -m loadtest.campaign groups`: clients in groups; members and coordinator come and go, under load.

One region of three real brokers with --restart, a topic of 12 partitions, a confluent-kafka producer (acks=all,
idempotent). Each run is one client and one number of members: they start; one more joins; one is killed with -9; the
broker that coordinates the group is killed with -9 and comes back; a new member joins; one leaves. When everything
that the topic holds has been processed, what the members wrote down is compared with the log of the coordinator.

kafkajs needs node, and a folder in which `npm install kafkajs` was run, named by KAFKAJS; kcat needs kcat. What is
missing is said, and that client is left out.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from loadtest.campaign.command_line import carry_out, new_parser
from loadtest.campaign.mesh import CampaignFailed, ForeignProducer, create_topic, get_json, new_mesh, wait_until_whole
from loadtest.groups.coordinator_log import read_generations
from loadtest.groups.member_process import CLIENTS, GroupToJoin, MemberProcess, missing_for
from loadtest.groups.verdict_core import Assigned, Event, Place, Read, Verdict, judge
from loadtest.mesh_process import MeshProcess

REGION: Final = "us"
PARTITIONS: Final = 12
MIXED: Final = "mixed"  # every client in one group
STABLE_SECONDS_MAX: Final = 60
DRAIN_SECONDS_MAX: Final = 90


@dataclass(slots=True, kw_only=True)
class GroupRun:
    """One run and what came of it."""

    client: str
    members: int
    assignor: str
    verdict: Verdict
    longest_pause_ms: int
    done: list[str] = field(default_factory=list)


class Campaign:
    """One mesh for all runs; every run has a topic and a group of its own."""

    def __init__(self, mesh: MeshProcess, scratch: Path, *, rate: float, seconds: float) -> None:
        self._mesh = mesh
        self._scratch = scratch
        self._rate = rate
        self._seconds = seconds
        self._names = itertools.count(1)

    @property
    def _brokers(self) -> list[str]:
        return list(self._mesh.endpoints["regions"][REGION]["kafka"])

    async def run(self, client: str, members: int, assignor: str) -> GroupRun:
        """Run one client with one number of members."""
        name = f"run-{next(self._names)}-{client}-{members}"
        directory = self._scratch / name
        directory.mkdir()
        await wait_until_whole(self._mesh)
        await create_topic(self._mesh, name, home=REGION, partitions=PARTITIONS)
        told = GroupToJoin(
            bootstrap=",".join(self._brokers),
            url=f"grpc://{','.join(self._mesh.endpoints['regions'][REGION]['grpc'])}",
            group=name,
            topic=name,
            directory=directory,
            assignor=assignor,
        )
        team = Team(clients_of(client, members, _present()), told)
        producer = ForeignProducer("producer", directory)
        try:
            await producer.start(
                self._brokers, name, per_second=self._rate, seconds=self._seconds, partitions=PARTITIONS
            )
            for _ in range(members):
                await team.join()
            await producer.wait_for_acknowledgement()
            done = await self._shake(team, told)
            counts = await producer.finish()
            stored = await self._stored(name)
            if len(stored) < counts["acked"]:
                raise CampaignFailed(f"{counts['acked']} records acknowledged, {len(stored)} stored")
            await self._drain(team, stored)
        finally:
            await producer.stop()
            await team.end()
        events = team.events_by_process()
        generations = await read_generations(self._brokers, name, name)
        verdict = judge(stored=stored, events_by_process=events, generations=generations, partitions=PARTITIONS)
        return GroupRun(
            client=client,
            members=members,
            assignor=assignor,
            verdict=verdict,
            longest_pause_ms=longest_pause_ms([event for found in events.values() for event in found]),
            done=done,
        )

    async def _shake(self, team: Team, told: GroupToJoin) -> list[str]:
        """Let members and the coordinator come and go, evenly over the time of the load.

        Who joined is waited for: with short pauses a join, a death and the next join fall into one rebalance.
        """
        pause = self._seconds / 6
        done: list[str] = []
        await self._stable(told.group, len(team.running))
        await asyncio.sleep(pause)
        done.append(f"{await team.join()} joined")
        await asyncio.sleep(pause)
        await _all_are_members(team)
        done.append(f"{team.kill_one()} killed")
        await asyncio.sleep(pause)
        coordinator = (await self._described(told.group) or {}).get("coordinator", -1)
        if coordinator > 0:
            self._mesh.kill(f"{REGION}-{coordinator % 1000}")
            done.append(f"broker {coordinator} (coordinator) killed")
        await asyncio.sleep(pause)
        done.append(f"{await team.join()} joined")
        await asyncio.sleep(pause)
        await _all_are_members(team)
        done.append(f"{await team.leave_one()} left")
        return done

    async def _stable(self, group: str, members: int) -> None:
        deadline = time.monotonic() + STABLE_SECONDS_MAX
        while time.monotonic() < deadline:
            described = await self._described(group)
            if described and described["state"] == "Stable" and len(described["members"]) >= members:
                return
            await asyncio.sleep(0.1)
        raise CampaignFailed(f"group {group} has not {members} members after {STABLE_SECONDS_MAX} s")

    async def _described(self, group: str) -> dict[str, Any] | None:
        return await get_json(f"{self._mesh.gateway}/v1/groups/{group}?region={REGION}")

    async def _stored(self, topic: str) -> set[Place]:
        """Return every record of a topic: offsets are dense from 0."""
        stored: set[Place] = set()
        for partition in range(PARTITIONS):
            query = f"partition={partition}&offset=latest&region={REGION}"
            answer = await get_json(f"{self._mesh.gateway}/v1/topics/{topic}/records?{query}")
            if answer is None:
                raise CampaignFailed(f"the end of partition {partition} of {topic} cannot be read")
            stored |= {(partition, offset) for offset in range(answer["high_watermark"])}
        return stored

    async def _drain(self, team: Team, stored: set[Place]) -> None:
        """Wait until everything was processed, or for long enough: the verdict says what is missing."""
        deadline = time.monotonic() + DRAIN_SECONDS_MAX
        while time.monotonic() < deadline:
            read = {
                (event.partition, offset)
                for event in team.events()
                if isinstance(event, Read)
                for offset in event.offsets
            }
            if stored <= read:
                return
            await asyncio.sleep(0.5)


class Team:
    """The members of one run, of these kinds in turn."""

    def __init__(self, clients: Sequence[str], told: GroupToJoin) -> None:
        self._clients = itertools.cycle(clients)
        self._told = told
        self._all: list[MemberProcess] = []

    @property
    def running(self) -> list[MemberProcess]:
        """Return the members that have not ended."""
        return [member for member in self._all if member.is_running]

    async def join(self) -> str:
        """Start one more member; returns its name."""
        client = next(self._clients)
        member = MemberProcess(client, f"{client}-{len(self._all) + 1}", self._told)
        self._all.append(member)
        await member.start()
        return member.name

    def kill_one(self) -> str:
        """kill -9 the oldest member."""
        member = self.running[0]
        member.send(signal.SIGKILL)
        return member.name

    async def leave_one(self) -> str:
        """Let the oldest member leave."""
        member = self.running[0]
        await member.stop()
        return member.name

    async def end(self) -> None:
        """Let all leave."""
        await asyncio.gather(*(member.stop() for member in self._all))

    def events(self) -> list[Event]:
        """Return what all of them did."""
        return [event for found in self.events_by_process().values() for event in found]

    def events_by_process(self) -> dict[str, list[Event]]:
        """Return what each of them did, by name."""
        return {member.name: list(member.events()) for member in self._all}


def longest_pause_ms(events: Sequence[Event]) -> int:
    """Return the longest time in which no member processed anything, 0 where clients do not say when."""
    times = sorted(event.at_ms for event in events if isinstance(event, Read) and event.at_ms)
    return max((following - time_ms for time_ms, following in itertools.pairwise(times)), default=0)


async def _all_are_members(team: Team) -> None:
    """Wait until everybody who runs was assigned something once, STABLE_SECONDS_MAX at most: the verdict judges."""
    deadline = time.monotonic() + STABLE_SECONDS_MAX
    while time.monotonic() < deadline:
        events = team.events_by_process()
        if all(any(isinstance(event, Assigned) for event in events[member.name]) for member in team.running):
            return
        await asyncio.sleep(0.2)


def clients_of(client: str, members: int, present: Sequence[str]) -> list[str]:
    """Return the kinds of members in the order of their joining; a mixed group begins elsewhere with each size.

    The last kind is among the first `members` of every size, so that small groups are not always of the same kinds.
    """
    if client != MIXED:
        return [client]
    start = -members % len(present)
    return [*present[start:], *present[:start]]


def _present() -> list[str]:
    return [client for client in CLIENTS if not missing_for(client, os.environ)]


def table_of(runs: Sequence[GroupRun]) -> Table:
    """Return the table of the runs so far."""
    table = Table(title=f"groups over {PARTITIONS} partitions", title_justify="left")
    table.add_column("client")
    table.add_column("assignor")
    columns = ("members", "records", "processed", "missing", "again", "generations", "longest pause ms")
    for column in columns:
        table.add_column(column, justify="right")
    table.add_column("verdict")
    for run in runs:
        verdict = run.verdict
        table.add_row(
            run.client,
            run.assignor,
            str(run.members),
            f"{verdict.records:,}",
            f"{verdict.processed:,}",
            str(verdict.missing),
            f"{verdict.duplicates:,}",
            str(verdict.generations),
            f"{run.longest_pause_ms:,}" if run.longest_pause_ms else "-",
            "exact" if verdict.is_exact else verdict.problems[0],
        )
    return table


async def run_groups(options: argparse.Namespace, console: Console) -> int:
    """Return the exit code."""
    runs: list[GroupRun] = []
    scratch = Path(tempfile.mkdtemp(prefix="georelay-groups-", dir=options.scratch))
    async with new_mesh(scratch / "mesh", [REGION], "--restart") as mesh:
        campaign = Campaign(mesh, scratch, rate=options.rate, seconds=options.seconds)
        for client, members in itertools.product(options.clients, options.members):
            missing = "" if client == MIXED else missing_for(client, os.environ)
            if missing:
                console.print(f"{client} is left out: {missing}", markup=False)
                break
            for assignor in options.assignors if client == "confluent-kafka" else ["range"]:
                run = await campaign.run(client, members, assignor)
                runs.append(run)
                outcome = "exact" if run.verdict.is_exact else f"NOT EXACT: {run.verdict.problems}"
                console.print(f"{client} x{members} {assignor}: {outcome}; {', '.join(run.done)}", markup=False)
    console.print(table_of(runs))
    exact = bool(runs) and all(run.verdict.is_exact for run in runs)
    if exact:
        shutil.rmtree(scratch)
    else:
        console.print(f"what members and brokers wrote is in {scratch}", markup=False)
    return 0 if exact else 1


def main(arguments: Sequence[str]) -> int:
    """Run it; return the exit code: 1 when a rule was broken, 2 when it could not run."""
    parser = new_parser("campaign groups", __doc__)
    names = (*CLIENTS, MIXED)
    parser.add_argument("--clients", type=lambda text: text.split(","), default=list(names), help=",".join(names))
    parser.add_argument("--members", type=lambda text: [int(n) for n in text.split(",")], default=[1, 3, 5])
    parser.add_argument(
        "--assignors",
        type=lambda text: text.split(","),
        default=["range", "cooperative-sticky"],
        help="of confluent-kafka (default range,cooperative-sticky); the others use range",
    )
    parser.add_argument("--rate", type=float, default=500, help="records per second (default 500)")
    parser.add_argument("--seconds", type=float, default=20, help="how long is sent in each run (default 20)")
    options = parser.parse_args(arguments)
    unknown = set(options.clients) - set(names)
    if unknown or options.rate <= 0 or options.seconds < 6 or min(options.members) < 1:
        parser.error(f"clients are {', '.join(names)}; --rate and --members are positive, --seconds at least 6")
    return carry_out(run_groups, options, width_chars=150)
