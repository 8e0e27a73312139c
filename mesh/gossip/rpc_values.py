"""Members and coordinates as the RPC of `serf agent` writes them. What is not one is None."""

from __future__ import annotations

from typing import Any, Final

from mesh.gossip.coordinate_core import Coordinate
from mesh.gossip.faults import GossipFault
from mesh.gossip.member import address_text
from mesh.gossip.view import MemberStatus, MemberView

TAGS_MAX: Final = 64
DIMENSIONS: Final = 8


def text_of(value: object) -> str:
    """Return a text; "" for anything else."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value if isinstance(value, str) else ""


def member_of(row: object) -> MemberView | None:
    """Return a member of a `Members` list."""
    if not isinstance(row, dict):
        return None
    address, port, tags = row.get("Addr"), row.get("Port"), row.get("Tags") or {}
    if isinstance(address, str):
        address = address.encode("latin-1", "surrogateescape") if len(address) in (4, 16) else b""
    if not isinstance(address, bytes) or not isinstance(port, int) or not isinstance(tags, dict):
        return None
    try:
        host = address_text(address)
        status = MemberStatus(text_of(row.get("Status")))
    except (GossipFault, ValueError):
        return None
    return MemberView(
        name=text_of(row.get("Name")),
        address=(host, port),
        status=status,
        tags={text_of(name): text_of(text) for name, text in list(tags.items())[:TAGS_MAX]},
    )


def coordinate_of(row: Any) -> Coordinate | None:
    """Return the coordinate of a `Coord` field."""
    try:
        vec = tuple(float(value) for value in row["Vec"])
        found = Coordinate(
            vec=vec, error=float(row["Error"]), adjustment=float(row["Adjustment"]), height=float(row["Height"])
        )
    except (TypeError, KeyError, ValueError):
        return None
    return found if len(vec) == DIMENSIONS else None
