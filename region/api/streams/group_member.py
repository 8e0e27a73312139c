"""This broker as the member of a consumer group for one client of the native API: join, sync, heartbeat, leave.

Rule 1: to the coordinator it is a member like Kafka's clients (ConsumerProtocol bytes), so both share one group.
Rule 2: the client lives as long as it is heard on its call: while it is silent for a session timeout no heartbeat is
        sent for it, and the coordinator gives its partitions away.
Rule 3: before it joins again, the client has released its partitions or has had the rebalance timeout for it.
Rule 4: the member id is the client's: when this broker goes, the client goes on with it at another one.

    JOINING --assigned--> STEADY --rebalance, or new partitions--> RELEASING --released--> JOINING
    JOINING, STEADY --unknown member--> JOINING as a new one      any --fenced, or refused--> the call ends
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import structlog

from georelay.errors import BadRequest, Fenced, GeorelayError, OutcomeUnknown, Retry
from georelay.wire.api import ErrorCode
from georelay.wire.consumer_protocol import (
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from region.api.streams.assignor_core import ASSIGNORS, Subscriber
from region.api.streams.group_codes import error_of_code
from region.coordination.coordinators import Coordinators
from region.coordination.part import Part

log = structlog.get_logger()

HEARTBEATS_PER_SESSION: Final = 3
HEARTBEAT_S_MAX: Final = 3.0
RETRY_S: Final = 0.2
ANSWER_S: Final = 10.0  # what a call may take beyond the time it waits for others
PROTOCOL_TYPE: Final = "consumer"
_AGAIN: Final = frozenset(
    {
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.REBALANCE_IN_PROGRESS,
    }
)
_NEW_MEMBER: Final = ErrorCode.UNKNOWN_MEMBER_ID
_REBALANCES: Final = frozenset({ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION, _NEW_MEMBER})


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSettings:
    """What the client asked for; times as in Kafka's JoinGroup."""

    group: str
    topics: tuple[str, ...]
    instance_id: str = ""
    member_id: str = ""
    session_timeout_ms: int = 45_000
    rebalance_timeout_ms: int = 60_000
    assignors: tuple[str, ...] = ("range", "roundrobin")
    client_id: str = ""
    client_host: str = ""


class MemberListener(Protocol):
    """The subscription that a member works for."""

    async def assigned(self, generation: int, member_id: str, partitions: Mapping[str, tuple[int, ...]]) -> None:
        """Begin to deliver these partitions."""

    async def revoked(self, generation: int, *, is_lost: bool) -> None:
        """Stop delivering; returns when the client has released them (at once when they are lost)."""


