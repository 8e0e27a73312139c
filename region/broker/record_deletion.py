"""Deleting records below an offset: decided by the leader of the stream's home, asked for anywhere.

Rule 1: a request is passed on at most HOPS_MAX times: to the home region, and there to the leader.
Rule 2: it is safe to repeat, so a lost answer may be asked for again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Protocol

from georelay.errors import BadRequest, NotLeader, OutcomeUnknown, UnknownTopic
from georelay.ids import BrokerId, Offset, RegionNumber, StreamKey
from region.topics.hosted_stream import HostedStream

DELETE_METHOD: Final = "stream.delete_records"
HOPS_MAX: Final = 2
JsonObject = Mapping[str, Any]


class AskBroker(Protocol):
    """Carries one request to a broker (None: any) of a region; raises what the other end raised."""

    async def __call__(
        self, *, region: RegionNumber, broker: BrokerId | None, method: str, body: JsonObject
    ) -> dict[str, Any]:
        """Return the answer."""


class RecordDeletion:
    """One broker's part in deleting records.

    Args:
        hosted: the stream when a replica of it is on this broker.
        home_of: the home region of a stream, None for an unknown one.
        leader_of: the leader of a stream in this region, -1 while unknown.
    """

    def __init__(
        self,
        *,
        region: RegionNumber,
        hosted: Callable[[StreamKey], HostedStream | None],
        home_of: Callable[[StreamKey], RegionNumber | None],
        leader_of: Callable[[StreamKey], int],
        ask: AskBroker,
    ) -> None:
        self._region = region
        self._hosted = hosted
        self._home_of = home_of
        self._leader_of = leader_of
        self._ask = ask

    async def delete(self, key: StreamKey, before: Offset, *, hops: int = 0) -> Offset:
        """Return the log start that results; see region.kafka.ports.Cluster.delete_records."""
        home = self._home_of(key)
        if home is None:
            raise UnknownTopic(f"stream {key} is unknown here")
        stream = self._hosted(key)
        if home == self._region and stream is not None and stream.is_leader:
            return await stream.delete_records(before)
        if hops >= HOPS_MAX:
            raise NotLeader(f"the request to delete records of {key} was passed on {hops} times and met no leader")
        leader: int | None = None
        if home == self._region:
            leader = self._leader_of(key)
            if leader <= 0:
                raise NotLeader(f"{key} has no leader yet", leader=-1)
        return await self._pass_on(home, None if leader is None else BrokerId(leader), key, before, hops)

    async def _pass_on(
        self, region: RegionNumber, broker: BrokerId | None, key: StreamKey, before: Offset, hops: int
    ) -> Offset:
        body = {
            "topic_id": key.topic_id.hex(),
            "origin": key.origin,
            "partition": key.partition,
            "before": before,
            "hops": hops + 1,
        }
        answer = await self._ask(region=region, broker=broker, method=DELETE_METHOD, body=body)
        log_start = answer.get("log_start")
        if not isinstance(log_start, int):
            raise OutcomeUnknown(f"region {region} answered {DELETE_METHOD} with something else; ask again")
        return Offset(log_start)

    def serve(self, body: JsonObject) -> Awaitable[Offset]:
        """Return the work that another broker asks for.

        Raises:
            BadRequest: a body that is no request.
        """
        try:
            key = StreamKey(
                bytes.fromhex(str(body["topic_id"])), RegionNumber(int(body["origin"])), int(body["partition"])
            )
            before, hops = int(body["before"]), int(body["hops"])
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise BadRequest(f"{DELETE_METHOD}: {error!r}") from error
        if before < -1 or hops < 1:
            raise BadRequest(f"{DELETE_METHOD}: before {before} and hops {hops} are out of range")
        return self.delete(key, Offset(before), hops=hops)
