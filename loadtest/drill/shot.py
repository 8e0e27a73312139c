"""The campaign of one run of a drill: `drill.toml` beside this file, filled in.

Rule: rows of its users are `home` (at level `region`, in the home), `away-region` and `away-geo` (in other regions, at
      `region` and `geo:2`); there is a reader in every region, of which that of a lost one goes on in another.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any, Final

REGION_LOSS, LINK_CUT, BROKER_LOSS = "region-loss", "link-cut", "broker-loss"
KILL, CUT, LINK = "kill", "cut", "link"  # how
HOME, AWAY_REGION, AWAY_GEO = ROLES = ("home", "away-region", "away-geo")
BEFORE_S: Final = 4.0
AFTER_S: Final = {REGION_LOSS: 15.0, LINK_CUT: 5.0, BROKER_LOSS: 5.0}
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
class Shot:
    """One run: what is lost, how, and where."""

    kind: str
    how: str
    topic: str
    home: str
    regions: Sequence[str]
    rate_per_s: float
    fault_s: float

    @property
    def away(self) -> frozenset[str]:
        """Return the publishers outside of what is broken: they say when the mesh works again."""
        if self.kind == LINK_CUT:
            return frozenset({HOME})
        return frozenset(ROLES if self.kind == BROKER_LOSS else (AWAY_REGION, AWAY_GEO))


def text_of(shot: Shot, topology: dict[str, Any]) -> str:
    """Return the campaign; `topology`: its table."""
    others = [region for region in shot.regions if region != shot.home] or [shot.home]
    is_moved = shot.kind == REGION_LOSS
    do, what = {
        LINK_CUT: ("link-cut", f"{shot.home}-{others[0]}"),
        BROKER_LOSS: ("kill", f"leader of {shot.topic}"),
        REGION_LOSS: ("link-cut" if shot.how == CUT else "region-loss", f"home of {shot.topic}"),
    }[shot.kind]
    return _FILE.substitute(
        kind=shot.kind,
        how=shot.how,
        home=shot.home,
        topic=shot.topic,
        topology="\n".join(f"{name} = {json.dumps(value)}" for name, value in topology.items()),
        settings=AUTOMATIC if is_moved else "",
        before_s=BEFORE_S,
        fault_s=shot.fault_s,
        load_s=BEFORE_S + shot.fault_s + AFTER_S[shot.kind],
        rate=len(ROLES) * shot.rate_per_s,
        near=others[0],
        far=others[-1],
        geo="geo:2" if len(shot.regions) > 1 else "region",
        readers=json.dumps(others if is_moved else list(shot.regions)),
        moving=_MOVING.substitute(topic=shot.topic, before_s=BEFORE_S) if is_moved else "",
        do=do,
        what=what,
    )
