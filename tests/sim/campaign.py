"""Many seeds, in one process or in several; a seed that fails is noted and the others go on."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from pathlib import Path
from typing import Final

from tests.sim.runs import Outcome, lost, play
from tests.sim.tally import Tally

PROGRESS_S: Final = 10.0
TRACE_SHOWN: Final = 200  # rows
TRACES_MAX: Final = 5  # of so many failing seeds
# Seeds handed to a process at once: no more than some seconds of work.
CHUNK: Final = {"region": 4, "mesh": 1, "coordinator": 1, "homes": 1, "geo": 1}
AHEAD: Final = 3  # chunks per process that are on their way


def campaign(tally: Tally, seeds: Iterable[int], *, jobs: int, keep_in: Path | None, trace: bool = False) -> None:
    """Play `seeds` and add them up; says how it goes every PROGRESS_S seconds.

    Args:
        keep_in: file that always holds the newest tally.
        trace: also of good seeds.
    """
    begun, said = time.monotonic() - tally.wall_s, time.monotonic()
    try:
        for outcome in _outcomes(tally.world, iter(seeds), jobs=jobs, trace=trace):
            tally.add(outcome)
            if outcome.rule:
                _show(outcome, tally.world, with_trace=len(tally.failures) <= TRACES_MAX)
            elif trace:
                _say(*outcome.trace)
            if time.monotonic() - said >= PROGRESS_S:
                said = time.monotonic()
                tally.wall_s = said - begun
                _say(f"… {tally.line()}; goes on with SEED={tally.next_seed}")
                if keep_in is not None:
                    tally.save(keep_in)
    except KeyboardInterrupt:
        _say(f"interrupted; goes on with SEED={tally.next_seed}")
    tally.wall_s = time.monotonic() - begun
    if keep_in is not None:
        tally.save(keep_in)


def _outcomes(world: str, seeds: Iterator[int], *, jobs: int, trace: bool) -> Iterator[Outcome]:
    if jobs <= 1:
        yield from (play(world, seed, trace=trace) for seed in seeds)
        return
    pool = ProcessPoolExecutor(jobs)
    running: dict[Future[list[Outcome]], list[int]] = {}
    try:
        while True:
            while len(running) < AHEAD * jobs and (chunk := list(islice(seeds, CHUNK[world]))):
                running[pool.submit(_play_chunk, world, chunk, trace)] = chunk
            if not running:
                return
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            future = next(iter(done))
            chunk = running.pop(future)
            try:
                yield from future.result()
            except BrokenProcessPool:  # every chunk on its way is lost with it; alone, the culprit is known
                for each in (chunk, *running.values()):
                    yield from _one_by_one(world, each, trace)
                running.clear()
                pool.shutdown(wait=False)
                pool = ProcessPoolExecutor(jobs)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _play_chunk(world: str, seeds: list[int], trace: bool) -> list[Outcome]:
    return [play(world, seed, trace=trace) for seed in seeds]


def _one_by_one(world: str, seeds: list[int], trace: bool) -> Iterator[Outcome]:
    for seed in seeds:
        with ProcessPoolExecutor(1) as alone:
            try:
                yield from alone.submit(_play_chunk, world, [seed], trace).result()
            except BrokenProcessPool:
                yield lost(seed)


def _show(outcome: Outcome, world: str, *, with_trace: bool) -> None:
    if with_trace:
        _say(*outcome.trace[-TRACE_SHOWN:], *([outcome.crash] if outcome.crash else []))
    _say(f"VIOLATION seed {outcome.seed}: {outcome.rule}: {outcome.detail}")
    _say(f"again: make sim SEED={outcome.seed} RUNS=1 WORLD={world}", "")


def _say(*lines: str) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()
