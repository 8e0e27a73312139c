"""A subscription by queue: records are leased to the client and settled by it, one by one.

Rule 1: at most `prefetch` leases are out; one that has run out counts no more, the queue gives its record to others.
Rule 2: when the call ends, whatever the reason, what is out is handed back at once.
Rule 3: the right to read is asked for before records are received, and again before they are delivered.
Rule 4: every settlement is answered: done, or LEASE_EXPIRED, when the record is another's by now.
"""

from __future__ import annotations

import asyncio
import base64
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import structlog

from georelay._pb import streams_pb2 as pb
from georelay.errors import BadRequest, GeorelayError, LeaseExpired, Retry
from georelay.refusals import refusal_of
from region.api.streams.credit import Credit
from region.api.streams.partition_pump import Put
from region.api.streams.services import StreamsServices
from region.coordination.part import Part
from region.security.access import Principal

log = structlog.get_logger()

PREFETCH: Final = 100
PREFETCH_MAX: Final = 1_000
SESSION_TIMEOUT_MS: Final = 30_000
SESSION_TIMEOUT_MS_MIN: Final = 1_000
SESSION_TIMEOUT_MS_MAX: Final = 300_000
RECEIVE_WAIT_MS: Final = 5_000
ANSWER_S: Final = 10.0
RETRY_S: Final = 0.2
RUN_OUT: Final = "the lease has run out: the record is, or will be, delivered again"
SETTLING_MAX: Final = 100  # requests at a time
NAME_CHARS_MAX: Final = 200
_OPERATION: Final = {
    pb.VERDICT_ACKNOWLEDGE: "acknowledge",
    pb.VERDICT_REJECT: "reject",
    pb.VERDICT_EXTEND: "extend",
    pb.VERDICT_DEAD_LETTER: "reject",
}


