"""`python -m loadtest.campaign`: faults under load on this machine, by programs; each has options of its own.

flood           100,000 connection attempts, then slow clients
bit-flip        one bit of one file of a broker, every kind of file in turn
queue           consumers of a work queue die and are killed, its coordinator too
transactions    kill -9 of brokers and clients while transactions are written
groups          consumer groups of all clients; members and coordinator come and go
region-add      a fourth region joins and is filled under load
upgrade         brokers of an older version are replaced one by one
gossip          a pool of fifty members: how fast news and deaths get around

Whatever can be said as data is: `georelay load list` has kills of leaders and regions, cut links, brokers that come and
go, lost disks, moves of much data and the report's accounts.
Foreign producers (confluent-kafka, idempotent, acks=all) send meanwhile. Exit code 1 when an acknowledged record
is missing, a record is there twice or out of order, or a region or a replica differs; 2 when it could not run.
"""

from __future__ import annotations

import argparse
import sys
from typing import Final

from loadtest.campaign import bit_flip, flood, gossip, group_runs, queue, region_add, transactions, upgrade
from loadtest.campaign.command_line import new_parser

CAMPAIGNS: Final = {
    "bit-flip": bit_flip.main,
    "flood": flood.main,
    "gossip": gossip.main,
    "groups": group_runs.main,
    "queue": queue.main,
    "region-add": region_add.main,
    "transactions": transactions.main,
    "upgrade": upgrade.main,
}


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = new_parser("campaign", __doc__)
    parser.add_argument("campaign", choices=CAMPAIGNS)
    return parser


def main() -> int:
    """Run it."""
    campaign = parser().parse_args(sys.argv[1:2]).campaign
    return CAMPAIGNS[campaign](sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
