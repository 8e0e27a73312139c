"""Members of another mesh, told by their tag `cl`: refused by name. Pure.

Keys and labels keep meshes apart; this is for the day when both were copied, and an address was used again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from mesh.gossip.codec import MessageType, decode_push_pull
from mesh.gossip.faults import CodecError, MergeRefused
from mesh.gossip.member import Member, MemberState
from mesh.gossip.tags import decode_tags

MESH_TAG: Final = "cl"
NAMES_MAX: Final = 4_096  # that are counted once; beyond it they are forgotten and counted again


class Foreigners:
    """Args: mesh: our own; "" lets everybody in."""

    def __init__(self, mesh: str, counts: Counter[str]) -> None:
        self._mesh = mesh
        self._counts = counts
        self._names: set[str] = set()

    @property
    def known(self) -> int:
        """Return how many names of others are remembered."""
        return len(self._names)

    def is_foreign(self, tags: Mapping[str, str]) -> bool:
        """Return whether tags name another mesh."""
        mesh = tags.get(MESH_TAG, "")
        return bool(mesh and self._mesh and mesh != self._mesh)

    def tags_of(self, member: Member) -> dict[str, str] | None:
        """Return the tags of a member, None of one of another mesh; unreadable ones are none at all."""
        try:
            tags = decode_tags(member.meta)
        except CodecError:
            self._counts["tags_refused"] += 1
            return {}
        if not self.is_foreign(tags):
            self._names.discard(member.name)
            return tags
        if member.name not in self._names:
            self._counts["foreign_member"] += 1
            if len(self._names) >= NAMES_MAX:
                self._names.clear()
            self._names.add(member.name)
        return None

    def refuse(self, blob: bytes) -> None:
        """Refuse an exchange of states with a living member of another mesh, before anything of it is believed.

        Raises:
            MergeRefused: it has one. CodecError: it is none.
        """
        if not self._mesh or blob[:1] != bytes((MessageType.PUSH_PULL,)):
            return
        for row in decode_push_pull(blob).rows:
            if row.state is not MemberState.ALIVE:
                continue
            try:
                tags = decode_tags(row.meta)
            except CodecError:
                continue
            if self.is_foreign(tags):
                self._counts["foreign_merge"] += 1
                raise MergeRefused(f"{row.name} is of the mesh {tags[MESH_TAG]!r}, this is {self._mesh!r}: refused")
