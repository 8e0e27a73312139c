"""`python -m loadtest.campaign.gossip`: a pool of many members; how fast news, joins and deaths get around.

Members live in a few processes; one process of one member and one of a fifth of all are killed with -9. No false
failure may happen: a member is told failed that lives, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import secrets
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from loadtest.campaign.mesh import CampaignFailed
from loadtest.scratch import scratch_directory

LOOK_S: Final = 0.02
LINE_BYTES_MAX: Final = 1 << 20
SURVIVOR_PROCESSES: Final = 3


@dataclass(slots=True)
class Change:
    """What a member was told, and when."""

    at: float
    member: str
    change: str
    name: str


@dataclass(slots=True)
class PoolPart:
    """One process with some of the members."""

    names: list[str]
    process: asyncio.subprocess.Process
    changes: list[Change]
    answers: asyncio.Queue[Any] = field(default_factory=asyncio.Queue)
    reading: asyncio.Task[None] | None = None

    @classmethod
    async def launch(cls, names: list[str], changes: list[Change]) -> PoolPart:
        """Start the process, not its members."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "mesh.gossip.pool_process"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=LINE_BYTES_MAX,
        )
        part = cls(names, process, changes)
        part.reading = asyncio.create_task(part._read())
        return part

    async def _read(self) -> None:
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            row = json.loads(line)
            if "answer" in row:
                self.answers.put_nowait(row["answer"])
            else:
                self.changes.append(Change(**row))

    async def ask(self, **command: Any) -> Any:
        """Send one command and return its answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command).encode() + b"\n")
        await self.process.stdin.drain()
        async with asyncio.timeout(60):
            return await self.answers.get()

    async def kill(self) -> None:
        """Kill it with -9."""
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()
        if self.reading is not None:
            await self.reading


@dataclass(slots=True)
class Pool:
    """All processes, and everything that was told."""

    options: argparse.Namespace
    keyring: str
    changes: list[Change] = field(default_factory=list)
    parts: list[PoolPart] = field(default_factory=list)
    ports: dict[str, int] = field(default_factory=dict)
    seed: str = ""

    async def start(self, groups: Iterable[list[str]]) -> float:
        """Start members, all processes at once; returns when the last one was started (monotonic)."""
        new = [await PoolPart.launch(names, self.changes) for names in groups]
        first = not self.parts
        self.parts += new
        if first:
            self.seed = (await self._begin(new[0], new[0].names[:1]))[0]
        rest = [(part, part.names[1:] if first and part is new[0] else part.names) for part in new]
        await asyncio.gather(*(self._begin(part, names) for part, names in rest))
        return time.monotonic()

    async def _begin(self, part: PoolPart, names: list[str]) -> list[str]:
        seeds = [self.seed] if self.seed else []
        found: list[str] = await part.ask(
            do="start",
            names=names,
            ports=[self.ports.get(name, 0) for name in names],
            seeds=seeds,
            profile=self.options.profile,
            keyring=self.keyring,
        )
        self.ports |= {name: int(text.rpartition(":")[2]) for name, text in zip(names, found, strict=True)}
        return found

    def names(self) -> list[str]:
        """Return the members of processes that run."""
        return [name for part in self.parts if part.process.returncode is None for name in part.names]

    def told(self, change: str, name: str, since: float) -> dict[str, float]:
        """Return member -> when it was first told this, after `since`."""
        found: dict[str, float] = {}
        for row in self.changes:
            if row.at >= since and row.change == change and row.name == name:
                found.setdefault(row.member, row.at)
        return found

    async def all_told(self, change: str, names: Iterable[str], since: float) -> dict[str, dict[str, float]]:
        """Wait until every other living member was told this of every name."""
        wanted = list(names)
        living = set(self.names())

        def done() -> bool:
            return all(living - {name} <= self.told(change, name, since).keys() for name in wanted)

        await wait_for(done, self.options.patience_s, f"everybody is told {change} of {len(wanted)} members")
        return {name: self.told(change, name, since) for name in wanted}

    async def all_alive(self, patience_s: float) -> float:
        """Wait until every member sees as many alive as there are; returns when (monotonic)."""
        living = self.names()
        deadline = time.monotonic() + patience_s
        while True:
            seen = [
                count
                for part in self.parts
                if part.process.returncode is None
                for count in (await part.ask(do="counts"))["alive"].values()
            ]
            if len(seen) == len(living) and all(count == len(living) for count in seen):
                return time.monotonic()
            if time.monotonic() > deadline:
                raise CampaignFailed(f"not all see {len(living)} members alive after {patience_s:g} s: {sorted(seen)}")
            await asyncio.sleep(LOOK_S)

    async def close(self) -> None:
        """End every process."""
        await asyncio.gather(*(part.kill() for part in self.parts))


async def wait_for(done: Callable[[], bool], patience_s: float, what: str) -> None:
    """Wait until `done` (CampaignFailed: not within `patience_s`)."""
    deadline = time.monotonic() + patience_s
    while not done():
        if time.monotonic() > deadline:
            raise CampaignFailed(f"not within {patience_s:g} s: {what}")
        await asyncio.sleep(LOOK_S)


async def measure(pool: Pool, options: argparse.Namespace) -> list[tuple[str, str]]:
    """Run everything; return (what, how long) rows."""
    names = [f"m{number}" for number in range(options.members)]
    fifth = max(1, options.members // 5)
    lonely, doomed, others = names[1:2], names[2 : 2 + fifth], [names[0], *names[2 + fifth :]]
    groups = [others[n::SURVIVOR_PROCESSES] for n in range(SURVIVOR_PROCESSES)]
    rows: list[tuple[str, str]] = []
    began = time.monotonic()
    started = await pool.start([*groups, lonely, doomed])
    whole = await pool.all_alive(options.patience_s)
    rows.append(("members started through one seed", f"{len(names)} in {started - began:.1f} s"))
    rows.append(("all know all, after the last one's start", f"{max(0.0, whole - started):.2f} s"))
    rows += await _steady(pool, options)
    rows.append(("tag change to the median / last member", await _tags(pool, others, options)))
    rows.append(("user event to the last member (worst)", await _events(pool, others, options)))
    rows.append(("kill -9 of one: first tells / all know", await _killed(pool, lonely)))
    rows.append((f"kill -9 of {fifth} at once: all know all", await _killed(pool, doomed)))
    began = time.monotonic()
    await pool.start([lonely, doomed])
    whole = await pool.all_alive(options.patience_s)
    rows.append((f"{fifth + 1} started again: all alive", f"{whole - began:.1f} s"))
    return rows


async def _counts(pool: Pool) -> tuple[float, float, float]:
    answers = [await part.ask(do="counts") for part in pool.parts]
    return (
        sum(answer["counts"].get("packets_out", 0) for answer in answers),
        sum(answer["bytes_out"] for answer in answers),
        sum(answer["cpu_s"] for answer in answers),
    )


async def _steady(pool: Pool, options: argparse.Namespace) -> list[tuple[str, str]]:
    await asyncio.sleep(options.settle_s)
    before = await _counts(pool)
    await asyncio.sleep(options.steady_s)
    packets, size, cpu_s = (
        (new - old) / options.steady_s for new, old in zip(await _counts(pool), before, strict=True)
    )
    members = options.members
    rates = f"{packets / members:.1f} packets, {size / members:.0f} bytes"
    return [
        ("steady, per member and second, out", rates),
        ("steady, CPU of all members together", f"{100 * cpu_s:.1f} %"),
    ]


async def _tags(pool: Pool, members: list[str], options: argparse.Namespace) -> str:
    took: list[float] = []
    for number in range(options.rounds):
        name = members[number % len(members)]
        began = time.monotonic()
        await _part_of(pool, name).ask(do="tags", name=name, tags={"role": "broker", "round": str(number)})
        told = await pool.all_told("updated", [name], began)
        took += [at - began for at in told[name].values()]
    return f"{statistics.median(took):.2f} / {max(took):.2f} s"


async def _events(pool: Pool, members: list[str], options: argparse.Namespace) -> str:
    worst: list[float] = []
    for number in range(options.rounds):
        name, event = members[number % len(members)], f"event-{number}"
        began = time.monotonic()
        await _part_of(pool, name).ask(do="event", name=name, event=event)
        living = set(pool.names())

        def done(event: str = event, began: float = began, living: set[str] = living) -> bool:
            return living <= pool.told("event", event, began).keys()

        await wait_for(done, options.patience_s, f"everybody hears {event}")
        worst.append(max(pool.told("event", event, began).values()) - began)
    return f"{max(worst):.2f} s"


async def _killed(pool: Pool, names: list[str]) -> str:
    began = time.monotonic()
    await _part_of(pool, names[0]).kill()
    pool.parts = [part for part in pool.parts if part.process.returncode is None]
    told = await pool.all_told("failed", names, began)
    every = [at - began for times in told.values() for at in times.values()]
    return f"{min(every):.1f} / {max(every):.1f} s"


def _part_of(pool: Pool, name: str) -> PoolPart:
    return next(part for part in pool.parts if name in part.names)


async def run(options: argparse.Namespace, console: Console) -> int:
    """Return the exit code."""
    with scratch_directory("georelay-gossip-") as scratch:
        keyring = scratch / "keyring"
        if options.encrypted:
            descriptor = os.open(keyring, os.O_WRONLY | os.O_CREAT, 0o600)
            with os.fdopen(descriptor, "w") as file:
                json.dump([base64.b64encode(secrets.token_bytes(32)).decode()], file)
        pool = Pool(options, str(keyring) if options.encrypted else "")
        try:
            rows = await measure(pool, options)
        finally:
            await pool.close()
    killed = {"m1", *(f"m{number}" for number in range(2, 2 + max(1, options.members // 5)))}
    false = [row for row in pool.changes if row.change == "failed" and row.name not in killed]
    cipher = "AES-GCM" if options.encrypted else "plain"
    table = Table(title=f"gossip: {options.members} members, profile {options.profile}, {cipher}", title_justify="left")
    table.add_column("what")
    table.add_column("measured", justify="right")
    for row in (*rows, ("false failures", str(len(false)))):
        table.add_row(*row)
    console.print(table)
    return 1 if false else 0


def main() -> int:
    """Run it; 2 when nothing could be measured."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.campaign.gossip", description=__doc__)
    parser.add_argument("--members", type=int, default=50, help="default 50")
    parser.add_argument("--profile", default="lan", help="lan (default), wan, tuned-wan or local")
    parser.add_argument("--plain", dest="encrypted", action="store_false", help="without keys")
    parser.add_argument("--rounds", type=int, default=8, help="tag changes and events (default 8)")
    parser.add_argument("--settle-s", type=float, default=10, help="before the steady state is measured (default 10)")
    parser.add_argument("--steady-s", type=float, default=20, help="how long it is (default 20)")
    parser.add_argument("--patience-s", type=float, default=120, help="for anything to get around (default 120)")
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
