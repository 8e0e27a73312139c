"""Commits of a group member on their way: each is answered, or its outcome is unknown."""

from __future__ import annotations

import asyncio
from typing import Final

from georelay._pb import streams_pb2 as pb
from georelay.errors import OutcomeUnknown
from georelay.refusals import error_of
from georelay.subscription import Subscription

TIMEOUT_S: Final = 15.0


class GroupCommits:
    """The commits of one consumer."""

    def __init__(self) -> None:
        self._tag = 0
        self._waiting: dict[int, asyncio.Future[None]] = {}

    async def commit(self, subscription: Subscription, rows: list[pb.CommittedOffset], generation: int) -> None:
        """Commit `rows` for the generation under which they were read.

        Raises:
            Fenced: the group has rebalanced since. OutcomeUnknown: not answered. GeorelayError.
        """
        self._tag += 1
        tag = self._tag
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[tag] = done
        try:
            request = pb.Commit(tag=tag, offsets=rows, generation=generation)
            await subscription.send(pb.SubscribeRequest(commit=request))
            async with asyncio.timeout(TIMEOUT_S):
                await done
        except TimeoutError as error:
            raise OutcomeUnknown("commit: not answered in time") from error
        finally:
            self._waiting.pop(tag, None)

    def take(self, committed: pb.Committed) -> None:
        """Take the broker's answer."""
        done = self._waiting.get(committed.tag)
        if done is None or done.done():
            return
        if committed.HasField("refusal"):
            done.set_exception(error_of(committed.refusal))
        else:
            done.set_result(None)

    def lose(self) -> None:
        """End what waits: the call is over."""
        for done in self._waiting.values():
            if not done.done():
                done.set_exception(OutcomeUnknown("commit: the connection broke before it was answered"))
