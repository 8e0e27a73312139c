"""Rules of security definitions while commands are applied.

Rule 1: only a higher index applies; the definitions home gives the index at apply, the next of topics and security.
Rule 2: a definition names the index of the one it was made from (0: none); another one in between refuses it, so two
        administrators never undo each other's work unseen.
Rule 3: from feature level 3 on; a region below neither orders nor pulls them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from georelay.errors import Busy, PolicyViolation
from georelay.limits import ACL_ENTRIES_MAX, SECURITY_GRAVES_MAX, USERS_MAX
from region.controller.effects import Done, Outcome, Refused
from region.controller.ledger import RegionLedger
from region.routing.binding import BINDINGS_MAX, Binding
from region.routing.table_core import loop_with
from region.security.definition import AclList, Grave, Kind, SecurityDefinition, kind_of

SECURITY_LEVEL: Final = 3
QUOTAS_MAX: Final = USERS_MAX


def define(ledger: RegionLedger, wanted: SecurityDefinition, *, replaces: int) -> Outcome:
    """Enter a definition: index 0 orders it here, another index was given by the definitions home."""
    book = ledger.security
    if ledger.topology is None or ledger.feature_level < SECURITY_LEVEL:
        text = "this region has brokers that know no users: upgrade them, then ask again"
        return Refused(error=PolicyViolation, text=text)
    if wanted.index > 0:
        if wanted.index > book.index:
            book.remember(wanted)
        return Done(definition_index=wanted.index)
    refused = ledger.refuse_to_order()
    if refused is not None:
        return refused
    known = book.find(kind_of(wanted), wanted.key)
    if known is not None and replace(known, index=0) == wanted:
        return Done(definition_index=known.index)  # the same wish again, after an answer that got lost
    if (0 if known is None else known.index) != replaces:
        text = f"{kind_of(wanted).value} {wanted.key[:60]!r} was changed by somebody else meanwhile; ask again"
        return Refused(error=Busy, text=text)
    refused = _refuse_growth(ledger, wanted, known)
    if refused is not None:
        return refused
    ordered = replace(wanted, index=ledger.next_definition_index)
    book.remember(ordered)
    return Done(definition_index=ordered.index)


def _refuse_binding(ledger: RegionLedger, wanted: Binding, *, is_new: bool) -> Refused | None:
    """Judge a binding against all others at once: two that are made at the same time cannot make a loop either."""
    if is_new and ledger.security.count(Kind.BINDING) >= BINDINGS_MAX:
        return Refused(error=PolicyViolation, text=f"the mesh has {BINDINGS_MAX} bindings, its maximum")
    loop = loop_with(wanted, ledger.security.bindings())
    if not loop:
        return None
    text = f"binding {wanted.name!r} would lead records of {wanted.source!r} back to it, by {' -> '.join(loop)}"
    return Refused(error=PolicyViolation, text=text)


def _refuse_growth(
    ledger: RegionLedger, wanted: SecurityDefinition, known: SecurityDefinition | None
) -> Refused | None:
    book = ledger.security
    if isinstance(wanted, Grave):
        if book.grave_count < SECURITY_GRAVES_MAX or isinstance(known, Grave):
            return None
        text = (
            f"the mesh remembers {SECURITY_GRAVES_MAX} deleted users, lists, quotas and bindings, its maximum: some "
            "region has not followed all of them, 'georelay control status' names it; bring it back or remove it"
        )
        return Refused(error=PolicyViolation, text=text)
    is_new = known is None or isinstance(known, Grave)
    kind = kind_of(wanted)
    if is_new and kind is Kind.USER and book.count(kind) >= USERS_MAX:
        return Refused(error=PolicyViolation, text=f"the mesh has {USERS_MAX} users, its maximum")
    if is_new and kind is Kind.QUOTA and book.count(kind) >= QUOTAS_MAX:
        return Refused(error=PolicyViolation, text=f"the mesh has {QUOTAS_MAX} quotas, its maximum")
    if isinstance(wanted, Binding):
        return _refuse_binding(ledger, wanted, is_new=is_new)
    if isinstance(wanted, AclList):
        before = len(known.entries) if isinstance(known, AclList) else 0
        if book.entry_count - before + len(wanted.entries) > ACL_ENTRIES_MAX:
            text = f"the mesh has {ACL_ENTRIES_MAX} entries of access control lists, its maximum; use prefixes"
            return Refused(error=PolicyViolation, text=text)
    return None
