"""Where reading of a partition begins: from what a client asks to an offset, checked against the stream (positions).

Rule 1: a name that every region is home of means all its streams; only times and ends can name them together.
Rule 2: `latest` is what the leader in this region says.
"""

from __future__ import annotations

from dataclasses import dataclass

from georelay._pb import streams_pb2 as pb
from georelay.errors import BadRequest, UnknownTopic
from georelay.ids import Epoch
from region.api.reading import EARLIEST, LATEST, StreamReader
from region.api.streams.standing_core import NO_EPOCH, Judgement, Standing, StreamBounds, judge
from region.kafka.ports import Cluster, Stream

STANDING: dict[Standing, pb.Standing] = {
    Standing.OK: pb.STANDING_OK,
    Standing.BEHIND: pb.STANDING_BEHIND,
    Standing.DIVERGED: pb.STANDING_DIVERGED,
    Standing.OUT_OF_RANGE: pb.STANDING_OUT_OF_RANGE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One partition of one stream (local name) and what was asked for it."""

    stream: str
    partition: int
    asked: pb.StartPosition


@dataclass(frozen=True, slots=True, kw_only=True)
class StartPoint:
    """Where reading of a place begins, or why it does not."""

    place: Place
    judgement: Judgement
    log_start: int
    high_watermark: int

    @property
    def is_readable(self) -> bool:
        """Return whether records will be delivered."""
        return self.judgement.standing in (Standing.OK, Standing.BEHIND)

    def written(self) -> pb.StreamStart:
        """Return the message."""
        found = self.judgement
        return pb.StreamStart(
            stream=self.place.stream,
            partition=self.place.partition,
            standing=STANDING[found.standing],
            offset=found.offset,
            behind=found.behind,
            epoch=found.epoch,
            log_start=self.log_start,
            high_watermark=self.high_watermark,
            cursor=self.place.asked.cursor,
        )


def places_of(cluster: Cluster, asked: pb.StartPosition) -> list[Place]:
    """Return the partitions that a start position names.

    Raises:
        UnknownTopic: no such name or partition. BadRequest: a position of a whole topic, or nothing asked for.
    """
    view = cluster.topic(asked.stream)
    if view is None:
        raise UnknownTopic(f"topic {asked.stream!r} does not exist")
    kind = asked.WhichOneof("at")
    if kind is None:
        raise BadRequest(f"position of {asked.stream!r}: give position, earliest, latest or since_us")
    names = list(cluster.stream_names(asked.stream))
    if kind == "position" and (len(names) > 1 or not asked.HasField("partition")):
        raise BadRequest(
            f"position of {asked.stream!r}: an offset is of one partition of one stream"
            + (f"; the streams are {', '.join(names)}" if len(names) > 1 else "")
        )
    if asked.HasField("partition") and not 0 <= asked.partition < view.partitions:
        raise UnknownTopic(f"topic {asked.stream!r} has partitions 0..{view.partitions - 1}, not {asked.partition}")
    partitions = [asked.partition] if asked.HasField("partition") else range(view.partitions)
    return [Place(stream=name, partition=number, asked=asked) for name in names for number in partitions]


async def find_start(cluster: Cluster, reader: StreamReader, place: Place) -> StartPoint:
    """Return where reading begins.

    Raises:
        UnknownTopic, Unavailable, NotLeader: the stream cannot be asked.
    """
    asked = place.asked
    kind = asked.WhichOneof("at")
    edge = LATEST if kind == "latest" else EARLIEST
    bounds = await reader.read(place.stream, place.partition, edge, max_bytes=1, wait_ms=0)
    if kind == "position":
        judgement = stands(
            cluster.stream(place.stream, place.partition),
            asked.position.epoch,
            asked.position.offset,
            log_start=bounds.log_start,
            high_watermark=bounds.high_watermark,
        )
    elif kind == "since_us":
        offset = await reader.first_offset_since(place.stream, place.partition, asked.since_us)
        judgement = Judgement(standing=Standing.OK, offset=offset)
    else:
        offset = bounds.high_watermark if kind == "latest" else bounds.log_start
        judgement = Judgement(standing=Standing.OK, offset=offset)
    return StartPoint(
        place=place, judgement=judgement, log_start=bounds.log_start, high_watermark=bounds.high_watermark
    )


def stands(stream: Stream | None, epoch: int, offset: int, *, log_start: int, high_watermark: int) -> Judgement:
    """Return how a position stands to the replica here, None where there is none: then its epoch is not checked."""
    known_epoch, known_end, end = NO_EPOCH, -1, None
    if stream is not None:
        if epoch >= 0:
            known_epoch, known_end = stream.epoch_end(Epoch(epoch))
        end = stream.next_offset if stream.is_leader and stream.knows_end else None
    bounds = StreamBounds(
        log_start=log_start,
        high_watermark=high_watermark,
        end=end,
        known_epoch=known_epoch,
        known_end=known_end,
        epoch=NO_EPOCH if stream is None else stream.epoch,
    )
    return judge(epoch, offset, bounds)
