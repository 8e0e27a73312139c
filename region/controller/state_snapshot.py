"""The controller's whole state as bytes, and back.

Rule 1: canonical: equal states give equal bytes on every broker, so that snapshots can be compared.
Rule 2: complete: a state restored from it goes on exactly as the one it was made of.
Rule 3: strict: a field that is missing, unknown or out of bounds refuses the whole snapshot.
"""

from __future__ import annotations

from typing import Final

from georelay.fields import INT64_MAX, FieldError, Fields, JsonObject, dump_object, parse_object
from georelay.ids import BROKERS_PER_REGION_MAX, CONTROLLER_GROUP, RaftIndex
from georelay.limits import (
    ACL_ENTRIES_MAX,
    MIB,
    PARTITIONS_PER_TOPIC_MAX,
    SECURITY_GRAVES_MAX,
    TOPICS_MAX,
    USERS_MAX,
)
from mesh.home.home_row import HomeRow, read_origin
from region.controller.assignment import Assignment
from region.controller.brokers import BrokerRecord
from region.controller.command_kinds import FEATURE_LEVEL_MAX
from region.controller.home_book import BEFORE_ALL, HomePosition, position_of
from region.controller.ledger import RegionLedger
from region.controller.mesh_rows import REGION_ROWS_MAX, Charter, ControlRow, RegionRow
from region.controller.topic import TOPIC_ID_BYTES, Tombstone, TopicDefinition
from region.controller.topic_rules import TOMBSTONES_MAX
from region.controller.topology import Topology
from region.routing.binding import BINDINGS_MAX
from region.security import definition as security

SNAPSHOT_VERSION: Final = 1
FORGOTTEN: Final = "forgotten"
SNAPSHOT_BYTES_MAX: Final = 48 * MIB  # below a peer frame; all limits reached at once need about 25 MiB
# More than may be created: regions that join the mesh bring streams, and what was committed has to be read.
GROUPS_READ_MAX: Final = 1_000_000
SECURITY_READ_MAX: Final = 2 * USERS_MAX + ACL_ENTRIES_MAX + SECURITY_GRAVES_MAX + BINDINGS_MAX + 1


class SnapshotError(ValueError):
    """Bytes that are not a snapshot this version knows."""


def dump(ledger: RegionLedger) -> bytes:
    """Return the bytes of a state."""
    return dump_object(
        {
            "v": SNAPSHOT_VERSION,
            "applied_index": ledger.applied_index,
            "feature_level": ledger.feature_level,
            "metadata_epoch": ledger.metadata_epoch,
            "producers_given": ledger.producers_given,
            "topology": None if ledger.topology is None else ledger.topology.to_json(),
            "control": None if ledger.control is None else ledger.control.to_json(),
            "brokers": [record.to_json() for _, record in sorted(ledger.records.items())],
            "definitions_index": ledger.definitions.index,
            "definitions": [
                {"tombstone" if isinstance(definition, Tombstone) else "definition": definition.to_json()}
                for definition in ledger.definitions.everything()
            ],
            "next_group": ledger.groups.next_id,
            "groups": [group.to_json() for group in sorted(ledger.groups, key=lambda group: group.group_id)],
            **_security(ledger),
            **_homes(ledger),
            **_mesh(ledger),
            **_forgotten(ledger),
        }
    )


def _security(ledger: RegionLedger) -> JsonObject:
    """Return nothing before there is anything: versions that know no users read such a snapshot."""
    if ledger.security.index == 0:
        return {}
    return {"security": [security.to_json(definition) for definition in ledger.security.everything()]}


def _homes(ledger: RegionLedger) -> JsonObject:
    """Return nothing before there is anything, as `_security`."""
    if ledger.homes.position == BEFORE_ALL:
        return {}
    return {
        "homes": [row.to_json() for row in ledger.homes.rows()],
        "homes_position": position_json(ledger.homes.position),
    }


