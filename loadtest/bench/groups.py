"""What a consumer group costs: single records to three members that commit, and commits alone.

Latency: three members over twelve partitions, each with automatic commits once per second, in turns with three
consumers by assignment that commit nothing. Commits: OffsetCommit of one partition and of twelve, one after the other
and of many groups at once; what the brokers use without any commit is measured before and taken off.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from georelay.client.broker_connection import BrokerConnection
from georelay.wire.api import ApiKey
from georelay.wire.group_membership import FindCoordinatorRequest
from georelay.wire.group_offsets import OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic
from loadtest.bench import loads
from loadtest.bench.cluster import clusters_of
from loadtest.bench.machine import Meter
from loadtest.bench.measured import WARM_S, Way, in_turns, report
from loadtest.bench.mesh_asks import pids_of
from loadtest.bench.schedule_core import Load
from loadtest.mesh_process import MeshProcess
from loadtest.quantile_core import quantile

TOPIC: Final = "bench-groups"
PARTITIONS: Final = 12
MEMBERS: Final = 3
RUNS: Final = 3
SECONDS: Final = 10
COMMITS: Final = 1_000  # of each run, however many groups commit
GROUPS_AT_ONCE: Final = 24
IDLE_SECONDS: Final = 5
COORDINATOR_SECONDS_MAX: Final = 30
FIND_VERSION: Final = 3
COMMIT_VERSION: Final = 7


class _Cost(NamedTuple):
    cpu_s: float  # of the brokers, per 1,000 commits
    p50_ms: float
    p99_ms: float


def run(mesh: MeshProcess, *, runs: int = RUNS) -> list[str]:
    """Return report lines: medians of `runs` runs each."""
    load = Load(topics=[TOPIC], rate_per_s=1_000, seconds=WARM_S + SECONDS, partitions=PARTITIONS)
    loads.prepare(mesh, load)
    shares = [{"share": share, "of": MEMBERS, "sharers": MEMBERS} for share in range(MEMBERS)]
    member = {"role": "member", "group": TOPIC, "commit_ms": 1_000, "sharers": MEMBERS}
    ways = {
        f"{MEMBERS} consumers by assignment, no commits": Way(places=clusters_of(mesh), load=load, readers=shares),
        f"group of {MEMBERS}, each commits once per second": Way(
            places=clusters_of(mesh), load=load, readers=[member] * MEMBERS
        ),
    }
    return [*report(in_turns(ways, runs)), *asyncio.run(_commits(mesh, runs))]


async def _commits(mesh: MeshProcess, runs: int) -> list[str]:
    pids = pids_of(mesh)
    resting = Meter(pids)
    await asyncio.sleep(IDLE_SECONDS)
    idle_cpu = resting.share()
    committers = [
        await _Committer.connect(mesh.endpoints["regions"]["us"]["kafka"], f"commits-{number}")
        for number in range(GROUPS_AT_ONCE)
    ]
    ways = [(groups, partitions) for groups in (1, GROUPS_AT_ONCE) for partitions in (1, PARTITIONS)]
    costs: dict[tuple[int, int], list[_Cost]] = {way: [] for way in ways}
    for round_ in range(runs + 1):
        for groups, partitions in ways:
            cost = await _measure(committers[:groups], partitions, pids, idle_cpu)
            if round_:  # the first round makes the groups
                costs[groups, partitions].append(cost)
    for committer in committers:
        committer.close()
    lines = [_line_of(groups, partitions, rows) for (groups, partitions), rows in costs.items()]
    return [*lines, f"  taken off: {idle_cpu:.1%} of a core that the brokers use without commits"]


def _line_of(groups: int, partitions: int, costs: Sequence[_Cost]) -> str:
    cpu_s, p50_ms, p99_ms = (statistics.median(column) for column in zip(*costs, strict=True))
    return (
        f"OffsetCommit of {partitions:2} partition{'s' if partitions > 1 else ' '}, "
        f"{'one after the other ' if groups == 1 else f'of {groups} groups at once'}: "
        f"{cpu_s:.3f} CPU s per 1,000 commits summed over 3 brokers "
        f"(runs {', '.join(f'{cost.cpu_s:.3f}' for cost in costs)}), answered after p50 {p50_ms:.1f} ms, "
        f"p99 {p99_ms:.1f} ms"
    )


async def _measure(
    committers: Sequence[_Committer], partitions: int, pids: Mapping[str, int], idle_cpu: float
) -> _Cost:
    """Commit COMMITS times in all."""
    each = COMMITS // len(committers)
    meter = Meter(pids)
    took_ns = [
        row for rows in await asyncio.gather(*(one.commit(each, partitions) for one in committers)) for row in rows
    ]
    used = meter.cpu_s() - idle_cpu * meter.seconds
    return _Cost(used / len(took_ns) * 1e3, quantile(took_ns, 0.5, none=0) / 1e6, quantile(took_ns, 0.99, none=0) / 1e6)


class _Committer:
    """Commits for one group at its coordinator, one commit after the other, from outside of the group's protocol."""

    def __init__(self, connection: BrokerConnection, group: str) -> None:
        self._connection = connection
        self._group = group
        self._offset = 0

    @classmethod
    async def connect(cls, brokers: Sequence[str], group: str) -> _Committer:
        """Find the coordinator. Raises RuntimeError."""
        host, _, port = brokers[0].rpartition(":")
        asked = await BrokerConnection.dial(host, int(port))
        deadline = time.monotonic() + COORDINATOR_SECONDS_MAX
        try:
            while time.monotonic() < deadline:
                found = await asked.request(ApiKey.FIND_COORDINATOR, FIND_VERSION, FindCoordinatorRequest(key=group))
                if not found.error_code:
                    return cls(await BrokerConnection.dial(found.host, found.port), group)
                await asyncio.sleep(0.1)
        finally:
            asked.close()
        raise RuntimeError(f"group {group} has no coordinator: error {found.error_code}")

    async def commit(self, times: int, partitions: int) -> list[int]:
        """Commit `times` times and return how many ns each took. Raises RuntimeError."""
        took_ns = []
        for _ in range(times):
            self._offset += 1
            rows = [
                OffsetCommitRequestPartition(partition_index=row, committed_offset=self._offset)
                for row in range(partitions)
            ]
            request = OffsetCommitRequest(
                group_id=self._group, topics=(OffsetCommitRequestTopic(name=TOPIC, partitions=rows),)
            )
            began = time.monotonic_ns()
            answer = await self._connection.request(ApiKey.OFFSET_COMMIT, COMMIT_VERSION, request)
            took_ns.append(time.monotonic_ns() - began)
            errors = {row.error_code for topic in answer.topics for row in topic.partitions} - {0}
            if errors:
                raise RuntimeError(f"group {self._group} could not commit: errors {sorted(errors)}")
        return took_ns

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
