"""`python -m loadtest.campaign.gossip`: a pool of many members; how fast news, joins and deaths get around.

Members live in a few processes; one process of one member and one of a fifth of all are killed with -9. No false
failure may happen: a member is told failed that lives, not killed so far or back already, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import math
import secrets
import statistics
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

from rich.console import Console
from rich.table import Table

from loadtest.campaign.mesh import CampaignFailed, NotYet, until
from loadtest.scratch import scratch_directory

LOOK_S: Final = 0.02
LINE_BYTES_MAX: Final = 1 << 20
SURVIVOR_PROCESSES: Final = 3
ROUNDS: Final = 8  # of tag changes, and of events
SETTLE_S: Final = 10.0  # before the steady state is measured
STEADY_S: Final = 20.0
PATIENCE_S: Final = 120.0  # for anything to get around


class Change(NamedTuple):
    """What a member was told, and when."""

    at: float
    member: str
    change: str
    name: str


class PoolPart:
    """One process with some of the members. Use `launch`."""

    def __init__(self, names: list[str], process: asyncio.subprocess.Process, changes: list[Change]) -> None:
        self.names = names
        self.process = process
        self._changes = changes
        self._answers: asyncio.Queue[Any] = asyncio.Queue()
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def launch(cls, names: list[str], changes: list[Change]) -> PoolPart:
        """Start the process, not its members."""
        words = (sys.executable, "-m", "mesh.gossip.pool_process")
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe, limit=LINE_BYTES_MAX)
        return cls(names, process, changes)

    @property
    def is_running(self) -> bool:
        """Return whether nobody has killed it."""
        return self.process.returncode is None

    async def ask(self, **command: Any) -> Any:
        """Send one command and return its answer."""
        assert self.process.stdin is not None, "launch makes it"
        self.process.stdin.write(json.dumps(command).encode() + b"\n")
        await self.process.stdin.drain()
        async with asyncio.timeout(60):
            return await self._answers.get()

    async def kill(self) -> None:
        """Kill it with -9."""
        if self.is_running:
            self.process.kill()
        await self.process.wait()
        await self._reading

    async def _read(self) -> None:
        assert self.process.stdout is not None, "launch makes it"
        while line := await self.process.stdout.readline():
            row = json.loads(line)
            if "answer" in row:
                self._answers.put_nowait(row["answer"])
            else:
                self._changes.append(Change(**row))


class Pool:
    """All processes, and everything that was told."""

    def __init__(self, profile: str, keyring: Path) -> None:
        self.changes: list[Change] = []
        self.parts: list[PoolPart] = []
        self.killed_at: dict[str, float] = {}
        self.whole_at = 0.0  # when all saw all alive, the last time
        self._profile, self._keyring = profile, keyring
        self._ports: dict[str, int] = {}
        self._seed: list[str] = []

    async def start(self, groups: Iterable[list[str]]) -> float:
        """Start members, all processes at once, the very first one alone; returns when the last one was (monotonic)."""
        new = [await PoolPart.launch(names, self.changes) for names in groups]
        self.parts += new
        rest = {part: part.names for part in new}
        if not self._seed:
            self._seed = await self._begin(new[0], new[0].names[:1])
            rest[new[0]] = new[0].names[1:]
        await asyncio.gather(*(self._begin(part, names) for part, names in rest.items()))
        return time.monotonic()

    async def _begin(self, part: PoolPart, names: list[str]) -> list[str]:
        found: list[str] = await part.ask(
            do="start",
            names=names,
            ports=[self._ports.get(name, 0) for name in names],
            seeds=self._seed,
            profile=self._profile,
            keyring=str(self._keyring),
        )
        self._ports |= {name: int(text.rpartition(":")[2]) for name, text in zip(names, found, strict=True)}
        return found

    def names(self) -> list[str]:
        """Return the members of processes that run."""
        return [name for part in self.parts for name in part.names]

    def part_of(self, name: str) -> PoolPart:
        """Return the process of a member."""
        return next(part for part in self.parts if name in part.names)

    async def killed(self, name: str) -> None:
        """Kill the process of a member."""
        part = self.part_of(name)
        self.killed_at |= dict.fromkeys(part.names, time.monotonic())
        await part.kill()
        self.parts = [part for part in self.parts if part.is_running]

    async def all_told(self, change: str, names: Iterable[str], since: float) -> dict[str, dict[str, float]]:
        """Wait until every other living member was told this of every name; return when each was first, by name."""
        wanted, living = list(names), set(self.names())

        async def look() -> dict[str, dict[str, float]]:
            told: dict[str, dict[str, float]] = {name: {} for name in wanted}
            for row in self.changes:
                if row.at >= since and row.change == change and row.name in told:
                    told[row.name].setdefault(row.member, row.at)
            if any(living - {name} - of_name.keys() for name, of_name in told.items()):
                raise NotYet(f"not everybody is told {change} of {len(wanted)}")
            return told

        return await until(look, within_s=PATIENCE_S, every_s=LOOK_S)

    async def all_alive(self) -> float:
        """Wait until every member sees as many alive as there are; returns when (monotonic)."""
        count = len(self.names())

        async def look() -> float:
            seen = [alive for part in self.parts for alive in (await part.ask(do="counts"))["alive"].values()]
            if seen != [count] * count:
                raise NotYet(f"not all see {count} members alive: {sorted(seen)}")
            return time.monotonic()

        self.whole_at = await until(look, within_s=PATIENCE_S, every_s=LOOK_S)
        return self.whole_at

    def false_failures(self) -> int:
        """Return how often somebody was told failed who lived: not killed so far, or back and alive to all."""
        failed = [row for row in self.changes if row.change == "failed"]
        return sum(not self.killed_at.get(row.name, math.inf) <= row.at <= self.whole_at for row in failed)

    async def close(self) -> None:
        """End every process."""
        await asyncio.gather(*(part.kill() for part in self.parts))


async def measure(pool: Pool, members: int) -> list[tuple[str, str]]:
    """Run everything; return (what, how long) rows."""
    names = [f"m{number}" for number in range(members)]
    fifth = max(1, members // 5)
    lonely, doomed, others = names[1:2], names[2 : 2 + fifth], [names[0], *names[2 + fifth :]]
    groups = [others[n::SURVIVOR_PROCESSES] for n in range(SURVIVOR_PROCESSES)]
    rows: list[tuple[str, str]] = []
    began = time.monotonic()
    started = await pool.start([*groups, lonely, doomed])
    whole = await pool.all_alive()
    rows.append(("members started through one seed", f"{len(names)} in {started - began:.1f} s"))
    rows.append(("all know all, after the last one's start", f"{max(0.0, whole - started):.2f} s"))
    rows += await _steady(pool, members)
    rows.append(("tag change to the median / last member", await _tags(pool, others)))
    rows.append(("user event to the last member (worst)", await _events(pool, others)))
    rows.append(("kill -9 of one: first tells / all know", await _killed(pool, lonely)))
    rows.append((f"kill -9 of {fifth} at once: all know all", await _killed(pool, doomed)))
    began = time.monotonic()
    await pool.start([lonely, doomed])
    whole = await pool.all_alive()
    rows.append((f"{fifth + 1} started again: all alive", f"{whole - began:.1f} s"))
    return rows


async def _counts(pool: Pool) -> tuple[float, float, float]:
    answers = [await part.ask(do="counts") for part in pool.parts]
    return (
        sum(answer["counts"].get("packets_out", 0) for answer in answers),
        sum(answer["bytes_out"] for answer in answers),
        sum(answer["cpu_s"] for answer in answers),
    )


async def _steady(pool: Pool, members: int) -> list[tuple[str, str]]:
    await asyncio.sleep(SETTLE_S)
    before = await _counts(pool)
    await asyncio.sleep(STEADY_S)
    packets, size, cpu_s = ((new - old) / STEADY_S for new, old in zip(await _counts(pool), before, strict=True))
    rates = f"{packets / members:.1f} packets, {size / members:.0f} bytes"
    return [
        ("steady, per member and second, out", rates),
        ("steady, CPU of all members together", f"{100 * cpu_s:.1f} %"),
    ]


async def _tags(pool: Pool, members: list[str]) -> str:
    took: list[float] = []
    for number in range(ROUNDS):
        name = members[number % len(members)]
        began = time.monotonic()
        await pool.part_of(name).ask(do="tags", name=name, tags={"role": "broker", "round": str(number)})
        told = await pool.all_told("updated", [name], began)
        took += [at - began for at in told[name].values()]
    return f"{statistics.median(took):.2f} / {max(took):.2f} s"


async def _events(pool: Pool, members: list[str]) -> str:
    worst = 0.0
    for number in range(ROUNDS):
        name, event = members[number % len(members)], f"event-{number}"
        began = time.monotonic()
        await pool.part_of(name).ask(do="event", name=name, event=event)
        told = await pool.all_told("event", [event], began)
        worst = max([worst, *(at - began for at in told[event].values())])
    return f"{worst:.2f} s"


async def _killed(pool: Pool, names: list[str]) -> str:
    began = time.monotonic()
    await pool.killed(names[0])
    told = await pool.all_told("failed", names, began)
    every = [at - began for times in told.values() for at in times.values()]
    return f"{min(every):.1f} / {max(every):.1f} s"


async def run(options: argparse.Namespace, console: Console) -> int:
    """Return the exit code."""
    with scratch_directory("georelay-gossip-") as scratch:
        keyring = scratch / "keyring"
        keyring.touch(0o600)
        keyring.write_text(json.dumps([base64.b64encode(secrets.token_bytes(32)).decode()]))
        pool = Pool(options.profile, keyring)
        try:
            rows = await measure(pool, options.members)
        finally:
            await pool.close()
    false = pool.false_failures()
    table = Table(title=f"gossip: {options.members} members, profile {options.profile}, AES-GCM", title_justify="left")
    table.add_column("what")
    table.add_column("measured", justify="right")
    for row in (*rows, ("false failures", str(false))):
        table.add_row(*row)
    console.print(table)
    return 1 if false else 0


def main() -> int:
    """Run it; 2 when nothing could be measured."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.campaign.gossip", description=__doc__)
    parser.add_argument("--members", type=int, default=50, help="default 50")
    parser.add_argument("--profile", default="lan", help="lan (default), wan, tuned-wan or local")
    options = parser.parse_args()
    if options.members < 10:
        parser.error("--members must be at least 10")
    try:
        return asyncio.run(run(options, Console()))
    except (CampaignFailed, OSError) as error:
        print(f"nothing could be measured: {str(error) or repr(error)}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