class GroupMember:
    """One membership; `run` ends only by an error or by cancelling."""

    def __init__(
        self,
        settings: MemberSettings,
        *,
        coordinators: Coordinators,
        listener: MemberListener,
        partitions_of: Callable[[str], int],
        is_alive: Callable[[], bool],
        principal: str,
    ) -> None:
        """`partitions_of` a topic, 0 while it does not exist; `is_alive`: whether the client was heard lately."""
        self.settings = settings
        self.member_id = settings.member_id
        self.generation = -1
        self._coordinators = coordinators
        self._listener = listener
        self._partitions_of = partitions_of
        self._is_alive = is_alive
        self._principal = principal
        self._counts: dict[str, int] | None = None  # of the topics, when this member assigned them
        period_s = settings.session_timeout_ms / 1000 / HEARTBEATS_PER_SESSION
        self._period_s = min(period_s, HEARTBEAT_S_MAX)

    async def run(self) -> None:
        """Be a member.

        Raises:
            Fenced: the instance id is another's now, or the client was silent. BadRequest and others: refused.
        """
        while True:
            partitions = await self._join()
            if partitions is None:
                continue
            await self._listener.assigned(self.generation, self.member_id, partitions)
            is_lost = await self._stay()
            await self._while_heartbeating(self._listener.revoked(self.generation, is_lost=is_lost))
            if is_lost:
                self.member_id = ""

    async def leave(self) -> None:
        """Leave the group, unless the member is static (its partitions wait for it)."""
        if not self.member_id or self.settings.instance_id or self.generation < 0:
            return
        member = {"member_id": self.member_id, "instance_id": None}
        try:
            await self._ask("leave", {"members": [member]}, retries=False)
        except GeorelayError as error:  # its session will end by itself
            log.info("group_member.left_silently", group=self.settings.group, error=str(error))

    @property
    def identity(self) -> dict[str, Any]:
        """Return what commits of this member carry."""
        return {
            "member_id": self.member_id,
            "instance_id": self.settings.instance_id or None,
            "generation": self.generation,
        }

    # --- joining -----------------------------------------------------------------------------------

    async def _join(self) -> Mapping[str, tuple[int, ...]] | None:
        """Join and sync; None: begin again."""
        settings = self.settings
        metadata = _text(encode_subscription(Subscription(topics=settings.topics)))
        body = {
            "member_id": self.member_id,
            "instance_id": settings.instance_id or None,
            "client_id": settings.client_id,
            "client_host": settings.client_host,
            "session_timeout_ms": settings.session_timeout_ms,
            "rebalance_timeout_ms": settings.rebalance_timeout_ms,
            "protocol_type": PROTOCOL_TYPE,
            "protocols": [{"name": name, "metadata": metadata} for name in settings.assignors],
            "needs_member_id": False,
            "can_skip_assignment": False,
        }
        joined = await self._ask("join", body, wait_ms=settings.rebalance_timeout_ms)
        if not self._went_well(joined, "join"):
            await asyncio.sleep(RETRY_S)
            return None
        self.member_id, self.generation = str(joined["member_id"]), int(joined["generation"])
        self._counts = None
        assignments = []
        if joined["leader"] == self.member_id and not joined.get("skip_assignment"):
            assignments = self._assign(str(joined["protocol"]), joined["members"])
        body = {**self.identity, "protocol_type": None, "protocol": None, "assignments": assignments}
        synced = await self._ask("sync", body, wait_ms=settings.rebalance_timeout_ms)
        if not self._went_well(synced, "sync"):
            return None
        return decode_assignment(base64.b64decode(synced["assignment"] or ""))

    def _went_well(self, answer: Mapping[str, Any], what: str) -> bool:
        code = int(answer["error_code"])
        if code == _NEW_MEMBER:
            self.member_id = ""
        elif code and code not in _AGAIN and code != ErrorCode.ILLEGAL_GENERATION:
            raise error_of_code(code, f"{what} of group {self.settings.group!r}")
        return code == 0

    def _assign(self, protocol: str, members: list[Mapping[str, Any]]) -> list[dict[str, str]]:
        """Share the partitions out: this member leads the group."""
        assign = ASSIGNORS.get(protocol)
        if assign is None:
            raise BadRequest(f"group {self.settings.group!r} chose assignor {protocol!r}, which was not offered")
        subscribers = [
            Subscriber(
                member_id=str(member["member_id"]),
                instance_id=str(member.get("instance_id") or ""),
                topics=decode_subscription(base64.b64decode(member["metadata"])).topics,
            )
            for member in members
        ]
        self._counts = self._count({topic for subscriber in subscribers for topic in subscriber.topics})
        given = assign(subscribers, self._counts)
        return [
            {"member_id": member_id, "assignment": _text(encode_assignment(partitions))}
            for member_id, partitions in given.items()
        ]

    def _count(self, topics: set[str]) -> dict[str, int]:
        return {topic: self._partitions_of(topic) for topic in topics}

    # --- staying -----------------------------------------------------------------------------------

    async def _stay(self) -> bool:
        """Return when the group rebalances; True: this member is no part of it any more."""
        while True:
            await asyncio.sleep(self._period_s)
            if self._counts is not None and self._counts != self._count(set(self._counts)):
                return False  # topics have more partitions now: join again to share them out
            code = await self._heartbeat()
            if code in _REBALANCES:
                return code != ErrorCode.REBALANCE_IN_PROGRESS

    async def _heartbeat(self) -> int:
        """Return Kafka's code; 0 also when nothing is known."""
        if not self._is_alive():
            raise Fenced(f"nothing was heard of the client for {self.settings.session_timeout_ms} ms")
        try:
            answer = await self._ask("heartbeat", self.identity, retries=False)
        except GeorelayError as error:
            if error.retry not in (Retry.LATER, Retry.REFRESH):
                raise
            return 0
        code = int(answer["error_code"])
        if code and code not in _AGAIN and code not in _REBALANCES:
            raise error_of_code(code, f"heartbeat of group {self.settings.group!r}")
        return code if code in _REBALANCES else 0

    async def _while_heartbeating(self, work: Awaitable[None]) -> None:
        """Do `work` and keep the membership alive: a client may take long to finish what it has."""
        task = asyncio.ensure_future(work)
        try:
            while not task.done():
                await asyncio.wait((task,), timeout=self._period_s)
                if not task.done():
                    await self._heartbeat()
            await task
        finally:
            task.cancel()

    async def _ask(
        self, operation: str, body: dict[str, Any], *, wait_ms: int = 0, retries: bool = True
    ) -> Mapping[str, Any]:
        """Ask the coordinator; what passes by itself is asked again, joins and syncs are safe to repeat."""
        while True:
            try:
                return await self._coordinators.call(
                    Part.GROUPS,
                    self.settings.group,
                    operation,
                    {"group": self.settings.group, **body},
                    principal=self._principal,
                    timeout_s=wait_ms / 1000 + ANSWER_S,
                )
            except GeorelayError as error:
                passes = error.retry in (Retry.LATER, Retry.REFRESH) or isinstance(error, OutcomeUnknown)
                if not retries or not passes:
                    raise
                await asyncio.sleep(RETRY_S)


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode("ascii")
