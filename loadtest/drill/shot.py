"""What a drill is told, and the campaign of one of its runs: `drill.toml` beside this file, filled in.

Rule: rows of its users are `home` (at level `region`, in the home), `away-region` and `away-geo` (in other regions, at
      `region` and `geo:2`); there is a reader in every region, of which that of a lost one goes on in another.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from string import Template
from typing import Any, Final

from loadtest.load.campaign import Topology


class Kind(enum.StrEnum):
    """What is lost."""

    REGION_LOSS = "region-loss"
    LINK_CUT = "link-cut"
    BROKER_LOSS = "broker-loss"


class How(enum.StrEnum):
    """How a region is lost; both: in turn."""

    KILL = "kill"
    CUT = "cut"
    BOTH = "both"


LINK: Final = "link"  # how a link is
HOME, AWAY_REGION, AWAY_GEO = ROLES = ("home", "away-region", "away-geo")
BEFORE_S: Final = 4.0
AFTER_S: Final = {Kind.REGION_LOSS: 15.0, Kind.LINK_CUT: 5.0, Kind.BROKER_LOSS: 5.0}
AUTOMATIC: Final = 'failover = "auto", "min.insync.regions" = "2", "protect.k" = "2"'
_FILE: Final = Template(Path(__file__).with_name("drill.toml").read_text(encoding="utf-8"))
_MOVING: Final = Template("""
[[programs]]
kind = "moving-reader"
topics = ["$topic"]

[[faults]]
at = "${before_s}s"
do = "kill-client"
what = "moving-reader"
for = "0s"
""")


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillPlan:
    """What the command line asked for; see loadtest.drill.command. `topology`: of the mesh that is broken."""

    kind: Kind
    topology: Topology
    runs: int = 1
    how: str = ""
    data: Path | None = None
    rate_per_s: float = 50.0
    fault_s: float = 10.0
    out: Path = field(default_factory=Path)

    @property
    def runs_already(self) -> bool:
        """Return whether somebody else's mesh is broken."""
        return self.topology.kind == "endpoints"

    def table(self, regions: Sequence[str]) -> dict[str, Any]:
        """Return the topology as a campaign says it, but for what is as by default."""
        plain = asdict(Topology())
        told = asdict(self.topology) | {"regions": list(regions)}
        names = {name for name, value in told.items() if name == "kind" or value != plain[name]}
        return {name: told[name] for name in sorted(names - ({"regions"} if self.topology.kind == "wan" else set()))}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shot:
    """One run of a plan: how it is lost, and where."""

    plan: DrillPlan
    how: str
    topic: str
    home: str
    regions: Sequence[str]

    @property
    def away(self) -> frozenset[str]:
        """Return the publishers outside of what is broken: they say when the mesh works again."""
        if self.plan.kind is Kind.LINK_CUT:
            return frozenset({HOME})
        return frozenset(ROLES if self.plan.kind is Kind.BROKER_LOSS else (AWAY_REGION, AWAY_GEO))


def text_of(shot: Shot) -> str:
    """Return the campaign."""
    plan = shot.plan
    others = [region for region in shot.regions if region != shot.home] or [shot.home]
    is_moved = plan.kind is Kind.REGION_LOSS
    do, what = {
        Kind.LINK_CUT: ("link-cut", f"{shot.home}-{others[0]}"),
        Kind.BROKER_LOSS: ("kill", f"leader of {shot.topic}"),
        Kind.REGION_LOSS: ("link-cut" if shot.how == How.CUT else "region-loss", f"home of {shot.topic}"),
    }[plan.kind]
    return _FILE.substitute(
        kind=plan.kind,
        how=shot.how,
        home=shot.home,
        topic=shot.topic,
        topology="\n".join(f"{name} = {json.dumps(value)}" for name, value in plan.table(shot.regions).items()),
        settings=AUTOMATIC if is_moved else "",
        before_s=BEFORE_S,
        fault_s=plan.fault_s,
        load_s=BEFORE_S + plan.fault_s + AFTER_S[plan.kind],
        rate=len(ROLES) * plan.rate_per_s,
        near=others[0],
        far=others[-1],
        geo="geo:2" if len(shot.regions) > 1 else "region",
        readers=json.dumps(others if is_moved else list(shot.regions)),
        moving=_MOVING.substitute(topic=shot.topic, before_s=BEFORE_S) if is_moved else "",
        do=do,
        what=what,
    )
