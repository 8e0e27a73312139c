"""The workloads, the same for every contender."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from loadtest.bench.measured import WARM_S
from loadtest.bench.schedule_core import FAULT_RETRY_NS, RETRY_NS, Load

TOPICS: Final = 8
# How many records a client has on their way at full speed: what brings each of them the most.
WINDOWS: Final[Mapping[str, int]] = {"kafka": 100_000, "nats": 4_000, "amqp": 2_000}


class Fault(StrEnum):
    """What happens to the node that leads most topics."""

    KILL = "kill -9"
    STOP = "SIGSTOP"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A load and what happens meanwhile.

    Args:
        rate_per_s: 0: as fast as it goes.
        seconds: that are measured; a load with a rate has WARM_S in front.
        fault_at_s, heals_after_s: when the fault comes and how long a stopped node is stopped.
    """

    key: str
    rate_per_s: int
    seconds: float
    value_bytes: int = 100
    fault: Fault | None = None
    fault_at_s: float = 4.0
    heals_after_s: float = 15.0

    def load(self, protocol: str) -> Load:
        """Return what the producer of a protocol is to send."""
        return Load(
            topics=[f"{'single' if self.rate_per_s else self.key}-{number}" for number in range(TOPICS)],
            rate_per_s=self.rate_per_s,
            seconds=self.seconds + (WARM_S if self.rate_per_s else 0),
            value_bytes=self.value_bytes,
            window=0 if self.rate_per_s else WINDOWS[protocol],
            exactly_once=self.fault is not None,
            retry_ns=FAULT_RETRY_NS if self.fault else RETRY_NS,
        )


WORKLOADS: Final = (
    Workload(key="single-1000", rate_per_s=1_000, seconds=6),
    Workload(key="single-100", rate_per_s=100, seconds=4),
    Workload(key="bulk-100", rate_per_s=0, seconds=4),
    Workload(key="bulk-1024", rate_per_s=0, seconds=4, value_bytes=1_024),
    Workload(key="stop", rate_per_s=200, seconds=20, fault=Fault.STOP),
    Workload(key="kill", rate_per_s=200, seconds=16, fault=Fault.KILL),
)
