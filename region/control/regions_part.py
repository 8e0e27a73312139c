"""Which regions the mesh has: part "regions" of mesh control's state.

Rule 1: a region's number and name are never used again: the streams that began there keep them.
Rule 2: a region with homes is neither drained nor removed; the refusal names the streams.
Rule 3: the last region that stores topics stays.
Rule 4: what a region says about itself (brokers, level) is recorded only when it changed; it is never made up.
Rule 5: what all others said of a region that is to leave is true of the row that they were asked about ("row_index" of
        "remove"): one that was kept and drained again since may have been counted again meanwhile.
Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final

from georelay.errors import BadRequest, PolicyViolation, Unavailable
from georelay.fields import INT64_MAX, FieldError, Fields, JsonObject, integers
from georelay.ids import BROKERS_PER_REGION_MAX, REGION_NUMBER_MAX, BrokerId, RegionNumber
from georelay.limits import REGION_NAME_CHARS_MAX, REGIONS_MAX
from region.controller.command_kinds import OWNERS_LEVEL
from region.controller.mesh_rows import LEVEL_MAX, REGION_ROWS_MAX, RegionRow, RegionState, read_seeds
from region.controller.topology import BROKER_ID_MAX, MESH_ID_CHARS_MAX, REGION_NAME, RegionInfo, Topology

NAMED_MAX: Final = 20  # streams, or what would be lost, that a refusal names


class RegionsPart:
    """Implements ControlPart.

    Attributes:
        homes_in: names the streams whose home is a region, or is about to be; set before anything is applied.
        topic_names: the names of all live topics.
    """

    name = "regions"

    def __init__(self) -> None:
        self.homes_in: Callable[[RegionNumber], list[str]] = lambda _: []
        self.topic_names: Callable[[], Iterable[str]] = tuple
        self._mesh_id = ""
        self._rows: dict[RegionNumber, RegionRow] = {}

    def rows(self) -> list[RegionRow]:
        """Return every region, removed ones too, in order of numbers."""
        return [row for _, row in sorted(self._rows.items())]

    def row(self, number: int) -> RegionRow | None:
        """Return a region by its number."""
        return self._rows.get(RegionNumber(number))

    def regions_since(self, index: int) -> list[RegionRow]:
        """Return the regions that changed after an index."""
        return [row for row in self.rows() if row.index > index]

    def topology(self) -> Topology:
        """Return the mesh; nobody's own region, so the first one stands for it. Raises Unavailable."""
        rows = self.rows()
        if not rows:
            raise Unavailable("mesh control knows no region yet")  # a broker whose disk lost them: it is told again
        return Topology(
            mesh_id=self._mesh_id,
            region=rows[0].number,
            definitions_home=RegionNumber(0),
            regions=tuple(
                RegionInfo(
                    number=row.number,
                    name=row.name,
                    brokers=row.brokers,
                    witness=row.witness,
                    removed=row.state is RegionState.REMOVED,
                )
                for row in rows
            ),
        )

    def data_regions(self) -> tuple[RegionNumber, ...]:
        """Return the regions that store topics and stay."""
        return tuple(row.number for row in self.rows() if row.state is RegionState.ACTIVE and not row.witness)

    def older_regions(self, level: int) -> list[str]:
        """Return the names of the regions that store topics and are below a level, or have not said which it is."""
        return [row.name for row in self.rows() if row.holds_topics and row.level < level]

    def keep_owners(self) -> bool:
        """Return whether every region, witnesses included, can read whose a topic is."""
        return all(row.level >= OWNERS_LEVEL for row in self._live())

    # --- ControlPart --------------------------------------------------------------------------------------------------

    def apply(self, command: JsonObject, *, index: int, append_us: int) -> JsonObject:
        """Apply one change; see ControlPart."""
        del append_us
        fields = Fields(command, self.name)
        verb = fields.text("do", chars_max=16)
        number = RegionNumber(fields.integer("number", low=1, high=REGION_NUMBER_MAX))
        match verb:
            case "add":
                row = self._add(number, fields)
            case "report":
                row = self._report(number, fields)
            case "drain":
                row = self._drain(number)
            case "keep":
                row = self._keep(number)
            case "remove":
                row = self._remove(number, fields)
            case other:
                raise BadRequest(f"{other!r} is nothing that regions do")
        if replace(row, index=0) != replace(self._rows.get(number, row), index=0) or number not in self._rows:
            self._rows[number] = replace(row, index=index)
        return {"region": self._rows[number].to_json()}

    def snapshot(self) -> JsonObject:
        """Return the state of the part."""
        return {"mesh_id": self._mesh_id, "rows": [row.to_json() for row in self.rows()]}

    def restore(self, raw: JsonObject) -> None:
        """Replace the state. Raises FieldError."""
        fields = Fields(raw, self.name)
        mesh_id = fields.text("mesh_id", chars_max=MESH_ID_CHARS_MAX)
        rows = [RegionRow.from_json(item) for item in fields.items("rows", count_max=REGION_ROWS_MAX)]
        fields.done()
        if len({row.number for row in rows}) != len(rows):
            raise FieldError("a region is there twice")
        self._mesh_id, self._rows = mesh_id, {row.number: row for row in rows}

    def elected(self) -> None:
        """Nothing to do."""

    def deposed(self) -> None:
        """Nothing to do."""

    # --- changes ------------------------------------------------------------------------------------------------------

    def _add(self, number: RegionNumber, fields: Fields) -> RegionRow:
        name = fields.text("name", chars_max=REGION_NAME_CHARS_MAX, pattern=REGION_NAME)
        seeds, witness = read_seeds(fields, "seeds", number), fields.flag("witness")
        known = self._rows.get(number)
        if known is not None and known.state is RegionState.REMOVED:
            raise PolicyViolation(f"number {number} was region {known.name}, which left; numbers are never used again")
        if known is not None and (known.name, known.witness) != (name, witness):
            raise PolicyViolation(f"number {number} is region {known.name} already")
        if known is not None:
            return replace(known, seeds=seeds or known.seeds, state=RegionState.ACTIVE)
        if any(row.name == name for row in self._rows.values()):
            raise PolicyViolation(f"the name {name} is, or was, that of another region")
        if len(self._rows) >= REGION_ROWS_MAX or len(self._live()) >= REGIONS_MAX:
            raise PolicyViolation(f"the mesh has {REGIONS_MAX} regions, its maximum")
        taken = next((topic for topic in self.topic_names() if topic.startswith(f"{name}.")), None)
        if taken is not None:
            raise PolicyViolation(f"topic {taken} would look like a stream of region {name}: choose another name")
        return RegionRow(number=number, name=name, seeds=seeds, witness=witness)

    def _report(self, number: RegionNumber, fields: Fields) -> RegionRow:
        row = self._known(number)
        listed = integers(
            fields.items("brokers", count_max=BROKERS_PER_REGION_MAX), "brokers", low=1001, high=BROKER_ID_MAX
        )
        level = fields.integer("level", low=0, high=LEVEL_MAX)
        seeds = read_seeds(fields, "seeds", number)
        brokers = tuple(BrokerId(broker) for broker in sorted(set(listed)))
        return RegionRow.from_json(replace(row, brokers=brokers, level=level, seeds=seeds or row.seeds).to_json())

    def _drain(self, number: RegionNumber) -> RegionRow:
        row = self._known(number)
        self._require_no_home(row)
        if row.state is RegionState.ACTIVE and self.data_regions() == (number,):
            raise PolicyViolation(f"region {row.name} is the only one that stores topics")
        return replace(row, state=RegionState.DRAINING)

    def _keep(self, number: RegionNumber) -> RegionRow:
        return replace(self._known(number), state=RegionState.ACTIVE)

    def _remove(self, number: RegionNumber, fields: Fields) -> RegionRow:
        row = self._rows.get(number)
        if row is not None and row.state is RegionState.REMOVED:
            return row
        row = self._known(number)
        if row.state is not RegionState.DRAINING:
            text = f"region {row.name} is active: 'georelay region drain {row.name}' first"
            raise PolicyViolation(text)
        if fields.has("row_index") and fields.integer("row_index", low=0, high=INT64_MAX) != row.index:
            raise PolicyViolation(f"region {row.name} changed while the others were asked: ask again")
        self._require_no_home(row)
        return replace(row, state=RegionState.REMOVED, brokers=(), seeds=())

    def _require_no_home(self, row: RegionRow) -> None:
        homes = self.homes_in(row.number)
        if homes:
            raise PolicyViolation(
                f"region {row.name} is home of {len(homes)} streams; move them first ('georelay home move'): "
                f"{named(homes)}"
            )

    def _live(self) -> list[RegionRow]:
        return [row for row in self._rows.values() if row.state is not RegionState.REMOVED]

    def _known(self, number: RegionNumber) -> RegionRow:
        row = self._rows.get(number)
        if row is None:
            raise PolicyViolation(f"region {number} is not one of this mesh: 'georelay region add' lets it in")
        if row.state is RegionState.REMOVED:
            raise PolicyViolation(f"region {row.name} left the mesh; its number is never used again")
        return row


def named(things: Sequence[str]) -> str:
    """Return the first of them in one line, and how many more there are."""
    more = f" and {len(things) - NAMED_MAX} more" if len(things) > NAMED_MAX else ""
    return f"{', '.join(things[:NAMED_MAX])}{more}"


def founded(mesh_id: str, rows: Iterable[RegionRow]) -> JsonObject:
    """Return the part's snapshot with the regions that the founder knew."""
    return {"mesh_id": mesh_id, "rows": [row.to_json() for row in sorted(rows, key=lambda row: row.number)]}
