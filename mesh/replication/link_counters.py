"""What is counted of links and sessions, by region: for metrics, and cheap enough for each frame.

Rule: peers choose numbers and codes, so what is kept is bounded: codes outside of KNOWN_CODES count as "other", and so
do regions beyond REGIONS_MAX.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from georelay.ids import RegionNumber
from mesh.replication.sender_core import Refusal

REGIONS_MAX: Final = 64
OTHER_REGION: Final = RegionNumber(0)
OTHER_CODE: Final = "other"
PEER_CODES: Final = frozenset({"MESH_ID", "BROKER_ID", "REGION", "VERSION", "SECRET", "LEVEL"})
KNOWN_CODES: Final = frozenset({*(row.value for row in Refusal), "REDIRECT", *PEER_CODES})


class LinkCounters:
    """Counts of one broker since it started.

    Attributes:
        opened, lost: links by (side, region); side is "dialled" or "accepted".
        dial_failures: dials without an open link after them, by region.
        sessions, resumes: sessions that were welcomed, and those of them that were not the stream's first here, by
            (role, region).
        refusals: sessions refused, by (role, region, code).
        peers_refused: links refused for who is at the other end, by code.
        sent_bytes, received_bytes: of frames, by region. sent_plain_bytes: before they were packed.
    """

    def __init__(self) -> None:
        self.opened: Counter[tuple[str, RegionNumber]] = Counter()
        self.lost: Counter[tuple[str, RegionNumber]] = Counter()
        self.dial_failures: Counter[RegionNumber] = Counter()
        self.sessions: Counter[tuple[str, RegionNumber]] = Counter()
        self.resumes: Counter[tuple[str, RegionNumber]] = Counter()
        self.refusals: Counter[tuple[str, RegionNumber, str]] = Counter()
        self.peers_refused: Counter[str] = Counter()
        self.sent_bytes: Counter[RegionNumber] = Counter()
        self.sent_plain_bytes: Counter[RegionNumber] = Counter()
        self.received_bytes: Counter[RegionNumber] = Counter()
        self._regions: set[RegionNumber] = set()

    def region(self, number: int) -> RegionNumber:
        """Return under which region something counts."""
        region = RegionNumber(number)
        if region not in self._regions:
            if len(self._regions) >= REGIONS_MAX:
                return OTHER_REGION
            self._regions.add(region)
        return region

    def session_welcomed(self, role: str, region: int, *, is_resume: bool) -> None:
        """Count a session of a stream with a region."""
        row = (role, self.region(region))
        self.sessions[row] += 1
        self.resumes[row] += is_resume

    def session_refused(self, role: str, region: int, code: str) -> None:
        """Count a session that did not come about."""
        self.refusals[role, self.region(region), _known(code)] += 1

    def peer_refused(self, code: str) -> None:
        """Count a link that was refused."""
        self.peers_refused[_known(code)] += 1

    def frame_sent(self, region: int, size_bytes: int, *, plain_bytes: int) -> None:
        """Count a frame."""
        row = self.region(region)
        self.sent_bytes[row] += size_bytes
        self.sent_plain_bytes[row] += plain_bytes

    def frame_received(self, region: int, size_bytes: int) -> None:
        """Count a frame as it came."""
        self.received_bytes[self.region(region)] += size_bytes


def _known(code: str) -> str:
    return code if code in KNOWN_CODES else OTHER_CODE
