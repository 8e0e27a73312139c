"""Quotas of clients: requests and responses as tables.

Field names are Kafka's (schemas DescribeClientQuotas, AlterClientQuotas; KIP-546). An entity is made of parts such
as ("user", "alice") and ("client-id", None), where null is the default for all that have none of their own.
"""

from __future__ import annotations

from collections.abc import Sequence

from georelay.wire.schema import F64, I8, I16, I32, Bool, Str, struct


@struct
class ComponentData:
    """A part of an entity to match: exactly `match` (0), the default (1) or any that is named (2)."""

    entity_type: Str
    match_type: I8
    match: Str | None = None


@struct
class DescribeClientQuotasRequest:
    """Show quotas; `strict` leaves out entities that have parts besides the ones named."""

    components: Sequence[ComponentData] = ()
    strict: Bool = False


@struct
class EntityData:
    """One part of an entity."""

    entity_type: Str
    entity_name: Str | None = None


@struct
class ValueData:
    """A quota, such as ("producer_byte_rate", 1048576.0)."""

    key: Str
    value: F64


@struct
class EntryData:
    """The quotas of one entity."""

    entity: Sequence[EntityData] = ()
    values: Sequence[ValueData] = ()


@struct
class DescribeClientQuotasResponse:
    """Answer to DescribeClientQuotas; entries are null with an error."""

    throttle_time_ms: I32 = 0
    error_code: I16 = 0
    error_message: Str | None = None
    entries: Sequence[EntryData] | None = ()


@struct
class OpData:
    """Set a quota, or remove it."""

    key: Str
    value: F64 = 0.0
    remove: Bool = False


@struct
class AlterEntryData:
    """What to change for one entity."""

    entity: Sequence[EntityData] = ()
    ops: Sequence[OpData] = ()


@struct
class AlterClientQuotasRequest:
    """Change quotas."""

    entries: Sequence[AlterEntryData] = ()
    validate_only: Bool = False


@struct
class AlteredEntryData:
    """What became of the change of one entity."""

    error_code: I16 = 0
    error_message: Str | None = None
    entity: Sequence[EntityData] = ()


@struct
class AlterClientQuotasResponse:
    """Answer to AlterClientQuotas."""

    throttle_time_ms: I32 = 0
    entries: Sequence[AlteredEntryData] = ()
