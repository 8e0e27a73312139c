"""georelay: a geo-distributed mesh of regional message brokers, for clients.

What is named here is loaded when it is used: brokers and tools use parts of this package without its gRPC client.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from georelay.admin import Admin
    from georelay.connection import Connection, connect
    from georelay.consumed import ConsumedRecord
    from georelay.consumer import Consumer
    from georelay.durability import Durability, Resolution, Stored
    from georelay.errors import DurabilityPending, GeorelayError, Outcome, Retry
    from georelay.lane import NewRecord
    from georelay.positions import Place, Position, PositionLost, Since, Start
    from georelay.producer import Producer
    from georelay.transaction import Transaction

__all__ = [
    "Admin",
    "Connection",
    "ConsumedRecord",
    "Consumer",
    "Durability",
    "DurabilityPending",
    "GeorelayError",
    "NewRecord",
    "Outcome",
    "Place",
    "Position",
    "PositionLost",
    "Producer",
    "Resolution",
    "Retry",
    "Since",
    "Start",
    "Stored",
    "Transaction",
    "connect",
]

_MODULE_OF: Final = {
    "Admin": "admin",
    "Connection": "connection",
    "ConsumedRecord": "consumed",
    "Consumer": "consumer",
    "Durability": "durability",
    "DurabilityPending": "errors",
    "GeorelayError": "errors",
    "NewRecord": "lane",
    "Outcome": "errors",
    "Place": "positions",
    "Position": "positions",
    "PositionLost": "positions",
    "Producer": "producer",
    "Resolution": "durability",
    "Retry": "errors",
    "Since": "positions",
    "Start": "positions",
    "Stored": "durability",
    "Transaction": "transaction",
    "connect": "connection",
}


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'georelay' has no attribute {name!r}")
    return getattr(importlib.import_module(f"georelay.{module}"), name)
