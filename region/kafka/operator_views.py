"""What is shown of brokers: where one serves, the producers that its streams remember, and what it stores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

NO_TRANSACTION: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerInfo:
    """One broker of this region. `grpc` and `admin` are host:port, empty when not served."""

    id: int
    kafka_host: str
    kafka_port: int
    grpc: str = ""
    admin: str = ""
    alive: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerInfo:
    """A producer that a partition remembers.

    Args:
        last_sequence: of its newest batch, -1 while unknown.
        newest_append_ms: when that was appended, since 1970.
        transaction_number: of the newest transaction that ended here, -1: none.
        transaction_start: first offset of the open transaction, -1: none.
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int
    newest_append_ms: int
    transaction_number: int = NO_TRANSACTION
    transaction_start: int = NO_TRANSACTION


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSize:
    """The bytes on disk of one replica, by the local name of its topic."""

    topic: str
    partition: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerStorage:
    """What one broker stores. `total_bytes` and `usable_bytes` are the disk's, -1 while unknown."""

    directory: str
    replicas: Sequence[ReplicaSize]
    total_bytes: int = -1
    usable_bytes: int = -1