def _mesh(ledger: RegionLedger) -> JsonObject:
    book = ledger.mesh
    if book.is_empty:
        return {}
    rows = {
        "charter": None if book.charter is None else book.charter.to_json(),
        "control": None if book.control is None else book.control.to_json(),
        "regions": [row.to_json() for _, row in sorted(book.regions.items())],
        "index": book.index,
    }
    return {"mesh": rows}


def _forgotten(ledger: RegionLedger) -> JsonObject:
    """Return nothing before a deletion was forgotten, as `_security`."""
    return forgotten_json(ledger.definitions.forgotten_to, ledger.security.forgotten_to)


def load(raw: bytes) -> RegionLedger:
    """Read the bytes of a state.

    Raises:
        SnapshotError: anything but a whole snapshot of a known version.
    """
    try:
        fields = Fields(parse_object(raw, bytes_max=SNAPSHOT_BYTES_MAX), "snapshot")
        fields.integer("v", low=SNAPSHOT_VERSION, high=SNAPSHOT_VERSION)
        ledger = _read(fields)
        fields.done()
    except FieldError as error:
        raise SnapshotError(f"not a controller snapshot: {error}") from error
    return ledger


def _read(fields: Fields) -> RegionLedger:
    ledger = RegionLedger()
    ledger.applied_index = RaftIndex(fields.integer("applied_index", low=0, high=INT64_MAX))
    ledger.feature_level = fields.integer("feature_level", low=0, high=FEATURE_LEVEL_MAX)
    ledger.metadata_epoch = fields.integer("metadata_epoch", low=0, high=INT64_MAX)
    ledger.producers_given = fields.integer("producers_given", low=0, high=INT64_MAX)
    topology, control = fields.value("topology"), fields.value("control")
    ledger.topology = None if topology is None else Topology.from_json(topology)
    ledger.control = None if control is None else Assignment.from_json(control)
    if ledger.control is not None and ledger.control.group_id != CONTROLLER_GROUP:
        raise FieldError(f"group {ledger.control.group_id} is not the controller's")
    _read_brokers(ledger, fields)
    _read_definitions(ledger, fields)
    _read_groups(ledger, fields)
    _read_security(ledger, fields)
    _read_homes(ledger, fields)
    _read_mesh(ledger, fields)
    ledger.definitions.forgotten_to, ledger.security.forgotten_to = read_forgotten(fields)
    return ledger


def _read_brokers(ledger: RegionLedger, fields: Fields) -> None:
    for item in fields.items("brokers", count_max=BROKERS_PER_REGION_MAX):
        record = BrokerRecord.from_json(item)
        if record.broker in ledger.records:
            raise FieldError(f"broker {record.broker} is there twice")
        ledger.put_record(record, [])


def _read_definitions(ledger: RegionLedger, fields: Fields) -> None:
    index = fields.integer("definitions_index", low=0, high=INT64_MAX)
    for item in fields.items("definitions", count_max=TOPICS_MAX + TOMBSTONES_MAX):
        definition = _read_definition(item)
        if definition.index < ledger.definitions.index or ledger.definitions.find(definition.topic_id) is not None:
            raise FieldError(f"definition {definition.index} is out of order or there twice")
        if isinstance(definition, TopicDefinition) and ledger.definitions.id_of(definition.name) is not None:
            raise FieldError(f"topic {definition.name} is there twice")
        ledger.definitions.remember(definition)
    if index < ledger.definitions.index:
        raise FieldError(f"a definition is above {index}")
    ledger.definitions.index = index


def _read_security(ledger: RegionLedger, fields: Fields) -> None:
    if not fields.has("security"):
        return
    for item in fields.items("security", count_max=SECURITY_READ_MAX):
        definition = security.from_json(item)
        book = ledger.security
        if definition.index <= book.index or book.find(security.kind_of(definition), definition.key) is not None:
            raise FieldError(f"security definition {definition.index} is out of order or there twice")
        book.remember(definition)


