"""Rules of homes while commands are applied: a region takes over what mesh control ordered, and orders nothing itself.

Rule 1: only a higher position applies, so a row that is pulled twice changes nothing.
Rule 2: a row may come before its topic: it is kept, and the stream finds it when it is opened. The row of a topic that
was deleted is passed over.
"""

from __future__ import annotations

from collections.abc import Sequence

from georelay.errors import PolicyViolation
from mesh.home.home_row import HomeRow
from region.controller.command_kinds import MESH_LEVEL
from region.controller.effects import Done, Effect, HomeChanged, Outcome, Refused
from region.controller.home_book import position_of
from region.controller.ledger import RegionLedger
from region.controller.topic import Tombstone


def define(ledger: RegionLedger, rows: Sequence[HomeRow], effects: list[Effect]) -> Outcome:
    """Enter rows that control ordered."""
    if ledger.topology is None or ledger.feature_level < MESH_LEVEL:
        text = "this region has brokers that know no mesh control: upgrade them, then ask again"
        return Refused(error=PolicyViolation, text=text)
    for row in rows:
        if position_of(row) <= ledger.homes.position:
            continue
        if isinstance(ledger.definitions.find(row.topic_id), Tombstone):
            ledger.homes.pass_over(row)
            continue
        ledger.homes.remember(row)
        effects.append(HomeChanged(key=row.key))
    if effects:
        ledger.metadata_changed(effects)
    return Done()
