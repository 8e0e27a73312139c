"""Rules of mesh control's rows while commands are applied in a region, and of handing the definitions over to it.

Rule 1: from the commit of the charter on, this region's controller orders no definition any more. There is no way back:
        a charter may name another founder while it is not open, it is never taken away.
Rule 2: a control begins to order only after the charter that names it was opened by a commit here. So a founder that
        was given up, and comes back, finds its charter gone and never orders.
Rule 3: rows of control apply by index, and only all that are new move the position from which more is asked for. A
        control of a lower generation is ignored, and one of the same generation with another id is refused, loudly.
Rule 4: regions that control names join the topology at run time, and every topic gets the streams that it lacks. A
        region that control removed stays in it: the streams that began there are still read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from georelay.errors import PolicyViolation, Unavailable
from region.controller.command_kinds import MESH_LEVEL, LearnMesh
from region.controller.effects import Done, Effect, Outcome, Refused
from region.controller.ledger import RegionLedger
from region.controller.mesh_rows import Charter, RegionRow, RegionState
from region.controller.topology import RegionInfo, Topology

_TOO_OLD = Refused(
    error=PolicyViolation, text="this region has brokers that know no mesh control: upgrade them, then ask again"
)


def cede(ledger: RegionLedger, wanted: Charter) -> Outcome:
    """Name the founder of mesh control, and order nothing from now on."""
    topology, book = ledger.topology, ledger.mesh
    if topology is None or ledger.feature_level < MESH_LEVEL:
        return _TOO_OLD
    if not topology.is_definitions_home:
        return Refused(error=PolicyViolation, text="only the definitions home hands the definitions over")
    if book.control is not None:
        return Refused(error=PolicyViolation, text="mesh control exists already")
    if book.charter is not None and book.charter.opened:
        return Refused(error=PolicyViolation, text=f"control {book.charter.control_id} was founded already")
    book.charter = replace(wanted, opened=False, index=ledger.next_definition_index - 1)
    return Done()


def open_control(ledger: RegionLedger, control_id: str) -> Outcome:
    """Let the control that the charter names begin to order."""
    charter = ledger.mesh.charter
    if charter is None:
        return Refused(error=PolicyViolation, text="this region has given the definitions to nobody")
    if charter.control_id != control_id:
        text = f"control {control_id} was given up before it had everything; {charter.control_id} took its place"
        return Refused(error=PolicyViolation, text=text)
    ledger.mesh.charter = replace(charter, opened=True)
    return Done()


def learn(ledger: RegionLedger, learned: LearnMesh, effects: list[Effect]) -> Outcome:
    """Take over rows of mesh control."""
    book, control, index = ledger.mesh, learned.control, ledger.mesh.index
    if ledger.topology is None:
        return Refused(error=Unavailable, text="this region is not formed yet")
    if ledger.feature_level < MESH_LEVEL:
        return _TOO_OLD
    if control is not None and book.control is not None and control.contradicts(book.control):
        text = (
            f"two controls claim generation {control.generation}: {control.control_id} and {book.control.control_id}; "
            "this region follows the second, run 'georelay control recover' where the right one is"
        )
        return Refused(error=PolicyViolation, text=text)
    if control is not None and (book.control is None or control.replaces(book.control)):
        book.control = control
    if control is not None and control == book.control:
        index = max(index, control.index)
    newer = [
        row for row in learned.regions if row.number not in book.regions or row.index > book.regions[row.number].index
    ]
    for row in newer:
        book.regions[row.number] = row
    if learned.is_all:
        book.index = max([index, *(row.index for row in learned.regions)])
    if newer:
        _grow(ledger, effects)
    return Done()


def _grow(ledger: RegionLedger, effects: list[Effect]) -> None:
    assert ledger.topology is not None
    grown = with_regions(ledger.topology, list(ledger.mesh.regions.values()))
    if grown == ledger.topology:
        return
    ledger.topology = grown
    for topic in list(ledger.definitions.topics()):
        ledger.assign_missing(topic, effects)
    ledger.settle(effects)
    ledger.metadata_changed(effects)


def with_regions(topology: Topology, rows: Sequence[RegionRow]) -> Topology:
    """Return the topology with the regions that control names, new ones at the end in order of their numbers."""
    known = {region.number: region for region in topology.regions}
    for row in sorted(rows, key=lambda row: row.number):
        before = known.get(row.number)
        brokers = row.brokers
        if before is not None and (row.number == topology.region or not brokers):
            brokers = before.brokers  # a region knows its own brokers better than control
        known[row.number] = RegionInfo(
            number=row.number,
            name=row.name,
            brokers=brokers,
            witness=row.witness,
            removed=row.state is RegionState.REMOVED,
        )
    return replace(topology, regions=tuple(known.values()))
