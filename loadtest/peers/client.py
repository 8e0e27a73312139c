"""One client of a run, in a process of its own: `python -m loadtest.peers.client PROTOCOL ROLE`, its order on stdin.

PROTOCOL is kafka, nats or amqp; ROLE is create or leaders (of topics), produce or consume. The order is one line of
JSON: servers, topics, end_ns (monotonic, when to give up) and, for a producer, the load; for a consumer, how many
records to expect; for create, the settings. A consumer prints `ready` when it misses nothing any more. The result is
one line of JSON at the end, with the CPU it used.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from typing import Any, Final

from loadtest.peers.ledger_core import Deliveries
from loadtest.peers.schedule_core import Load
from loadtest.quantile_core import quantile


def produce(client: Any, order: dict[str, Any]) -> dict[str, Any]:
    """Send the load of an order and return the producer's book."""
    load = Load(**order["load"])
    began_ns = time.monotonic_ns()
    ledger = client.produce(order["servers"], load, order["end_ns"])
    told = {
        "lag_p99_ms": quantile(ledger.lags_ns, 0.99, none=0) / 1e6,
        "sent_again": ledger.sent_again,
        "seconds": (time.monotonic_ns() - began_ns) / 1e9,
    }
    if load.rate_per_s:
        return {**told, "sent": load.count, "acknowledged": sorted(ledger.acknowledged)}
    return {**told, "sent": len(ledger.acknowledged) + ledger.open, "acknowledged_count": len(ledger.acknowledged)}


def consume(client: Any, order: dict[str, Any]) -> dict[str, Any]:
    """Read until as many as expected have come, or until it is time to give up."""
    book = Deliveries(from_ns=time.monotonic_ns(), expected=order["expected"], end_ns=order["end_ns"])

    def ready() -> None:
        sys.stdout.write("ready\n")
        sys.stdout.flush()

    client.consume(order["servers"], order["topics"], ready, book)
    return {"rows": book.rows}


def create(client: Any, order: dict[str, Any]) -> dict[str, Any]:
    """Make topics."""
    client.create(order["servers"], order["topics"], order["settings"])
    return {}


def leaders(client: Any, order: dict[str, Any]) -> dict[str, Any]:
    """Ask who leads topics: addresses or names, as the protocol has them."""
    return {"leaders": client.leaders(order["servers"], order["topics"])}


ROLES: Final = {"create": create, "leaders": leaders, "produce": produce, "consume": consume}


def main() -> None:
    """Run the client that the arguments name."""
    protocol, role = sys.argv[1:]
    client = importlib.import_module(f"loadtest.peers.{protocol}_client")
    order = json.loads(sys.stdin.readline())
    result = ROLES[role](client, order)
    sys.stdout.write(json.dumps({**result, "cpu_s": time.process_time()}) + "\n")


if __name__ == "__main__":
    main()
