"""A new generation of mesh control from one survivor, when the majority of the old one is gone for good.

Rule 1: only a person says so: from inside, a majority that is gone looks like one that is cut off.
Rule 2: the new generation has a number one above and a random id, and both are in every frame. Replicas of the old one
        that come back are put aside and begin again as learners; two recoveries at two places with one number are
        refused by each other, loudly, until one place recovers once more.
Rule 3: the survivor counts everything that its log holds, committed as far as it knows or not: what the majority
        acknowledged may be among it. What only the others had is lost, and indexes leave a gap that covers it.
Rule 4: where no replica is left at all, a region's controller stands in with what it pulled: in a mesh of one region
        that is everything that was ever answered.
"""

from __future__ import annotations

from typing import Final

from georelay.errors import PolicyViolation
from georelay.fields import INT64_MAX, JsonObject, dump_object, parse_object
from region.control import definitions_part, members_core, regions_part
from region.control.state_core import SNAPSHOT_BYTES_MAX, SNAPSHOT_VERSION, ControlState
from region.controller.mesh_rows import GENERATION_MAX, ControlRow, VoterRow
from region.controller.state_core import ControllerState

INDEX_GAP: Final = 1_000_000  # more than the lost majority can have ordered beyond what the survivor has


def recovered_snapshot(state: ControlState, survivor: VoterRow, *, control_id: str) -> bytes:
    """Return the survivor's state as that of the next generation, with the survivor as its only voter.

    Raises:
        PolicyViolation: the survivor's replica never had the whole state.
    """
    if not state.has_begun or not state.is_open:
        raise PolicyViolation("this replica of mesh control never held its whole state; recover from another one")
    if state.generation >= GENERATION_MAX or state.index > INT64_MAX - 2 * INDEX_GAP:
        raise PolicyViolation("mesh control was recovered as often as it can be")
    raw = parse_object(state.to_snapshot(), bytes_max=SNAPSHOT_BYTES_MAX)
    parts = raw["parts"]
    assert isinstance(parts, dict)
    index = state.index + INDEX_GAP
    members: JsonObject = members_core.founded(
        survivor.broker, replica=survivor.replica, disk=survivor.disk, address=survivor.address, index=index
    )
    members["next_replica"] = state.members.next_replica
    changed: JsonObject = {
        "generation": state.generation + 1,
        "control_id": control_id,
        "is_open": True,
        "index": index,
        "pieces": [],
        "pieces_of": "",
        "parts": {**parts, "members": members},
    }
    return dump_object(raw | changed)


def remembered_snapshot(
    state: ControllerState, lost: ControlRow, survivor: VoterRow, *, control_id: str, at_us: int
) -> bytes:
    """Return what a region's controller pulled from control as the state of the next generation."""
    assert state.topology is not None
    index = state.next_definition_index + INDEX_GAP
    members = members_core.founded(
        survivor.broker, replica=survivor.replica, disk=survivor.disk, address=survivor.address, index=index
    )
    parts: JsonObject = {
        "definitions": definitions_part.taken_over(state),
        "regions": regions_part.founded(state.topology.mesh_id, state.mesh.regions.values()),
        "members": members,
        "homes": {"book": {"rows": [row.to_json() for row in state.homes.rows()]}, "leased": []},
    }
    return dump_object(
        {
            "v": SNAPSHOT_VERSION,
            "generation": lost.generation + 1,
            "control_id": control_id,
            "is_open": True,
            "index": index,
            "clock_us": at_us,
            "pieces": [],
            "pieces_of": "",
            "parts": parts,
        }
    )
