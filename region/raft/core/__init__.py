"""Pure Raft: no I/O, no clock, no randomness of its own.

Reading order: roles, types, messages, ready (what a host must do), raft_log, durability, quorum, memberships,
progress, reads, leadership, election, following, leading, node.
"""

from region.raft.core.messages import (
    Append,
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    Message,
    ReadIndexAnswer,
    ReadIndexCheck,
    Snapshot,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from region.raft.core.node import RaftNode
from region.raft.core.progress import ProgressState, ProgressView
from region.raft.core.raft_log import RaftLog
from region.raft.core.ready import Fetch, ReadState, Ready, SnapshotPoint, SnapshotRequest, StorageWrite
from region.raft.core.roles import InvariantViolated, Role
from region.raft.core.ticks import Pulse, Ticks
from region.raft.core.types import (
    PENDING,
    HardState,
    LastId,
    LogEntry,
    Membership,
    Pending,
    RaftConfig,
)

__all__ = [
    "PENDING",
    "Append",
    "AppendResponse",
    "Fetch",
    "HardState",
    "Heartbeat",
    "HeartbeatResponse",
    "InvariantViolated",
    "LastId",
    "LogEntry",
    "Membership",
    "Message",
    "Pending",
    "ProgressState",
    "ProgressView",
    "Pulse",
    "RaftConfig",
    "RaftLog",
    "RaftNode",
    "ReadIndexAnswer",
    "ReadIndexCheck",
    "ReadState",
    "Ready",
    "Role",
    "Snapshot",
    "SnapshotPoint",
    "SnapshotRequest",
    "StorageWrite",
    "Ticks",
    "TimeoutNow",
    "VoteRequest",
    "VoteResponse",
]
