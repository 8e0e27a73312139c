"""`make crowd`: what 100,000 clients take at a gateway, with the tables of 63 other regions, and 10 million hostile
observations.

The liars have names and addresses of their own, some of them in the prefixes of honest clients, and say whatever a
client may say, over ten minutes; none of it may change what an honest client is answered, or which region it has.
"""

from __future__ import annotations

import argparse
import random
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gateway.routing.client_book_core import CLIENTS_MAX, ClientBook, ClientKey, Observation
from gateway.routing.distance_core import Estimate, Leg
from gateway.routing.far_book_core import REGIONS_MAX, FarBook
from mesh.distance.kernel_sample import KernelSample
from mesh.distance.prefix_core import Prefix
from mesh.distance.prefix_table_core import ROWS_MAX, PrefixDistance, PrefixTable

REGIONS: Final = ("us", "eu", "ap", "sa")
LEGS: Final = {name: Leg(rtt_ms=ms) for name, ms in zip(REGIONS, (0.3, 75.0, 190.0, 110.0), strict=True)}
HONEST: Final = 100
LIARS: Final = 150_000
LIES_S: Final = 600.0  # more than any memory of a client lasts without a question
ASK_EVERY_S: Final = 30.0
HAS: Final = "eu"
MEMORY_MB_MAX: Final = 64
WILD_MS: Final = (-1.0, 0.0, 0.001, 1.0, 9_999.0, 1e9, float("nan"), float("inf"))


def honest(number: int) -> ClientKey:
    """Return one of those who say what they measured."""
    return ClientKey(f"honest-{number}", f"10.{number}.0.9")


def lies(rng: random.Random, count: int) -> Iterator[tuple[ClientKey, list[Observation]]]:
    """Yield `count` observations of liars, four at a time."""
    for _ in range(0, count, 4):
        liar = rng.randrange(LIARS)
        # A sixth of them live beside honest ones, and some have an honest one's name at another address.
        address = f"10.{liar % HONEST}.0.{10 + liar % 240}" if liar % 6 == 0 else f"11.{liar >> 8 & 255}.{liar & 255}.1"
        name = f"honest-{liar % HONEST}" if liar % 7 == 0 else f"liar-{liar}"
        yield (
            ClientKey(name, address),
            [
                Observation(region=name, rtt_ms=rng.choice(WILD_MS), samples=rng.randrange(10), age_s=rng.randrange(4))
                for name in REGIONS
            ],
        )


def told_by(book: ClientBook, *, now_s: float) -> None:
    """Let every honest client connect and say what it measured."""
    book.know_regions(REGIONS)
    for number in range(HONEST):
        memory = book.memory(honest(number), now_s)
        memory.region = memory.region if now_s else HAS
        rtt_ms = 5.0 + number % 20
        book.saw(honest(number), KernelSample(srtt_ms=rtt_ms, min_rtt_ms=rtt_ms, last_ack_s=0), now_s)
        book.told(honest(number), [Observation(region="eu", rtt_ms=60.0 + number, samples=3)], now_s)


def answers(book: ClientBook, *, now_s: float) -> list[dict[str, Estimate]]:
    """Return what the honest clients, and newcomers of their prefixes, are answered by."""
    newcomers = [ClientKey("new", f"10.{number}.0.8") for number in range(HONEST)]
    clients = [*(honest(number) for number in range(HONEST)), *newcomers]
    return [book.estimates(client, LEGS, {}, now_s) for client in clients]


def hostile(values: int, *, seed: int, clients_max: int = CLIENTS_MAX) -> tuple[bool, float]:
    """Return whether nothing has changed for an honest client, which asks now and then, and the MB that takes."""
    before_kb = _resident_kb()
    book, rng = ClientBook(clients_max=clients_max), random.Random(seed)
    told_by(book, now_s=0.0)
    before, asked_s = answers(book, now_s=0.0), 0.0
    for number, (client, observations) in enumerate(lies(rng, values)):
        now_s = LIES_S * 4 * number / values
        if now_s - asked_s >= ASK_EVERY_S:
            told_by(book, now_s=now_s)
            asked_s = now_s
        book.told(client, observations, now_s)
    keeps = {book.remembered(honest(number)).region for number in range(HONEST)} == {HAS}
    return keeps and answers(book, now_s=LIES_S) == before, (_resident_kb() - before_kb) / 1024


def memory(clients: int) -> tuple[int, float]:
    """Return how many are remembered with all that may be known of each, and the MB that takes."""
    before_kb = _resident_kb()
    book = ClientBook()
    book.know_regions(REGIONS)
    for turn in range(6):
        for number in range(clients):
            key = ClientKey(f"client-{number}", f"10.{number >> 11}.{number >> 3 & 255}.{number & 7}")
            book.saw(key, KernelSample(srtt_ms=20, min_rtt_ms=20, last_ack_s=0), 2.0 * turn)
            if turn == 5:
                book.told(key, [Observation(region=name, rtt_ms=30, samples=3) for name in REGIONS], 2.0 * turn)
                book.memory(key, 2.0 * turn).region = "us"
    return len(book), (_resident_kb() - before_kb) / 1024


def tables() -> tuple[FarBook, float]:
    """Return full tables of all other regions that a mesh may have, as they come, and the MB that takes."""
    before_kb = _resident_kb()
    far = FarBook()
    for region in range(REGIONS_MAX - 1):
        rows = (PrefixDistance(Prefix(b"\x0a" + n.to_bytes(2, "big")), 20 + region, 6) for n in range(ROWS_MAX))
        far.took(f"region-{region}", PrefixTable.read(PrefixTable.of(rows).raw), 0.0)
    return far, (_resident_kb() - before_kb) / 1024


def _resident_kb() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() // 1024


def main() -> None:
    """Measure both; exit 1 when a goal is missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.routes.crowd", description=__doc__)
    parser.add_argument("--values", type=int, default=10_000_000)
    parser.add_argument("--clients", type=int, default=CLIENTS_MAX)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    remembered, taken_mb = memory(arguments.clients)
    print(
        f"{remembered:,} clients: {taken_mb:.1f} MB, {taken_mb * 1e6 / max(1, remembered):.0f} bytes each "
        f"(goal: {MEMORY_MB_MAX} MB for {CLIENTS_MAX:,})",
        flush=True,
    )
    far, tables_mb = tables()
    rows = sum(far.counts().values())
    print(f"{rows:,} prefixes of {len(far.counts())} regions: {tables_mb:.1f} MB", flush=True)
    taken_mb += tables_mb
    began_s = time.monotonic()
    same, liars_mb = hostile(arguments.values, seed=arguments.seed)
    what = "nobody else is answered differently" if same else "SOMEBODY ELSE IS ANSWERED DIFFERENTLY"
    took_s = time.monotonic() - began_s
    print(f"{arguments.values:,} hostile observations in {took_s:.0f} s, {liars_mb:.1f} MB: {what}")
    sys.exit(0 if same and max(taken_mb, liars_mb) <= MEMORY_MB_MAX else 1)


if __name__ == "__main__":
    main()
