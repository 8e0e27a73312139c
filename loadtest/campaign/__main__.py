"""`python -m loadtest.campaign`: faults under load on this machine, again and again, and a table of what was lost.

grow            one region of one broker becomes three, then five, then three, then one
replace-disk    kill -9 of one of three brokers, its data directory deleted, started again
reassign        all replicas of a topic that holds much move from one broker to another
flood           100,000 connection attempts, then slow clients (options: `flood --help`)
bit-flip        one bit of one file of a broker, every kind of file in turn (options: `bit-flip --help`)
queue           consumers of a work queue die and are killed, its coordinator too (options: `queue --help`)
transactions    kill -9 of brokers and clients while transactions are written (options: `transactions --help`)
groups          consumer groups of all clients; members and coordinator come and go (options: `groups --help`)
region-add      a fourth region joins and is filled under load (options: `region-add --help`)
gossip          a pool of fifty members: how fast news and deaths get around (options: `gossip --help`)

Kills of leaders and regions, cut links and the report's accounts are data: `georelay load list` has them.
Foreign producers (confluent-kafka, idempotent, acks=all) send meanwhile. Exit code 1 when an acknowledged record
is missing, a record is there twice or out of order, or a region or a replica differs; 2 when it could not run.
"""

from __future__ import annotations

import argparse
import sys
from typing import Final

from rich.console import Console

from loadtest.campaign import bit_flip, flood, gossip, group_runs, queue, region_add, transactions, upgrade
from loadtest.campaign.command_line import carry_out, new_parser
from loadtest.campaign.membership_runs import MEMBERSHIP_RUNS, Work
from loadtest.campaign.phases_table import print_report
from loadtest.scratch import scratch_directory

OTHERS: Final = {
    "bit-flip": bit_flip.main,
    "flood": flood.main,
    "gossip": gossip.main,
    "groups": group_runs.main,
    "queue": queue.main,
    "region-add": region_add.main,
    "transactions": transactions.main,
    "upgrade": upgrade.main,
}


async def run_work(options: argparse.Namespace, console: Console) -> int:
    """Run one campaign about brokers that come and go; return the exit code."""

    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False)

    exact = True
    for _ in range(options.runs):
        with scratch_directory("georelay-campaign-", options.scratch) as scratch:
            work = Work(
                directory=scratch,
                say=say,
                per_second=options.rate,
                partitions=options.partitions,
                quiet_seconds=options.quiet_seconds,
                bulk_bytes=options.bulk_mib << 20,
                bulk_bytes_per_s=options.bulk_mb_per_s * 1_000_000,
            )
            report = await MEMBERSHIP_RUNS[options.campaign](work)
        print_report(report, console)
        exact = exact and report.is_exact
    return 0 if exact else 1


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = new_parser("campaign", __doc__)
    parser.add_argument("campaign", choices=[*MEMBERSHIP_RUNS, *OTHERS])
    parser.add_argument("--runs", type=int, default=1, help="how often (default 1)")
    parser.add_argument("--rate", type=float, default=1_000, help="records per second (default 1000)")
    parser.add_argument("--partitions", type=int, default=4, help="of each topic (default 4)")
    parser.add_argument("--quiet-seconds", type=float, default=5, help="measured between changes (default 5)")
    parser.add_argument("--bulk-mib", type=int, default=1024, help="what reassign moves (default 1024)")
    parser.add_argument("--bulk-mb-per-s", type=int, default=0, help="how fast it may (default: what brokers do)")
    return parser


def main() -> int:
    """Run it."""
    if sys.argv[1:2] and sys.argv[1] in OTHERS:
        return OTHERS[sys.argv[1]](sys.argv[2:])
    options = parser().parse_args()
    if options.runs < 1 or options.rate <= 0:
        parser().error("--runs and --rate must be positive")
    if options.partitions < 1 or options.bulk_mib < 1 or options.bulk_mb_per_s < 0:
        parser().error("--partitions and --bulk-mib must be positive and --bulk-mb-per-s not negative")
    return carry_out(run_work, options)


if __name__ == "__main__":
    sys.exit(main())
