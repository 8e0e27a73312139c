"""Words of trace rows: kinds of files, and what stands in their text columns. Light: the schemas are in schema.py.

A broker that writes no traces counts by these words too, and never loads Arrow.
"""

from __future__ import annotations

import enum
from typing import Final

SCHEMA_VERSION: Final = 3  # 2: delivery, outcome, probe and clock; schema_version in the rows. 3: ledger.records


class TraceKind(enum.Enum):
    """Kinds of trace files; the value is the first part of the file name."""

    DELIVERY = "delivery"
    LATENCY_HIST = "latency_hist"
    LEDGER = "ledger"
    OUTCOME = "outcome"
    PROBE = "probe"
    CLOCK = "clock"


COMPLETE_KINDS: Final = frozenset({TraceKind.LATENCY_HIST, TraceKind.LEDGER})  # never given up for lack of room


class Stage(enum.Enum):
    """Part of the way of a record that a latency covers."""

    COMMIT = "commit"  # from the first broker's receive stamp to the commit in the home region
    REPLICATE = "replicate"  # from the append at the home to the commit in a mirror region
    DELIVER = "deliver"  # from the commit in the delivering region to the consumer's socket; one clock
    TOTAL = "total"  # from the first broker's receive stamp to the consumer's socket


class LedgerKind(enum.Enum):
    """What happened to a range of offsets."""

    COMMIT = "commit"  # committed in the home region
    REPLICATED = "replicated"  # committed in a mirror region
    DELIVERED = "delivered"  # handed to a consumer
    ABORTED = "aborted"  # records of an aborted transaction: nobody shall see them
    EXPIRED = "expired"  # below the log start of the region: retention or an operator deleted them
    REFUSED = "refused"  # publishes answered with an error: nothing of them is stored
    UNDECIDED = "undecided"  # publishes answered with an unknown outcome: their positions decide


class Operation(enum.Enum):
    """What a client asked for, in outcome rows."""

    PUBLISH = "publish"
    CONSUME = "consume"
    CONNECT = "connect"


class ProbeOutcome(enum.Enum):
    """What became of a probe."""

    OK = "ok"
    LATE = "late"  # it came after its time-out; a row `lost` of the same seq came before
    LOST = "lost"  # nothing came in time
    REFUSED = "refused"  # the origin's own publish failed; written by the origin
