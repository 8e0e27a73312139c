"""Asking the coordinator of one consumer group, as whoever reads for it: where it is, and that it goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from georelay.errors import PolicyViolation, Unavailable
from georelay.wire.api import ErrorCode
from region.coordination.coordinators import Coordinators
from region.coordination.part import JsonObject, Part

JOIN_AGAIN: Final = frozenset(
    {
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.MEMBER_ID_REQUIRED,
    }
)
_PASSING_CODES: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
    }
)
_NO_ROOM: Final = frozenset(
    {ErrorCode.POLICY_VIOLATION, ErrorCode.GROUP_MAX_SIZE_REACHED, ErrorCode.INVALID_COMMIT_OFFSET_SIZE}
)


class GroupClient:
    """Asks the coordinator of one group.

    Every error of the group but the ones a member lives with becomes a PolicyViolation with Kafka's name of it.
    """

    def __init__(self, coordinators: Coordinators, group: str, principal: str) -> None:
        self._coordinators = coordinators
        self._group = group
        self._principal = principal

    async def ask(self, operation: str, body: JsonObject, *, timeout_s: float = 10.0) -> JsonObject:
        """Return the answer, with `error_code` 0 or one of those that a member lives with.

        Raises:
            Unavailable: passing. PolicyViolation: the group does not take this. Others as Coordinators.call.
        """
        answer = await self._coordinators.call(
            Part.GROUPS,
            self._group,
            operation,
            {"group": self._group, **body},
            principal=self._principal,
            timeout_s=timeout_s,
        )
        refuse(int(answer.get("error_code", 0)), self._group)
        return answer

    async def offsets(self, topic: str, partitions: Sequence[int]) -> dict[int, int]:
        """Return by partition the first offset that is not consumed, -1 where nothing was committed."""
        wanted = [{"topic": topic, "partitions": list(partitions)}]
        answer = await self.ask("fetch_offsets", {"topics": wanted, "require_stable": True})
        found = dict.fromkeys(partitions, -1)
        for row in answer["partitions"]:
            refuse(int(row["error_code"]), self._group)
            found[int(row["partition"])] = int(row["offset"])
        return found

    async def commit(
        self, topic: str, offsets: Mapping[int, int], *, member_id: str = "", generation: int = -1
    ) -> None:
        """Store where the group goes on: by partition the first offset that is not consumed.

        Raises:
            PolicyViolation: this member no longer has a partition, or the group has members and this is none.
        """
        rows = [
            {"topic": topic, "partition": partition, "offset": offset, "leader_epoch": -1, "metadata": ""}
            for partition, offset in offsets.items()
        ]
        body = {"member_id": member_id, "instance_id": None, "generation": generation, "offsets": rows}
        answer = await self.ask("commit", body)
        codes = [int(answer.get("error_code", 0)), *(int(row["error_code"]) for row in answer.get("partitions", ()))]
        for code in codes:
            if code in JOIN_AGAIN and not member_id:
                raise PolicyViolation(f"group {self._group!r} has members, whose positions these are: use another name")
            if code in JOIN_AGAIN:
                raise PolicyViolation(f"group {self._group!r} is sharing its partitions anew; the record comes again")
            refuse(code, self._group)


def refuse(code: int, group: str) -> None:
    """Raise what an error number of a group means here; 0 and what a member lives with pass."""
    if code in _PASSING_CODES:
        raise Unavailable(f"the coordinator of group {group!r} is not there yet")
    if code in _NO_ROOM:
        raise PolicyViolation(
            f"group {group!r}: there is no room in your share of its coordinator, or in the coordinator: delete groups "
            "that nobody needs, or let them expire"
        )
    if code and code not in JOIN_AGAIN:
        name = ErrorCode(code).name if code in ErrorCode.__members__.values() else str(code)
        raise PolicyViolation(f"group {group!r}: {name}")
