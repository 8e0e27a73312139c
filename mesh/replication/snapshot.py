"""What metrics and status show of one session."""

from __future__ import annotations

from dataclasses import dataclass

from georelay.ids import Offset, RegionNumber, StreamKey
from mesh.replication.link_state import Cause, LinkState


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSnapshot:
    """One stream between two regions, as one end sees it.

    Args:
        role: "home" or "mirror": which end this broker is.
        region: number of the other region; broker: id of the other broker, -1 while unknown.
        lag_records, lag_bytes, lag_ms: how far the mirror's committed records are behind; the bytes not sent yet are
            an estimate; the ms are the home's (append time on its own clock).
        hwm: the home's high watermark as far as known here; acked: the mirror's.
        resumes: sessions of this stream with this region that there were here before.
        refusals: HELLOs that the home refused (mirror only).
    """

    role: str
    key: StreamKey
    region: RegionNumber
    broker: int
    state: LinkState
    cause: Cause
    lag_records: int
    lag_bytes: int
    lag_ms: float
    hwm: Offset
    acked: Offset
    resumes: int = 0
    refusals: int = 0
