"""Orphan branches of this region: each is known by the leader of its partition, whoever is asked.

Rule: a question goes to the leader once; it answers or refuses, and whoever asked asks again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

import structlog

from georelay.errors import BadRequest, GeorelayError, NotLeader, OutcomeUnknown, Unavailable, UnknownTopic
from georelay.fields import INT64_MAX, FieldError, Fields
from georelay.ids import BrokerId, Epoch, Offset, StreamKey, region_of
from georelay.limits import MIB, PARTITIONS_PER_TOPIC_MAX, TOPIC_NAME_CHARS_MAX
from mesh.replication.ports import Answer
from region.api.orphans import EPOCH_MAX, BranchPiece, BranchView
from region.broker.entry_frames import decode_frames, encode_frames
from region.topics.hosted_stream import HostedStream
from region.topics.orphan_core import OrphanBranch

log = structlog.get_logger()

LIST_METHOD: Final = "orphans.list"
READ_METHOD: Final = "orphans.read"
DROP_METHOD: Final = "orphans.drop"
METHODS: Final = frozenset({LIST_METHOD, READ_METHOD, DROP_METHOD})
ASK_TIMEOUT_S: Final = 5.0
BRANCHES_PER_BROKER_MAX: Final = 10_000
READ_BYTES_MAX: Final = 4 * MIB
_FIRST: Final = -1


class AskBroker(Protocol):
    """Carries a question to another broker of this region; raises what the other end raised."""

    def __call__(
        self, broker: BrokerId, method: str, body: Mapping[str, Any], *, timeout_s: float
    ) -> Awaitable[Answer]:
        """Return the answer."""


class RegionOrphans:
    """Implements region.api.orphans.OrphanBranches, and answers other brokers of the region.

    Args:
        streams: hosted here. key_of: the stream behind a local name's partition, None for an unknown one.
        others: other brokers of the region that are alive.
        leader_of: the leader of a stream in this region, -1 while unknown.
    """

    def __init__(
        self,
        *,
        me: BrokerId,
        streams: Callable[[], Iterable[HostedStream]],
        key_of: Callable[[str, int], StreamKey | None],
        hosted: Callable[[StreamKey], HostedStream | None],
        leader_of: Callable[[StreamKey], int],
        others: Callable[[], Sequence[BrokerId]],
        ask: AskBroker,
    ) -> None:
        self.region = region_of(me)
        self._me = me
        self._streams = streams
        self._key_of = key_of
        self._hosted = hosted
        self._leader_of = leader_of
        self._others = others
        self._ask = ask

    # --- for the HTTP room ------------------------------------------------------------------------

    async def branches(self) -> Sequence[BranchView]:
        """Return the branches of every partition whose leader is reached."""
        found = list(self._led())
        for broker in self._others():
            try:
                answer = await self._ask(broker, LIST_METHOD, {}, timeout_s=ASK_TIMEOUT_S)
                rows = Fields(dict(answer.body), LIST_METHOD).items("branches", count_max=BRANCHES_PER_BROKER_MAX)
                found += [BranchView.from_json(row) for row in rows]
            except (GeorelayError, FieldError) as error:  # its partitions have another leader soon
                log.warning("orphans.not_listed", broker=broker, reason=str(error))
        return sorted(found, key=lambda row: (row.topic, row.partition, row.epoch))

    async def read(self, topic: str, partition: int, epoch: int, offset: int, max_bytes: int) -> BranchPiece:
        """Return batches of one branch."""
        leader = self._leader(topic, partition)
        if leader == self._me:
            return await self._read_here(topic, partition, epoch, offset, max_bytes)
        body = {"topic": topic, "partition": partition, "epoch": epoch, "offset": offset, "max_bytes": max_bytes}
        answer = await self._ask(leader, READ_METHOD, body, timeout_s=ASK_TIMEOUT_S)
        try:
            return BranchPiece(
                entries=decode_frames(answer.attachment),
                next_offset=Fields(dict(answer.body), READ_METHOD).integer("next_offset", low=0, high=INT64_MAX),
            )
        except (FieldError, ValueError) as error:
            raise Unavailable(f"broker {leader} answered {READ_METHOD} with something else: {error}") from error

    async def drop(self, topic: str, partition: int, epoch: int) -> int:
        """Let a branch and older ones be deleted."""
        leader = self._leader(topic, partition)
        if leader == self._me:
            return await self._stream(topic, partition).drop_orphans(Epoch(epoch))
        body = {"topic": topic, "partition": partition, "epoch": epoch}
        answer = await self._ask(leader, DROP_METHOD, body, timeout_s=ASK_TIMEOUT_S)
        dropped = answer.body.get("dropped")
        if not isinstance(dropped, int):
            raise OutcomeUnknown(f"broker {leader} answered {DROP_METHOD} with something else")
        return dropped

    # --- for other brokers ------------------------------------------------------------------------

    async def serve(self, method: str, body: Mapping[str, Any]) -> Answer:
        """Answer another broker of this region.

        Raises:
            BadRequest: a body that is no question. Others as the methods above.
        """
        if method == LIST_METHOD:
            return Answer({"branches": [row.to_json() for row in self._led()][:BRANCHES_PER_BROKER_MAX]})
        try:
            fields = Fields(dict(body), method)
            topic = fields.text("topic", chars_max=TOPIC_NAME_CHARS_MAX + 32)
            partition = fields.integer("partition", low=0, high=PARTITIONS_PER_TOPIC_MAX - 1)
            epoch = fields.integer("epoch", low=1, high=EPOCH_MAX)
            if method == DROP_METHOD:
                fields.done()
                return Answer({"dropped": await self._stream(topic, partition).drop_orphans(Epoch(epoch))})
            offset = fields.integer("offset", low=_FIRST, high=INT64_MAX)
            max_bytes = fields.integer("max_bytes", low=1, high=READ_BYTES_MAX)
            fields.done()
        except FieldError as error:
            raise BadRequest(str(error)) from error
        piece = await self._read_here(topic, partition, epoch, offset, max_bytes)
        return Answer({"next_offset": piece.next_offset}, encode_frames(piece.entries))

    # --- here -------------------------------------------------------------------------------------

    def _led(self) -> Iterable[BranchView]:
        for stream in self._streams():
            if stream.is_leader:
                yield from (_view(stream.topic, stream.partition, branch) for branch in stream.orphans())

    def _leader(self, topic: str, partition: int) -> BrokerId:
        key = self._key(topic, partition)
        leader = self._leader_of(key)
        if leader <= 0:
            raise NotLeader(f"partition {partition} of '{topic}' has no leader yet", leader=-1)
        return BrokerId(leader)

    def _key(self, topic: str, partition: int) -> StreamKey:
        key = self._key_of(topic, partition)
        if key is None:
            raise UnknownTopic(f"topic '{topic[:60]}' has no partition {partition} here")
        return key

    def _stream(self, topic: str, partition: int) -> HostedStream:
        stream = self._hosted(self._key(topic, partition))
        if stream is None or not stream.is_leader:
            raise NotLeader(leader=-1 if stream is None else stream.leader_id)
        return stream

    async def _read_here(self, topic: str, partition: int, epoch: int, offset: int, max_bytes: int) -> BranchPiece:
        stream = self._stream(topic, partition)
        branch = next((row for row in stream.orphans() if row.epoch == epoch), None)
        if branch is None:
            raise BadRequest(f"epoch {epoch} of {topic}/{partition} cut off no branch that is kept in this region")
        offset = branch.first if offset == _FIRST else offset
        if not branch.first <= offset <= branch.following:
            raise BadRequest(f"offset {offset} is not in {branch.first}..{branch.following} of the branch")
        entries = await stream.read_orphans(branch, Offset(offset), max_bytes)
        return BranchPiece(entries=entries, next_offset=entries[-1].next_offset if entries else branch.following)


def _view(topic: str, partition: int, branch: OrphanBranch) -> BranchView:
    return BranchView(
        topic=topic,
        partition=partition,
        epoch=branch.epoch,
        first=branch.first,
        following=branch.following,
        cut_us=branch.cut_us,
        epochs=branch.epochs,
    )
