"""Limits of a coordinator.

The state of three parts and their stream has to fit into one manifest also when the commands between two manifests
have made it grow (region.log.manifest.MANIFEST_STATE_BYTES_MAX).
"""

from __future__ import annotations

from typing import Final

from georelay.limits import KIB, MIB

COMMAND_BYTES_MAX: Final = 1 * MIB - 4 * KIB
BATCH_BYTES_MAX: Final = 1 * MIB  # of the commands that travel in one record batch; each fits into one
PENDING_BYTES_MAX: Final = 16 * MIB  # proposed and not applied yet; beyond it proposals are refused
PART_SNAPSHOT_BYTES_MAX: Final = 16 * MIB  # beyond it only commands that make the state smaller are taken
PART_RESTORED_BYTES_MAX: Final = 64 * MIB  # what is read back: a state may have grown beyond the limit since it was met
SNAPSHOTS_BYTES_MAX: Final = 28 * MIB  # of all parts together: a checkpoint of it fits into what may be uncommitted
SEALED_BYTES_MAX: Final = 2 * MIB  # of a checkpoint before SEAL: eight of them have to reach the next home in seconds
SEGMENT_BYTES: Final = 4 * MIB  # of the internal topic: each sealed one makes a manifest, so a restart follows few
RETAINED_BYTES: Final = 8 * MIB  # of sealed segments behind the manifests, for replicas that are a little behind
MIRROR_HOLD_BYTES: Final = 256 * MIB  # for regions that are cut off
