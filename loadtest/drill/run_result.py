"""What came of one run, as a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from loadtest.drill.drill_core import Findings
from loadtest.drill.values import Home
from loadtest.wan.heals_core import Delivery


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What came of a run. `broken`: promises that were not kept. `audit`: result and what the command said."""

    topic: str
    victim: str
    how: str
    control_leader: str
    old_epoch: int
    new_home: Home
    findings: Findings
    audit: tuple[str, str]
    marks: Mapping[str, float]
    notes: tuple[str, ...]
    broken: tuple[str, ...]
    deliveries: Mapping[str, tuple[Delivery, ...]]
    fault_ns: int
    healed_ns: int
