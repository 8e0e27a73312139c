"""The replicated state of mesh control: a sequence of commands over its parts, and how it begins.

A command is one JSON object:

    {"v": 1, "part": "definitions", "at_us": leader's wall clock, "command": {...}}

A control does not begin empty: its founder, or the survivor that recovers it, writes a snapshot of everything into the
log in pieces (part "begin"), and only the last of them lets it be. Until `is_open` it orders nothing.

Rule 1: the index of a command is one above that of the command before; the founding snapshot says where it goes on. So
        definitions that one region ordered before are never numbered again.
Rule 2: a part that this version does not know stops the replica: guessing would let replicas disagree for ever.
Rule 3: what refuses a command is part of its outcome, the same on every replica.
Pure: no clock, no I/O.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Final

from georelay.errors import BadRequest, GeorelayError, PolicyViolation, Unavailable
from georelay.fields import INT64_MAX, FieldError, Fields, JsonObject, dump_object, parse_object
from georelay.ids import RaftIndex
from georelay.limits import MIB
from region.control.members_core import Members
from region.control.part import ControlPart
from region.controller.commands import CommandError
from region.controller.mesh_rows import CONTROL_ID, GENERATION_MAX, ControlRow
from region.controller.state_snapshot import SnapshotError

COMMAND_VERSION: Final = 1
SNAPSHOT_VERSION: Final = 1
SNAPSHOT_BYTES_MAX: Final = 48 * MIB
PIECE_CHARS: Final = 160 * 1024  # of a founding snapshot per command; quotes in it take two bytes
PIECES_MAX: Final = 512
OUTCOMES_REMEMBERED: Final = 4_096
PART_CHARS_MAX: Final = 32
BEGIN: Final = "begin"
MEMBERS: Final = "members"


class ControlState:
    """What every replica of control agrees on.

    Invariants: 1 `index` rises by one with every command that is no piece of the beginning   2 `clock_us` never falls
    3 before `is_open` no part but "members" is changed by a command.
    """

    def __init__(self, parts: Sequence[ControlPart], *, members: Members | None = None) -> None:
        self.members = members or Members()
        self.generation = 0
        self.control_id = ""
        self.is_open = False
        self.index = 0
        self.clock_us = 0
        self._parts: dict[str, ControlPart] = {part.name: part for part in (self.members, *parts)}
        self._pieces: list[str] = []
        self._pieces_of = ""
        self._outcomes: dict[RaftIndex, JsonObject | GeorelayError] = {}
        self._empty = {name: part.snapshot() for name, part in self._parts.items()}

    def register(self, part: ControlPart) -> None:
        """Let the state have one more part, which is empty now; before anything is applied."""
        assert not self.has_begun and part.name not in self._parts, part.name
        self._parts[part.name] = part
        self._empty[part.name] = part.snapshot()

    def reset(self) -> None:
        """Forget everything: another replica's log is followed from now on."""
        self.generation, self.control_id, self.is_open = 0, "", False
        self.index = self.clock_us = 0
        self._pieces, self._pieces_of, self._outcomes = [], "", {}
        self._restore_parts({})

    @property
    def parts(self) -> Mapping[str, ControlPart]:
        """Return the parts by name, "members" included."""
        return self._parts

    @property
    def has_begun(self) -> bool:
        """Return whether the founding snapshot is whole."""
        return self.generation > 0

    def outcome(self, raft_index: RaftIndex) -> JsonObject | GeorelayError | None:
        """Return what became of a command, None when it is not among the last ones applied here."""
        return self._outcomes.get(raft_index)

    def row(self) -> ControlRow | None:
        """Return who control is, for everybody who is no replica; None before it has begun."""
        if not self.has_begun:
            return None
        return ControlRow(
            generation=self.generation,
            control_id=self.control_id,
            members=self.members.rows(),
            voters=self.members.voters,
            learners=self.members.learners,
            index=self.members.index,
        )

    # --- commands -----------------------------------------------------------------------------------------------------

    def apply(self, raw: bytes, raft_index: RaftIndex) -> None:
        """Apply one committed command.

        Raises:
            CommandError: a command that this version does not know; the replica has to stop.
        """
        try:
            fields = Fields(parse_object(raw), "command")
            fields.integer("v", low=COMMAND_VERSION, high=COMMAND_VERSION)
            part = fields.text("part", chars_max=PART_CHARS_MAX)
            at_us = fields.integer("at_us", low=0, high=INT64_MAX)
            command = fields.value("command")
            fields.done()
        except FieldError as error:
            raise CommandError(f"not a command of mesh control: {error}") from error
        if not isinstance(command, dict) or (part != BEGIN and part not in self._parts):
            raise CommandError(f"part {part!r} of mesh control is unknown to this version")
        self.clock_us = max(self.clock_us, at_us)
        self._outcomes[raft_index] = self._begin(command) if part == BEGIN else self._apply(part, command)
        if len(self._outcomes) > OUTCOMES_REMEMBERED:
            del self._outcomes[next(iter(self._outcomes))]

    def _apply(self, part: str, command: JsonObject) -> JsonObject | GeorelayError:
        if not self.has_begun or (not self.is_open and part != MEMBERS):
            return Unavailable("mesh control is being founded; ask again")
        self.index += 1
        try:
            return self._parts[part].apply(command, index=self.index, append_us=self.clock_us)
        except FieldError as error:
            return BadRequest(f"{part}: {error}")
        except GeorelayError as error:
            return error

    # --- the beginning ------------------------------------------------------------------------------------------------

    def _begin(self, command: JsonObject) -> JsonObject | GeorelayError:
        try:
            return self._take_piece(Fields(command, BEGIN))
        except (FieldError, SnapshotError) as error:
            return BadRequest(f"{BEGIN}: {error}")

    def _take_piece(self, fields: Fields) -> JsonObject | GeorelayError:
        if fields.has("open"):
            control_id = fields.text("open", chars_max=32, pattern=CONTROL_ID)
            if control_id != self.control_id:
                return PolicyViolation(f"this control is {self.control_id}, not {control_id}")
            self.is_open = True
            return {}
        if self.has_begun:
            return {}  # an attempt before a crash was whole after all
        digest = fields.text("digest", chars_max=32)
        number = fields.integer("piece", low=0, high=PIECES_MAX)
        count = fields.integer("of", low=1, high=PIECES_MAX)
        piece = fields.text("text", chars_max=PIECE_CHARS)
        if number == 0:
            self._pieces, self._pieces_of = [], digest
        if digest != self._pieces_of or number != len(self._pieces):
            return BadRequest(f"piece {number} of snapshot {digest} came out of order")
        self._pieces.append(piece)
        if number + 1 < count:
            return {}
        whole = "".join(self._pieces).encode()
        self._pieces, self._pieces_of = [], ""
        if digest_of(whole) != digest:
            return BadRequest(f"snapshot {digest} is not whole")
        self._load(whole)
        return {"index": self.index}

    # --- snapshots ----------------------------------------------------------------------------------------------------

    def to_snapshot(self) -> bytes:
        """Return the whole state as canonical bytes. Outcomes are not part of it."""
        return dump_object(
            {
                "v": SNAPSHOT_VERSION,
                "generation": self.generation,
                "control_id": self.control_id,
                "is_open": self.is_open,
                "index": self.index,
                "clock_us": self.clock_us,
                "pieces": list(self._pieces),
                "pieces_of": self._pieces_of,
                "parts": {name: part.snapshot() for name, part in sorted(self._parts.items())},
            }
        )

    def restore(self, raw: bytes) -> None:
        """Take over the state in a snapshot.

        Raises:
            SnapshotError: not a whole snapshot that this version knows.
        """
        self._outcomes = {}
        self._load(raw)

    def _load(self, raw: bytes) -> None:
        try:
            fields = Fields(parse_object(raw, bytes_max=SNAPSHOT_BYTES_MAX), "snapshot")
            fields.integer("v", low=SNAPSHOT_VERSION, high=SNAPSHOT_VERSION)
            generation = fields.integer("generation", low=0, high=GENERATION_MAX)
            control_id = fields.text("control_id", chars_max=32)
            is_open = fields.flag("is_open")
            index = fields.integer("index", low=0, high=INT64_MAX)
            clock_us = fields.integer("clock_us", low=0, high=INT64_MAX)
            pieces = [
                Fields({"piece": item}, "snapshot").text("piece", chars_max=PIECE_CHARS)
                for item in fields.items("pieces", count_max=PIECES_MAX)
            ]
            pieces_of = fields.text("pieces_of", chars_max=32)
            parts = fields.value("parts")
            fields.done()
            self._restore_parts(parts)
        except FieldError as error:
            raise SnapshotError(f"not a snapshot of mesh control: {error}") from error
        self.generation, self.control_id, self.is_open = generation, control_id, is_open
        self.index, self.clock_us = index, max(self.clock_us, clock_us)
        self._pieces, self._pieces_of = pieces, pieces_of

    def _restore_parts(self, parts: object) -> None:
        if not isinstance(parts, dict) or set(parts) - set(self._parts):
            raise FieldError("the snapshot has parts that this version does not know")
        for name, part in self._parts.items():
            raw = parts.get(name, self._empty[name])  # a part that came with a later version begins empty
            if not isinstance(raw, dict):
                raise FieldError(f"part {name} of the snapshot is not an object")
            part.restore(raw)


def digest_of(snapshot: bytes) -> str:
    """Return what names a founding snapshot."""
    return hashlib.blake2b(snapshot, digest_size=16).hexdigest()


def pieces_of(snapshot: bytes) -> list[JsonObject]:
    """Return a founding snapshot as commands of the part "begin", in order."""
    text, digest = snapshot.decode(), digest_of(snapshot)
    pieces = [text[start : start + PIECE_CHARS] for start in range(0, len(text), PIECE_CHARS)]
    return [
        {"digest": digest, "piece": number, "of": len(pieces), "text": piece} for number, piece in enumerate(pieces)
    ]


def encode(part: str, command: JsonObject, *, at_us: int) -> bytes:
    """Return the bytes of a command."""
    return dump_object({"v": COMMAND_VERSION, "part": part, "at_us": at_us, "command": command})
