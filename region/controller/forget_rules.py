"""Rules of forgetting deletions while commands are applied: tombstones and graves go once every region followed them.

Rule 1: mesh control alone decides up to where, because it hears of all regions; a region follows it. Without mesh
        control nothing is forgotten.
Rule 2: the newest definition of a book stays, also when it is a deletion: a region that has it knows that it has all.
Rule 3: what a region still has, and control no longer, goes without a new index: its deletion is among the forgotten.
Rule 4: from feature level 8 of every region on; an older broker would keep what the others forget.
"""

from __future__ import annotations

from georelay.errors import PolicyViolation
from region.controller.command_kinds import FORGET_LEVEL, ForgetDeleted
from region.controller.effects import Done, Effect, Outcome, Refused
from region.controller.ledger import RegionLedger


def forget(ledger: RegionLedger, wanted: ForgetDeleted, effects: list[Effect]) -> Outcome:
    """Follow mesh control in a region."""
    if ledger.topology is None or ledger.feature_level < FORGET_LEVEL:
        text = "this region has brokers that forget no deletions: upgrade them, then ask again"
        return Refused(error=PolicyViolation, text=text)
    ledger.definitions.forget_deleted(wanted.topics_to)
    ledger.security.forget_deleted(wanted.security_to)
    for topic_id in wanted.topics:
        gone = ledger.definitions.bury(topic_id)
        if gone is not None:
            ledger.drop_groups(gone, effects)
            ledger.homes.forget(topic_id)
            ledger.metadata_changed(effects)
    for kind, key in wanted.security:
        ledger.security.bury(kind, key)
    ledger.settle(effects)
    return Done()


def forget_in_control(ledger: RegionLedger, wanted: ForgetDeleted) -> Outcome:
    """Forget in mesh control, which has everything, so nothing is left to bury."""
    ledger.definitions.forget_deleted(min(wanted.topics_to, ledger.definitions.index - 1))
    ledger.security.forget_deleted(min(wanted.security_to, ledger.security.index - 1))
    return Done()
