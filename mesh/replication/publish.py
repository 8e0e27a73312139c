"""One batch on its way to the leader of its home."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from georelay.wire.batch import BatchHeader, parse_header
from mesh.replication.level import REGION_LEVEL, AskedLevel


class Publish(NamedTuple):
    """A validated batch and what is asked of whoever stores it: made where it enters a broker, handed on as it is.

    Attributes:
        raw: the bytes of the batch, the caller's again as soon as whoever takes it returns: who keeps it copies it.
        received_ns: when the first broker of the mesh received it, ns since 1970.
        entry_region: number of that broker's region, 0..65535.
        lane: batches of one lane for one partition are stored in the order of the calls.
        level: what the home waits for before it answers.
        transactional_id: of the producer; a transactional batch needs it, "" with any other.
        needs_lease: the commit in the home's region is what is acknowledged; the home says False where it waits for
            more regions.
    """

    header: BatchHeader
    raw: bytes | bytearray | memoryview
    received_ns: int
    entry_region: int
    lane: Hashable = None
    level: AskedLevel = REGION_LEVEL
    transactional_id: str = ""
    needs_lease: bool = True

    @classmethod
    def built(
        cls,
        raw: bytes | bytearray,
        *,
        received_ns: int,
        entry_region: int,
        lane: Hashable = None,
        level: AskedLevel = REGION_LEVEL,
    ) -> Publish:
        """Return the publish of a batch that was built here: nothing of it needs to be validated."""
        return cls(parse_header(raw), raw, received_ns, entry_region, lane, level)

    def kept(self) -> Publish:
        """Return the same with bytes of its own, for whoever stores it later."""
        return self if isinstance(self.raw, bytes) else self._replace(raw=bytes(self.raw))
