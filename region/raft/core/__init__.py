"""Pure Raft: no I/O, no clock, no randomness of its own.

Reading order: roles, types, messages, ready (what a host must do), raft_log, durability, quorum, progress,
leadership, election, node.
"""

from region.raft.core.messages import (
    Append,
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    Message,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from region.raft.core.node import RaftNode
from region.raft.core.raft_log import RaftLog
from region.raft.core.ready import Fetch, Ready, StorageWrite
from region.raft.core.roles import InvariantViolated, Role
from region.raft.core.types import (
    PENDING,
    HardState,
    LogEntry,
    Membership,
    Pending,
    RaftConfig,
    SoftState,
    StableTag,
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
    "LogEntry",
    "Membership",
    "Message",
    "Pending",
    "RaftConfig",
    "RaftLog",
    "RaftNode",
    "Ready",
    "Role",
    "SoftState",
    "StableTag",
    "StorageWrite",
    "TimeoutNow",
    "VoteRequest",
    "VoteResponse",
]