class QueueSource:
    """Source of one consumer of a queue."""

    def __init__(
        self,
        asked: pb.QueueMembership,
        services: StreamsServices,
        *,
        credit: Credit,
        put: Put,
        principal: Principal,
        check_right: Callable[[], None] = lambda: None,
    ) -> None:
        """`check_right` raises when the client may not read the queue any more."""
        if not asked.queue or len(asked.consumer) > NAME_CHARS_MAX:
            raise BadRequest(f"queue: a name, and a consumer of at most {NAME_CHARS_MAX} characters")
        self._prefetch = asked.prefetch or PREFETCH
        self._session_ms = asked.session_timeout_ms or SESSION_TIMEOUT_MS
        if not 1 <= self._prefetch <= PREFETCH_MAX:
            raise BadRequest(f"prefetch: {self._prefetch} is outside 1..{PREFETCH_MAX}")
        if not SESSION_TIMEOUT_MS_MIN <= self._session_ms <= SESSION_TIMEOUT_MS_MAX:
            raise BadRequest(
                f"session_timeout_ms: {self._session_ms} is outside {SESSION_TIMEOUT_MS_MIN}..{SESSION_TIMEOUT_MS_MAX}"
            )
        self._queue = asked.queue
        self._consumer = f"{asked.consumer or 'native'}-{secrets.token_hex(8)}"
        self._coordinators = services.require_coordinators()
        self._wall_ns = services.wall_ns
        self._credit = credit
        self._put = put
        self._who = principal
        self._quotas = services.quotas
        self._check_right = check_right
        self._out: dict[str, int] = {}  # lease -> until when, ms since 1970
        self._room = asyncio.Event()
        self._settling: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Receive for ever (GeorelayError: no such queue, and what trying again cannot help)."""
        while True:
            await self._credit.some()
            wanted = await self._wait_for_room()
            self._check_right()
            body = {
                "consumer": self._consumer,
                "max": wanted,
                "wait_ms": RECEIVE_WAIT_MS,
                "session_timeout_ms": self._session_ms,
            }
            try:
                answer = await self._ask("receive", body, wait_ms=RECEIVE_WAIT_MS)
            except GeorelayError as error:
                if error.retry not in (Retry.LATER, Retry.REFRESH):
                    raise
                await asyncio.sleep(RETRY_S)
                continue
            self._check_right()
            if answer["records"]:
                await self._deliver(answer["records"])

    async def handle(self, request: pb.SubscribeRequest) -> None:
        """Take settlements."""
        kind = request.WhichOneof("request")
        if kind == "alive":
            return
        if kind != "settle":
            raise BadRequest(f"{kind}: this subscription is by queue")
        if not 0 < len(request.settle.settlements) <= PREFETCH_MAX:
            raise BadRequest(f"settle: 1..{PREFETCH_MAX} settlements at a time")
        while len(self._settling) >= SETTLING_MAX:  # nothing more is read meanwhile
            await asyncio.wait(self._settling, return_when=asyncio.FIRST_COMPLETED)
        task = asyncio.get_running_loop().create_task(self._settle(request.settle))
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)

    def heard(self) -> None:
        """Nothing: the queue hears of the consumer by what it asks."""

    async def close(self) -> None:
        """Finish the settlements that came, then hand the other leases back."""
        if self._settling:
            await asyncio.wait(self._settling)
        try:
            await self._ask("release", {"consumer": self._consumer})
        except GeorelayError as error:  # the consumer's session will end by itself
            log.info("queue_consumer.left_silently", queue=self._queue, error=str(error))

    async def _wait_for_room(self) -> int:
        """Return how many leases the client may get, at least 1."""
        while True:
            now_ms = self._wall_ns() // 1_000_000
            self._out = {lease: until for lease, until in self._out.items() if until > now_ms}
            if len(self._out) < self._prefetch:
                return self._prefetch - len(self._out)
            self._room.clear()
            soonest_s = (min(self._out.values()) - now_ms) / 1000
            try:
                async with asyncio.timeout(max(soonest_s, 0.01)):
                    await self._room.wait()
            except TimeoutError:
                continue

    async def _deliver(self, rows: Sequence[Mapping[str, Any]]) -> None:
        leased = pb.Leased(records=[_leased(row) for row in rows])
        self._out.update({record.lease: record.leased_until_ms for record in leased.records})
        size_bytes = leased.ByteSize()
        self._credit.use(size_bytes)
        await self._put(pb.SubscribeResponse(leased=leased))
        if (pause_ms := self._quotas.fetch(self._who, size_bytes)) > 0:
            await asyncio.sleep(pause_ms / 1000)

    async def _settle(self, settle: pb.Settle) -> None:
        refusals: dict[int, pb.Refusal] = {}
        alike: dict[tuple[int, int, str], list[int]] = {}
        for position, row in enumerate(settle.settlements):
            alike.setdefault((row.verdict, row.delay_ms, row.reason), []).append(position)
        for (verdict, delay_ms, reason), positions in alike.items():
            leases = [settle.settlements[position].lease for position in positions]
            try:
                gone = await self._settle_alike(verdict, delay_ms, reason, leases)
            except GeorelayError as error:
                refusals.update({position: refusal_of(error) for position in positions})
                continue
            for position in positions:
                why = gone.get(settle.settlements[position].lease)
                if why is not None:
                    refusals[position] = refusal_of(LeaseExpired(why or RUN_OUT))
        self._room.set()
        settled = pb.Settled(tag=settle.tag)
        if refusals:
            settled.refusals.extend(refusals.get(number, pb.Refusal()) for number in range(len(settle.settlements)))
        await self._put(pb.SubscribeResponse(settled=settled))

    async def _settle_alike(self, verdict: int, delay_ms: int, reason: str, leases: list[str]) -> dict[str, str]:
        """Settle leases in one way; returns those that were not held any more, and why if that is known."""
        operation = _OPERATION.get(verdict)  # type: ignore[call-overload]
        if operation is None:
            raise BadRequest(f"settle: verdict {verdict} is unknown")
        body: dict[str, Any] = {"consumer": self._consumer, "leases": leases}
        if operation == "reject":
            then = "dead_letter" if verdict == pb.VERDICT_DEAD_LETTER else "requeue"
            body |= {"then": then, "delay_ms": delay_ms, "reason": reason}
        elif operation == "extend":
            body["visibility_timeout_ms"] = delay_ms
        answer = await self._ask(operation, body)
        for lease in leases:
            if operation == "extend" and lease in self._out:
                self._out[lease] = self._wall_ns() // 1_000_000 + delay_ms
            elif operation != "extend":
                self._out.pop(lease, None)
        return {row["lease"]: row.get("reason", "") for row in answer["results"] if row["code"] != "OK"}

    async def _ask(self, operation: str, body: Mapping[str, Any], *, wait_ms: int = 0) -> dict[str, Any]:
        return await self._coordinators.call(
            Part.QUEUES,
            self._queue,
            operation,
            {"queue": self._queue, **body},
            principal=self._who.name,
            timeout_s=wait_ms / 1000 + ANSWER_S,
        )


def _leased(row: Mapping[str, Any]) -> pb.LeasedRecord:
    return pb.LeasedRecord(
        lease=row["lease"],
        partition=row["partition"],
        deliveries=row["deliveries"],
        leased_until_ms=row["leased_until_ms"],
        record=pb.StoredRecord(
            offset=row["offset"],
            timestamp_ms=row["timestamp_ms"],
            key=_raw(row["key"]),
            value=_raw(row["value"]),
            headers=[pb.Header(name=name, value=_raw(value)) for name, value in row["headers"]],
        ),
    )


def _raw(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
