"""One member of a consumer group: it joins, keeps itself alive, and says which partitions it has.

Rule 1: the bytes in join and sync are Kafka's ConsumerProtocol with the range assignor, so that members of the text
        protocol, Kafka clients and native clients share one group.
Rule 2: whatever the coordinator no longer knows of this member is answered by joining again; what was delivered and
        not committed comes again then.
Rule 3: while there is no coordinator the member keeps what it has and asks again.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import structlog

from georelay.errors import (
    BadRequest,
    Busy,
    GeorelayError,
    NotCoordinator,
    OutcomeUnknown,
    Unavailable,
)
from georelay.wire.api import ErrorCode
from georelay.wire.consumer_protocol import (
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from region.coordination.part import JsonObject
from region.groups.group_client import GroupClient
from region.kafka.ports import Cluster
from region.text.assignment_core import RANGE, assign_ranges, most_of, most_text

log = structlog.get_logger()

SESSION_MS: Final = 30_000
REBALANCE_MS: Final = 30_000
HEARTBEAT_S: Final = 3.0
RETRY_S: Final = 0.5
JOIN_WAIT_S: Final = REBALANCE_MS / 1000 + 10.0  # the barrier, and a change of the coordinator meanwhile
LEAVE_WAIT_S: Final = 2.0
PASSING: Final = (Unavailable, NotCoordinator, Busy, OutcomeUnknown)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who the member is, as `describe` shows it."""

    client_id: str
    host: str
    principal: str


class Membership:
    """Runs until cancelled.

    Args:
        most: how many partitions it takes, 0: any number. Another member that leads the group may give it more.
        changed: called with the partitions of the topic that this member has from now on; empty while it has none.
    """

    def __init__(
        self,
        *,
        client: GroupClient,
        cluster: Cluster,
        topic: str,
        identity: Identity,
        most: int = 0,
        changed: Callable[[tuple[int, ...]], Awaitable[None]],
    ) -> None:
        self._client = client
        self._cluster = cluster
        self._topic = topic
        self._identity = identity
        self._most = most
        self._changed = changed
        self.member_id = ""
        self.generation = -1

    async def run(self) -> None:
        """Join again and again.

        Raises:
            PolicyViolation, BadRequest: the group does not take this member.
        """
        while True:
            try:
                if await self._join():
                    await self._stay()
            except PASSING as error:
                log.info("text_member.waits", error=str(error))
                await asyncio.sleep(RETRY_S)
            await self._changed(())

    async def leave(self) -> None:
        """Tell the group, so that it need not wait for the session to end."""
        if self.member_id:
            body = {"members": [{"member_id": self.member_id, "instance_id": None}]}
            try:
                await self._client.ask("leave", body, timeout_s=LEAVE_WAIT_S)
            except GeorelayError as error:  # its session ends by itself
                log.info("text_member.left_without_answer", error=str(error))

    async def _join(self) -> bool:
        """Return whether the member has its partitions; False: begin again."""
        metadata = encode_subscription(Subscription(topics=(self._topic,), user_data=most_text(self._most)))
        body = {
            "member_id": self.member_id,
            "instance_id": None,
            "client_id": self._identity.client_id,
            "client_host": self._identity.host,
            "session_timeout_ms": SESSION_MS,
            "rebalance_timeout_ms": REBALANCE_MS,
            "protocol_type": "consumer",
            "protocols": [{"name": RANGE, "metadata": _b64(metadata)}],
            "needs_member_id": False,
            "can_skip_assignment": False,
        }
        joined = await self._client.ask("join", body, timeout_s=JOIN_WAIT_S)
        code = int(joined.get("error_code", 0))
        if code:
            self.member_id = str(joined.get("member_id") or "") if code == ErrorCode.MEMBER_ID_REQUIRED else ""
            await asyncio.sleep(0 if self.member_id else RETRY_S)
            return False
        self.member_id, self.generation = str(joined["member_id"]), int(joined["generation"])
        shares = self._shares(joined) if joined["leader"] == self.member_id else []
        body = self._mine() | {"protocol_type": None, "protocol": None, "assignments": shares}
        synced = await self._client.ask("sync", body, timeout_s=JOIN_WAIT_S)
        if self._must_join_again(int(synced.get("error_code", 0))):
            return False
        assigned = decode_assignment(base64.b64decode(synced["assignment"] or ""))
        await self._changed(assigned.get(self._topic, ()))
        return True

    async def _stay(self) -> None:
        """Return when the group shares its partitions anew."""
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            answer = await self._client.ask("heartbeat", self._mine())
            if self._must_join_again(int(answer.get("error_code", 0))):
                return

    def _must_join_again(self, code: int) -> bool:
        if code == ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = ""
        return bool(code)

    def _mine(self) -> JsonObject:
        return {"member_id": self.member_id, "instance_id": None, "generation": self.generation}

    def _shares(self, joined: Mapping[str, Any]) -> list[JsonObject]:
        """Assign for the whole group, as its leader."""
        topics_of: dict[str, tuple[str, ...]] = {}
        most: dict[str, int] = {}
        for row in joined["members"]:
            member = str(row["member_id"])
            try:
                wish = decode_subscription(base64.b64decode(row["metadata"]))
            except BadRequest:  # of another kind of client: it gets nothing, the others do
                wish = Subscription(topics=())
            topics_of[member] = wish.topics
            limit = most_of(wish.user_data)
            if limit is not None:
                most[member] = limit
        shares = assign_ranges(topics_of, self._partitions, most)
        return [
            {"member_id": member, "assignment": _b64(encode_assignment(partitions))}
            for member, partitions in shares.items()
        ]

    def _partitions(self, topic: str) -> int:
        view = self._cluster.topic(topic)
        return 0 if view is None else view.partitions


def _b64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()
