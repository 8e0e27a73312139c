"""`georelay.connect`: the way into a mesh, and what is opened from it.

async with georelay.connect("http://127.0.0.1:8080") as mesh:
    async with mesh.producer() as producer:
        stored = await producer.publish("orders", b"one", key=b"k")
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from georelay._pb import streams_pb2 as pb
from georelay.admin import Admin
from georelay.channels import Channels, authorization
from georelay.consumer import Consumer
from georelay.consumer_settings import ConsumerSettings
from georelay.durability import Durability, Resolution
from georelay.positions import Position
from georelay.producer import Producer, ProducerSettings
from georelay.queue_consumer import PREFETCH, QueueConsumer
from georelay.ranking import RankingFile
from georelay.region_follower import RegionFollower
from georelay.region_map import RegionMap
from georelay.resolving import Resolver

if TYPE_CHECKING:
    from georelay.tls import TlsContexts

RESOLVE_PATH: Final = "/georelay.v1.Streams/Resolve"
LOCATE_PATH: Final = "/georelay.v1.Streams/Locate"
PING_TIMEOUT_S: Final = 3.0
RESOLVE_TIMEOUT_S: Final = 15.0  # beyond the waiting that was asked for


def connect(
    url: str,
    *,
    user: tuple[str, str] | None = None,
    token: str | None = None,
    tls: TlsContexts | None = None,
    region: str | None = None,
    direct: bool = True,
    client: str = "",
    cache_folder: str | Path | None = None,
) -> Connection:
    """Return a connection to a mesh, to be used as an async context manager.

    Args:
        url: a gateway (http://host:port), or gRPC addresses of a gateway or of brokers (grpc://host:port,...).
        user: (name, password) where the mesh has users; token: a bearer token instead.
        tls: of `georelay.tls`; None for plain text, which brokers take on loopback only.
        region: work with this region only; None: the nearest that is ready, and the next one when it fails.
        direct: speak with the brokers' own addresses; False: only with those that `url` leads to.
        client: name of this client for pins and `georelay route explain`, at most 128 characters; may be empty.
        cache_folder: keep the regions there, for a start while the gateway is away; only this user may write to it.
            None: they are kept in memory only.

    Raises (on entering):
        Unavailable: nobody answers. Unauthenticated. ConfigError: not such a URL.
    """
    resolver = Resolver(
        url,
        region=region,
        authorization=authorization(user, token),
        tls=tls,
        client=client,
        kept=None if cache_folder is None else RankingFile(Path(cache_folder), url),
    )
    return Connection(Channels(user=user, token=token, tls=tls), resolver, direct=direct)


class Connection:
    """A mesh as one client sees it. Not for several event loops."""

    def __init__(self, channels: Channels, resolver: Resolver, *, direct: bool) -> None:
        self._channels = channels
        self._resolver = resolver
        self._region = RegionMap(channels, resolver, direct=direct)
        self._follower = RegionFollower(self._region, resolver, ping=self._ping, rng=random.Random())
        self.admin = Admin(self._channels, self._region)

    async def __aenter__(self) -> Self:
        try:
            await self._region.locate()
        except BaseException:
            await self.close()
            raise
        if self._resolver.is_told:
            self._follower.start(is_cached=self._region.is_cached)
        return self

    async def _ping(self, address: str) -> None:
        await self._channels.ask(address, LOCATE_PATH, pb.LocateRequest(), pb.LocateResponse, timeout_s=PING_TIMEOUT_S)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def region(self) -> str:
        """Return the name of the region that answers."""
        return self._region.region

    def producer(self, **settings: Any) -> Producer:
        """Return a producer; the arguments are the fields of georelay.producer.ProducerSettings."""
        return Producer(self._channels, self._region, ProducerSettings(**settings))

    def consumer(
        self,
        topics: Iterable[str] = (),
        *,
        group: str = "",
        positions: Mapping[tuple[str, int], Position] | None = None,
        **settings: Any,
    ) -> Consumer:
        """Return a consumer; the other arguments are the fields of georelay.consumer.ConsumerSettings.

        Raises:
            BadRequest: settings that do not fit each other.
        """
        chosen = ConsumerSettings(topics=tuple(topics), group=group, positions=positions, **settings)
        return Consumer(self._channels, self._region, chosen)

    def queue(
        self, queue: str, *, prefetch: int = PREFETCH, session_timeout_s: float = 30.0, name: str = ""
    ) -> QueueConsumer:
        """Return a consumer of a queue.

        Args:
            prefetch: leases that are out at a time, 1..1000.
            session_timeout_s: after so long without a sign of life its leases go to others, 1..300.
            name: begin of the consumer's name, for operators.
        """
        return QueueConsumer(
            self._channels, self._region, queue, prefetch=prefetch, session_timeout_s=session_timeout_s, name=name
        )

    async def resolve(
        self,
        topic: str,
        partition: int,
        *,
        epoch: int,
        offset: int,
        durability: Durability = Durability.REGION,
        wait_s: float = 0.0,
    ) -> Resolution:
        """Return what became of a record, asked by its position: which regions have it now.

        Args:
            epoch, offset: of the acknowledgement, or of DurabilityPending.
            durability: to compare with, and to wait for up to `wait_s` (0..30).

        Raises:
            UnknownTopic; OffsetOutOfRange: nothing was ever committed there; HomeUnreachable, Unavailable: ask again.
        """
        request = pb.ResolveRequest(
            topic=topic,
            partition=partition,
            epoch=epoch,
            offset=offset,
            level=durability.level,
            regions=durability.regions,
            deadline_ms=int(wait_s * 1000),
        )

        async def ask_one(address: str, left_s: float) -> pb.ResolveResponse:
            answer: pb.ResolveResponse = await self._channels.ask(
                address, RESOLVE_PATH, request, pb.ResolveResponse, timeout_s=left_s
            )
            return answer

        answer = await self._region.until_answered(ask_one, timeout_s=RESOLVE_TIMEOUT_S + wait_s)
        return Resolution(
            durability=Durability(max(1, answer.regions_count)),
            regions=tuple(answer.regions),
            is_reached=answer.outcome == pb.OUTCOME_STORED,
            is_lost=answer.outcome == pb.OUTCOME_NOT_STORED,
            epoch=answer.epoch,
        )

    async def close(self) -> None:
        """Let everything go; producers and consumers are closed before."""
        await self._follower.close()
        await self._region.close()
        await self._channels.close()
