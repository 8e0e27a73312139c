"""One client of a measurement, in a process of its own: `python -m loadtest.bench.client PROTOCOL ROLE`.

PROTOCOL is kafka, nats or amqp; ROLE is create or leaders (of topics), produce or consume, and for kafka also member
(of a group, with automatic commits) and count. Its order is one line of JSON on standard input: servers, topics, end_ns
(monotonic, when to give up), and what the role needs: a producer the load, a reader how many records to expect, from
when on they are due ("from_ns", else now) and what it is told besides ("reader"), create the settings. A reader prints
`ready` when it misses nothing any more. The result is one line of JSON at the end, with the CPU it used. How Kafka's
clients sign in is in the environment (loadtest.login).
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from loadtest.bench.ledger_core import Deliveries
from loadtest.bench.schedule_core import Load
from loadtest.quantile_core import quantile

MODULES: Final = {
    "kafka": "loadtest.bench.kafka_client",
    "nats": "loadtest.peers.nats_client",
    "amqp": "loadtest.peers.amqp_client",
}


def produce(client: Any, order: dict[str, Any]) -> dict[str, Any]:
    """Send the load of an order and return the producer's book."""
    load = Load(**order["load"])
    began_ns = time.monotonic_ns()
    ledger = client.produce(order["servers"], load, order["end_ns"])
    told = {
        "lag_p99_ms": quantile(ledger.lags_ns, 0.99, none=0) / 1e6,
        "sent_again": ledger.sent_again,
        "seconds": (time.monotonic_ns() - began_ns) / 1e9,
        "acknowledged_count": len(ledger.acknowledged),
        "sent": len(ledger.acknowledged) + ledger.open,
    }
    return told if load.window else told | {"sent": load.count, "acknowledged": sorted(ledger.acknowledged)}


def _reading(name: str) -> Callable[[Any, dict[str, Any]], dict[str, Any]]:
    """Return the role of a reader: it reads until as many as expected have come, or until it is time to give up."""

    def read(client: Any, order: dict[str, Any]) -> dict[str, Any]:
        from_ns = order.get("from_ns") or time.monotonic_ns()
        book = Deliveries(from_ns=from_ns, expected=order["expected"], end_ns=order["end_ns"])

        def ready() -> None:
            sys.stdout.write("ready\n")
            sys.stdout.flush()

        getattr(client, name)(order["servers"], order["topics"], ready, book, **order["reader"])
        return {"rows": book.rows, "count": book.count}

    return read


def create(client: Any, order: dict[str, Any]) -> dict[str, Any]:
    """Make topics."""
    client.create(order["servers"], order["topics"], order["settings"])
    return {}


def leaders(client: Any, order: dict[str, Any]) -> dict[str, Any]:
    """Ask who leads topics: addresses or names, as the protocol has them."""
    return {"leaders": client.leaders(order["servers"], order["topics"])}


ROLES: Final[dict[str, Callable[[Any, dict[str, Any]], dict[str, Any]]]] = {
    "create": create,
    "leaders": leaders,
    "produce": produce,
    **{name: _reading(name) for name in ("consume", "member", "count")},
}


def main() -> None:
    """Run the client that the arguments name."""
    protocol, role = sys.argv[1:]
    client = importlib.import_module(MODULES[protocol])
    order = json.loads(sys.stdin.readline())
    result = ROLES[role](client, order)
    sys.stdout.write(json.dumps({**result, "cpu_s": time.process_time()}) + "\n")
    sys.stdout.flush()
    os._exit(0)  # a consumer whose broker is gone does not end by itself


if __name__ == "__main__":
    main()
