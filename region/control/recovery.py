"""A new generation of mesh control from one survivor, when the majority of the old one is gone for good.

Rule 1: only a person says so: from inside, a majority that is gone looks like one that is cut off.
Rule 2: the new generation has a number one above and a random id, and both are in every frame. Replicas of the old one
        that come back are put aside and begin again as learners; two recoveries at two places with one number are
        refused by each other, loudly, until one place recovers once more.
Rule 3: the survivor counts everything that its log holds, committed as far as it knows or not: what the majority
        acknowledged may be among it. What only the others had is lost, and indexes leave a gap that covers it.
        Epochs need none: those of every generation are numbers of its own (mesh.home.epoch_core). An attempt that is
        under way goes on in a new epoch: with the lost majority its own may have ended at another home.
Rule 4: where no replica is left at all, or only one that never held the whole state, a region's controller stands in
        with what it pulled: in a mesh of one region that is everything that was ever answered.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from georelay.errors import PolicyViolation
from georelay.fields import INT64_MAX, JsonObject, dump_object, parse_object
from mesh.home.epoch_core import GENERATIONS_MAX, floor_of, next_epoch
from mesh.home.home_row import HomeRow
from region.control import definitions_part, members_core, regions_part
from region.control.state_core import SNAPSHOT_BYTES_MAX, SNAPSHOT_VERSION, ControlState
from region.controller.home_book import position_of
from region.controller.mesh_rows import ControlRow, VoterRow
from region.controller.state_core import ControllerState

INDEX_GAP: Final = 1_000_000  # more than the lost majority can have ordered beyond what the survivor has
HOMES: Final = "homes"  # the part that keeps the homes of streams; a control without it moves none
EPOCHS_ABOVE: Final = "epochs_above"
OBEYED: Final = "obeyed"  # which failover policies regions follow: of those that were lost, nobody knows


def recovered_snapshot(state: ControlState, survivor: VoterRow, *, control_id: str) -> bytes:
    """Return the survivor's state as that of the next generation, with the survivor as its only voter.

    Raises:
        PolicyViolation: the survivor's replica never had the whole state.
    """
    if not state.has_begun or not state.is_open:
        raise PolicyViolation("this replica of mesh control never held its whole state; recover from another one")
    following = _following(state.generation, state.index)
    raw = parse_object(state.to_snapshot(), bytes_max=SNAPSHOT_BYTES_MAX)
    parts = raw["parts"]
    assert isinstance(parts, dict)
    index = state.index + INDEX_GAP
    members: JsonObject = members_core.founded(
        survivor.broker, replica=survivor.replica, disk=survivor.disk, address=survivor.address, index=index
    )
    members["next_replica"] = state.members.next_replica
    kept = {**parts, "members": members, "definitions": definitions_part.doubted(parts["definitions"])}
    if HOMES in kept:
        kept[HOMES] = _homes_of(kept[HOMES], following, control_id, index=index)
    changed: JsonObject = {
        "generation": following,
        "control_id": control_id,
        "is_open": True,
        "index": index,
        "pieces": [],
        "pieces_of": "",
        "parts": kept,
    }
    return dump_object(raw | changed)


def remembered_snapshot(
    state: ControllerState, lost: ControlRow, survivor: VoterRow, *, control_id: str, at_us: int
) -> bytes:
    """Return what a region's controller pulled from control as the state of the next generation.

    Raises:
        PolicyViolation: there is no further generation.
    """
    assert state.topology is not None
    following = _following(lost.generation, state.next_definition_index)
    index = state.next_definition_index + INDEX_GAP
    members = members_core.founded(
        survivor.broker, replica=survivor.replica, disk=survivor.disk, address=survivor.address, index=index
    )
    homes: JsonObject = {"book": {"rows": [row.to_json() for row in state.homes.rows()]}, "leased": []}
    parts: JsonObject = {
        "definitions": definitions_part.taken_over(state),
        "regions": regions_part.founded(state.topology.mesh_id, state.mesh.regions.values()),
        "members": members,
        HOMES: _homes_of(homes, following, control_id, index=index),
    }
    return dump_object(
        {
            "v": SNAPSHOT_VERSION,
            "generation": following,
            "control_id": control_id,
            "is_open": True,
            "index": index,
            "clock_us": at_us,
            "pieces": [],
            "pieces_of": "",
            "parts": parts,
        }
    )


def _following(generation: int, index: int) -> int:
    if generation >= GENERATIONS_MAX or index > INT64_MAX - 2 * INDEX_GAP:
        raise PolicyViolation("mesh control was recovered as often as it can be")
    return generation + 1


def _homes_of(homes: object, generation: int, control_id: str, *, index: int) -> JsonObject:
    """Return the part "homes" for a generation: what it gives out comes after everything that any earlier one gave."""
    assert isinstance(homes, dict), homes  # a snapshot of ours
    floor = floor_of(generation, control_id)
    rows = [HomeRow.from_json(row) for row in homes["book"]["rows"]]
    ended = [row for row in rows if row.moving is None]
    begun = sorted((row for row in rows if row.moving is not None), key=lambda row: position_of(row)[1:])
    book: JsonObject = {"rows": [row.to_json() for row in (*ended, *(_begun_anew(row, floor, index) for row in begun))]}
    kept = {name: value for name, value in homes.items() if name != OBEYED}
    return {**kept, "book": book, EPOCHS_ABOVE: floor}


def _begun_anew(row: HomeRow, floor: int, index: int) -> HomeRow:
    assert row.moving is not None, row.key
    epoch = next_epoch(row.last_epoch, floor=floor)
    return replace(row, moving=replace(row.moving, epoch=epoch), last_epoch=epoch, index=index)
