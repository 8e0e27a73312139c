"""Where consumer groups stand against the ends of the streams that they read.

Rule 1: lag is high watermark - committed offset, in records, never below 0. A partition of which nothing is committed
        has none: where its reading would begin is the consumer's own setting.
Rule 2: the end of a stream is asked for once for all the groups of one question; a replica on this broker is near
        enough, it is behind its leader by milliseconds.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from georelay.errors import (
    BadRequest,
    CoordinatorUnavailable,
    GeorelayError,
    GroupNotEmpty,
    NotCoordinator,
    UnknownGroup,
    UnknownTopic,
)
from georelay.wire.api import ErrorCode
from region.api.reading import LATEST, StreamReader
from region.coordination.coordinators import Coordinators
from region.coordination.part import JsonObject, Part
from region.groups.subscriptions import assigned_partitions
from region.kafka.ports import Cluster

ENDS_AT_ONCE_MAX: Final = 32
GROUPS_AT_ONCE_MAX: Final = 16

Place: TypeAlias = tuple[str, int]  # topic, partition


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLag:
    """Where a group stands in one partition.

    Args:
        committed: next offset it wants, None for none.
        high_watermark: None where no replica could be asked.
        committed_us: when it was committed, us since 1970; -1 for none.
        member_id, client_id: who is assigned it, "" for nobody.
    """

    topic: str
    partition: int
    committed: int | None
    high_watermark: int | None
    metadata: str = ""
    committed_us: int = -1
    member_id: str = ""
    client_id: str = ""

    @property
    def lag(self) -> int | None:
        """Return the records that are not consumed yet, None while that is not known."""
        if self.committed is None or self.high_watermark is None:
            return None
        return max(0, self.high_watermark - self.committed)


class GroupLag:
    """Asks coordinators and streams."""

    def __init__(self, coordinators: Coordinators, cluster: Cluster, reader: StreamReader) -> None:
        self._coordinators = coordinators
        self._cluster = cluster
        self._reader = reader

    async def describe(self, group_id: str) -> tuple[JsonObject, list[PartitionLag]]:
        """Return a group's description and where it stands (UnknownGroup, CoordinatorUnavailable)."""
        described = await self._ask(group_id, "describe")
        fetched = await self._ask(group_id, "fetch_offsets")
        committed = {(str(row["topic"]), int(row["partition"])): row for row in fetched["partitions"]}
        owners = _owners(described)
        places = sorted({*committed, *owners})
        ends = await self.ends(places)
        return described, [_row(place, committed.get(place), ends.get(place), owners.get(place)) for place in places]

    async def totals(self, group_ids: Iterable[str]) -> dict[str, int]:
        """Return the lag of groups, over all partitions; groups that cannot be asked now are left out."""
        slots = asyncio.Semaphore(GROUPS_AT_ONCE_MAX)
        wanted = list(group_ids)

        async def committed(group_id: str) -> dict[Place, int]:
            async with slots:
                fetched = await self._ask(group_id, "fetch_offsets")
            return {(str(row["topic"]), int(row["partition"])): int(row["offset"]) for row in fetched["partitions"]}

        found = await asyncio.gather(*(committed(group_id) for group_id in wanted), return_exceptions=True)
        rows: dict[str, dict[Place, int]] = {}
        for group_id, answer in zip(wanted, found, strict=True):
            if isinstance(answer, dict):
                rows[group_id] = answer
            elif not isinstance(answer, GeorelayError):
                raise answer
        ends = await self.ends(sorted({place for offsets in rows.values() for place in offsets}))
        return {
            group_id: sum(max(0, ends[place] - offset) for place, offset in offsets.items() if place in ends)
            for group_id, offsets in rows.items()
        }

    async def ends(self, places: Sequence[Place]) -> dict[Place, int]:
        """Return what consumers may see of partitions; those of which no replica answers are left out."""
        slots = asyncio.Semaphore(ENDS_AT_ONCE_MAX)

        async def end(place: Place) -> int:
            stream = self._cluster.stream(*place)
            if stream is not None and stream.is_visible_end_known:
                return stream.visible_end
            async with slots:
                return (await self._reader.read(*place, LATEST, max_bytes=1, wait_ms=0)).high_watermark

        found = await asyncio.gather(*(end(place) for place in places), return_exceptions=True)
        ends: dict[Place, int] = {}
        for place, answer in zip(places, found, strict=True):
            if isinstance(answer, int):
                ends[place] = answer
            elif not isinstance(answer, GeorelayError):
                raise answer
        return ends

    async def _ask(self, group_id: str, operation: str) -> JsonObject:
        answer = await self._coordinators.call(Part.GROUPS, group_id, operation, {"group": group_id})
        raise_refusal(group_id, answer)
        return answer


def raise_refusal(group_id: str, answer: Mapping[str, Any]) -> None:
    """Raise what an answer of a coordinator says is wrong with a group.

    Raises:
        UnknownGroup, GroupNotEmpty, NotCoordinator, CoordinatorUnavailable, UnknownTopic, BadRequest.
    """
    code = answer.get("error_code", 0)
    if code == ErrorCode.NONE:
        return
    match code:
        case ErrorCode.GROUP_ID_NOT_FOUND:
            raise UnknownGroup(f"group {group_id!r} does not exist in this region")
        case ErrorCode.NON_EMPTY_GROUP | ErrorCode.UNKNOWN_MEMBER_ID:
            raise GroupNotEmpty(f"group {group_id!r} has members: stop them first")
        case ErrorCode.NOT_COORDINATOR:
            raise NotCoordinator
        case ErrorCode.COORDINATOR_NOT_AVAILABLE | ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            raise CoordinatorUnavailable(f"the coordinator of group {group_id!r} does not answer now; try again")
        case ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise UnknownTopic("no such topic or partition")
        case _:
            raise BadRequest(f"group {group_id!r}: {answer.get('error', code)}")


def _owners(described: JsonObject) -> dict[Place, tuple[str, str]]:
    """Return the member and the client of every assigned partition."""
    owners: dict[Place, tuple[str, str]] = {}
    for member in described["members"]:
        assigned = assigned_partitions(described["protocol_type"], base64.b64decode(member["assignment"]))
        for topic, partitions in assigned.items():
            for partition in partitions:
                owners[topic, partition] = (member["member_id"], member["client_id"])
    return owners


def _row(place: Place, committed: JsonObject | None, end: int | None, owner: tuple[str, str] | None) -> PartitionLag:
    offset = -1 if committed is None else int(committed["offset"])
    return PartitionLag(
        topic=place[0],
        partition=place[1],
        committed=None if offset < 0 else offset,
        high_watermark=end,
        metadata="" if committed is None else str(committed["metadata"]),
        committed_us=-1 if committed is None else int(committed["committed_us"]),
        member_id="" if owner is None else owner[0],
        client_id="" if owner is None else owner[1],
    )
