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
    """What happens to the node that leads most topics, or to a region."""

    KILL = "kill -9"
    STOP = "SIGSTOP"
    CUT = "cut off"
    LOSE = "kill -9 of the home"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A load and what happens meanwhile.

    Args:
        rate_per_s: 0: as fast as it goes.
        seconds: that are measured; a load with a rate has WARM_S in front.
        fault_at_s, heals_after_s: when the fault comes and how long a stopped node is stopped, a region cut off.
        is_regional: three regions, and one topic of the workload's name.
    """

    key: str
    rate_per_s: int
    seconds: float
    value_bytes: int = 100
    fault: Fault | None = None
    fault_at_s: float = 4.0
    heals_after_s: float = 15.0
    is_regional: bool = False

    def load(self, protocol: str) -> Load:
        """Return what the producer of a protocol is to send."""
        kind = "single" if self.rate_per_s else self.key
        return Load(
            topics=[self.key] if self.is_regional else [f"{kind}-{number}" for number in range(TOPICS)],
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
REGIONAL_WORKLOADS: Final = (
    Workload(key="far", rate_per_s=100, seconds=10, is_regional=True),
    Workload(key="cut", rate_per_s=100, seconds=40, fault=Fault.CUT, heals_after_s=20, is_regional=True),
    Workload(key="failover", rate_per_s=200, seconds=26, fault=Fault.LOSE, is_regional=True),
)