def _read_homes(ledger: RegionLedger, fields: Fields) -> None:
    if not fields.has("homes"):
        return
    book = ledger.homes
    for item in fields.items("homes", count_max=GROUPS_READ_MAX):
        row = HomeRow.from_json(item)
        if position_of(row) <= book.position or book.find(row.topic_id, row.partition, row.origin) is not None:
            raise FieldError(f"home row {row.index} of {row.key} is out of order or there twice")
        book.remember(row)
    position = read_position(fields.child("homes_position"))
    if position < book.position:
        raise FieldError(f"a home row is above {position[0]}")
    book.position = position


def _read_mesh(ledger: RegionLedger, fields: Fields) -> None:
    if not fields.has("mesh"):
        return
    book, mesh = ledger.mesh, fields.child("mesh")
    charter, control = mesh.value("charter"), mesh.value("control")
    book.charter = None if charter is None else Charter.from_json(charter)
    book.control = None if control is None else ControlRow.from_json(control)
    for item in mesh.items("regions", count_max=REGION_ROWS_MAX):
        row = RegionRow.from_json(item)
        if row.number in book.regions:
            raise FieldError(f"region {row.number} is there twice")
        book.regions[row.number] = row
    book.index = mesh.integer("index", low=0, high=INT64_MAX)
    mesh.done()


def forgotten_json(topics: int, security: int) -> JsonObject:
    """Return {"forgotten": up to which index deletions of topics, and of security, are}; nothing without any."""
    return {FORGOTTEN: {"topics": topics, "security": security}} if topics or security else {}


def read_forgotten(fields: Fields) -> tuple[int, int]:
    """Take what `forgotten_json` made out of the object it is part of. Raises FieldError."""
    if not fields.has(FORGOTTEN):
        return 0, 0
    found = fields.child(FORGOTTEN)
    read = (
        found.integer("topics", low=0, high=INT64_MAX),
        found.integer("security", low=0, high=INT64_MAX),
    )
    found.done()
    return read


def read_position(fields: Fields) -> HomePosition:
    """Read a position in the book of homes. Raises FieldError."""
    position = (
        fields.integer("index", low=1, high=INT64_MAX),
        fields.blob("topic_id", size_bytes=TOPIC_ID_BYTES),
        fields.integer("partition", low=0, high=PARTITIONS_PER_TOPIC_MAX - 1),
        read_origin(fields),
    )
    fields.done()
    return position


def position_json(position: HomePosition) -> JsonObject:
    """Return what `read_position` reads; an origin of 0 is left out."""
    index, topic_id, partition, origin = position
    named: JsonObject = {"index": index, "topic_id": topic_id.hex(), "partition": partition}
    return named | {"origin": origin} if origin else named


def _read_definition(item: object) -> TopicDefinition | Tombstone:
    fields = Fields(item, "definition")
    if fields.has("tombstone"):
        found: TopicDefinition | Tombstone = Tombstone.from_json(fields.value("tombstone"))
    else:
        found = TopicDefinition.from_json(fields.value("definition"))
    fields.done()
    return found


def _read_groups(ledger: RegionLedger, fields: Fields) -> None:
    ledger.groups.next_id = fields.integer("next_group", low=1, high=INT64_MAX)
    for item in fields.items("groups", count_max=GROUPS_READ_MAX):
        group = Assignment.from_json(item)
        if not 0 < group.group_id < ledger.groups.next_id:
            raise FieldError(f"group {group.group_id} was never given out")
        if group.key in ledger.groups or ledger.groups.of_id(group.group_id) is not None:
            raise FieldError(f"group {group.group_id} is there twice")
        if ledger.definitions.topic_by_id(group.key.topic_id) is None:
            raise FieldError(f"group {group.group_id} has no topic")
        ledger.groups.put(group)
