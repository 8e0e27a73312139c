"""Times and windows of the inter-region links: one value, defaults for a WAN."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from georelay.ids import BrokerId, RegionNumber
from georelay.limits import KIB, LINK_INFLIGHT_BYTES_MAX, MIB
from mesh.listening.mesh_secret import MeshSecret

FLUSH_BYTES: Final = 256 * KIB  # a frame is closed at this size; a larger single batch travels alone
GATHER_MS: Final = 2  # a busy link over gRPC waits so long for more parts: a frame costs about 0.2 ms at either end
OUTBOX_BYTES_MAX: Final = 1 * MIB  # encoded and not yet handed to the carrier; beyond it sessions wait
BULK_BYTES_MAX: Final = FLUSH_BYTES  # of it for sessions that are behind: the tail waits for this and a frame at most
CAPPED_OUTBOX_S: Final = 0.25  # with a cap on the link no more waits than is sent within this
CAPPED_OUTBOX_BYTES_MIN: Final = 64 * KIB
FORWARD_BYTES_IN_FLIGHT_MAX: Final = 64 * MIB  # per link; beyond it a publish gets a retriable "busy"
assert FLUSH_BYTES <= OUTBOX_BYTES_MAX < LINK_INFLIGHT_BYTES_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSettings:
    """Durations in ms.

    Args:
        keepalive_ms: silence after which a heartbeat is sent; three are missed before the link is dead.
        dead_after_ms: silence after which a link is closed and dialled again; also how long a first dial is waited for.
        redial_ms: time from one dial to the next, on our own clock: the carrier's back-off grows to minutes.
        lagging_after_ms: oldest unacknowledged batch older than this: LAGGING.
        stall_after_ms: behind and no progress for this long: STALLED.
        forward_timeout_ms: a forwarded batch without an answer has an unknown outcome after this.
        leaderless_ms: a home whose brokers know no leader of a stream for so long: what is for it is refused at once.
        window_bytes_max: sent and not yet acknowledged, per stream session.
        compression: compress frames with zstd where it pays; False: never.
        bytes_per_s: cap of what this end sends over each link to another region; 0: none.
    """

    keepalive_ms: int = 500
    dead_after_ms: int = 1_500
    redial_ms: int = 250
    lagging_after_ms: int = 1_000
    stall_after_ms: int = 3_000
    forward_timeout_ms: int = 10_000
    leaderless_ms: int = 5_000
    window_bytes_max: int = LINK_INFLIGHT_BYTES_MAX
    compression: bool = True
    bytes_per_s: int = 0

    def __post_init__(self) -> None:
        """Refuse times that cannot work together."""
        if not 0 < self.keepalive_ms < self.dead_after_ms or not 0 < self.redial_ms <= self.dead_after_ms:
            raise ValueError("keepalive_ms and redial_ms must be positive and below dead_after_ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshIdentity:
    """Who this broker is; another mesh id is refused at the first frame.

    Args:
        secret: what it proves that with, besides certificates.
    """

    mesh_id: str
    region: str
    region_number: RegionNumber
    broker_id: BrokerId
    secret: MeshSecret | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerAddress:
    """Where another broker listens for links; `address` is "host:port"."""

    broker_id: BrokerId
    address: str
