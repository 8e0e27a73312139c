"""How mesh control begins: the definitions home hands the definitions over, exactly once.

    1 cede    the definitions home's controller commits a charter: control id, founder (broker and disk). From this
              commit on it orders nothing.
    2 begin   the founder makes its replica and writes everything that was ordered into control's log.
    3 open    the founder asks the definitions home's controller, which commits that this charter is open, if it is
              still the one in force.
    4 order   the founder commits that control is open. From this commit on control orders.

Rule 1: between 1 and 4 nobody orders: requests are answered with a retriable error.
Rule 2: while 3 is not committed another founder may be named with another control id; the first one's step 3 is
        refused then, so it never comes to 4. After 3 nobody else can be named.
Rule 3: every step is found by looking at what is committed, so a crash at any point is followed by the same step again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from georelay.fields import JsonObject, dump_object
from georelay.ids import BrokerId, RegionNumber, region_of
from region.control import definitions_part, members_core, regions_part
from region.control.state_core import SNAPSHOT_VERSION
from region.controller.brokers import BrokerState
from region.controller.command_kinds import MESH_LEVEL
from region.controller.mesh_rows import SEEDS_MAX, Charter, RegionRow
from region.controller.state_core import ControllerState

FOUNDER_REPLICA = 1
FIRST_GENERATION = 1


def must_cede(state: ControllerState) -> bool:
    """Return whether this region's controller, led here, has to name a founder."""
    topology = state.topology
    if topology is None or not topology.is_definitions_home or state.feature_level < MESH_LEVEL:
        return False
    return not state.mesh.has_ceded


def founder_is_gone(state: ControllerState, charter: Charter) -> bool:
    """Return whether the founder can never finish: it was removed, or its disk is another one."""
    record = state.records.get(charter.founder)
    if record is None or record.state in (BrokerState.REMOVED, BrokerState.ABSENT):
        return True
    return state.disk_of(charter.founder) != charter.disk


def is_founder(state: ControllerState, me: BrokerId, disk: str) -> Charter | None:
    """Return the charter when it names this broker with this disk."""
    charter = state.mesh.charter
    return charter if charter is not None and (charter.founder, charter.disk) == (me, disk) else None


def founding_snapshot(
    state: ControllerState,
    *,
    charter: Charter,
    links: Mapping[RegionNumber, Iterable[tuple[BrokerId, str]]],
    at_us: int,
) -> bytes:
    """Return everything that was ordered so far, as the state that control begins with.

    Args:
        links: link addresses of the brokers of every region, as this broker knows them.
    """
    topology = state.topology
    assert topology is not None
    index = max(charter.index, state.next_definition_index - 1) + 1
    rows = [
        RegionRow(
            number=region.number,
            name=region.name,
            seeds=tuple(f"{broker}@{address}" for broker, address in links.get(region.number, ()))[:SEEDS_MAX],
            brokers=region.brokers,
            witness=region.witness,
            level=state.feature_level if region.number == topology.region else 0,
            index=index,
        )
        for region in topology.regions
    ]
    own = dict(links.get(region_of(charter.founder), ()))
    parts: JsonObject = {
        "definitions": definitions_part.taken_over(state),
        "regions": regions_part.founded(topology.mesh_id, rows),
        "members": members_core.founded(
            charter.founder,
            replica=FOUNDER_REPLICA,
            disk=charter.disk,
            address=own.get(charter.founder, ""),
            index=index,
        ),
    }
    return dump_object(
        {
            "v": SNAPSHOT_VERSION,
            "generation": FIRST_GENERATION,
            "control_id": charter.control_id,
            "is_open": False,
            "index": index,
            "clock_us": at_us,
            "pieces": [],
            "pieces_of": "",
            "parts": parts,
        }
    )


def renamed(charter: Charter, *, control_id: str, founder: BrokerId, disk: str) -> Charter:
    """Return a charter with another founder."""
    return replace(charter, control_id=control_id, founder=founder, disk=disk, opened=False)
