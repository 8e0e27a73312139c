"""What an operator may set about groups, and the limits that hold for everybody."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from georelay.limits import KIB, MIB
from region.coordination.limits import COMMAND_BYTES_MAX, PART_SNAPSHOT_BYTES_MAX

GROUP_ID_CHARS_MAX: Final = 255
MEMBER_ID_CHARS_MAX: Final = 512  # ids are ours: at most CLIENT_ID_CHARS_MAX, a dash and a UUID
INSTANCE_ID_CHARS_MAX: Final = 255
CLIENT_ID_CHARS_MAX: Final = 255  # longer ones are cut: they are for people
PROTOCOL_CHARS_MAX: Final = 255
PROTOCOLS_MAX: Final = 64  # assignors that one member offers
MEMBERS_MAX: Final = 1_000  # of one group
PENDING_MEMBERS_MAX: Final = 2 * MEMBERS_MAX  # ids given out and not used yet, of one group
GROUP_BYTES_MAX: Final = 600 * KIB  # subscriptions and assignments of one group; base64 makes 4/3 of it
OFFSET_METADATA_BYTES_MAX: Final = 4096  # Kafka's offset.metadata.max.bytes
OFFSETS_PER_GROUP_MAX: Final = 20_000
OFFSETS_PER_COMMIT_MAX: Final = 4_000
GROUPS_PER_COORDINATOR_MAX: Final = 10_000
PRODUCERS_PER_GROUP_MAX: Final = 1_000  # with offsets in a transaction that is not ended, or remembered as fenced
STATE_BYTES_MAX: Final = 12 * MIB  # of one coordinator, as its snapshot; beyond it new groups and offsets are refused
REBALANCE_TIMEOUT_MS_MIN: Final = 100  # what is less is taken as this
NEW_MEMBER_TIMEOUT_MS: Final = 300_000  # Kafka's: a new member whose client is gone cannot be heard of otherwise
SESSION_TIMEOUT_MS_MAX: Final = 1_800_000

DAY_MS: Final = 86_400_000

assert GROUP_BYTES_MAX * 4 // 3 + MEMBERS_MAX * 150 < COMMAND_BYTES_MAX
assert STATE_BYTES_MAX + 2 * COMMAND_BYTES_MAX < PART_SNAPSHOT_BYTES_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """Settings of the groups that this broker coordinates.

    Args:
        initial_rebalance_delay_ms: how long the first rebalance of an empty group waits for more members. 0: not at
            all; then every further member of a group that starts costs one more rebalance.
        session_timeout_ms_min: smallest session timeout that a member may ask for.
        offsets_retention_ms: how long offsets outlive their group's last member (of a consumer without a group:
            their last commit).
        sweep_s: how often expired offsets are looked for.
    """

    initial_rebalance_delay_ms: int = 100
    session_timeout_ms_min: int = 1_000
    offsets_retention_ms: int = 7 * DAY_MS
    sweep_s: float = 60.0
