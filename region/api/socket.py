"""One socket: a WebSocket of one client, which publishes and is sent records (docs/protocol/websocket.md).

Rule 1: messages are worked on in the order in which they came. Publishes wait for their commits side by side,
        PUBLISHES_MAX of them; they are handed on in their order. Beyond that the socket is not read.
Rule 2: a subscription is sent records while it has credit; its last message may use more than is left.
Rule 3: rights and the sign-in are asked for at every publish, at every delivery and, while there is credit, at least
        every SILENCE_MS. Of a socket that does nothing the sign-in is looked at by its owner (sockets_http).
Rule 4: who does not take a message within SEND_S is cut off. No more than one message of each subscription waits, as
        far as there is room for it (answer_room).
Rule 5: every message of a client has one answer, but credit has none.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import structlog
from aiohttp import WSMsgType, web

from georelay.errors import (
    AccessDenied,
    BadRequest,
    Busy,
    GeorelayError,
    OutcomeUnknown,
    Retry,
    Unauthenticated,
    UnknownTopic,
)
from georelay.limits import REST_VALUES_MAX
from mesh.listening.acceptor import cut_off
from mesh.listening.http_sockets import MESSAGE_BYTES_MAX
from region.api.answer_room import AnswerRoom
from region.api.bodies import Bodies
from region.api.consumer_requests import positions_json
from region.api.permits import check_topic
from region.api.publishing import Asker, BatchPublisher, RecordPlace, RecordPublisher, require_topic
from region.api.record_answers import PASSED_OVER, SEND_S, RecordTexts, StoredBatches
from region.api.records_http import RecordsHttp
from region.api.socket_messages import (
    Command,
    GiveCredit,
    Mistake,
    PublishBatch,
    PublishRecords,
    Subscribe,
    Unsubscribe,
    deliver_batch,
    parse_message,
    records_message,
    refusal,
    starts,
    text_message,
)
from region.api.streams.credit import CREDIT_BYTES_MAX, Credit
from region.api.tails import RETRY_S, Tail, Tails
from region.kafka.ports import Cluster
from region.security.access import Access, Operation, Principal, Resource
from region.security.quotas import Quotas

log = structlog.get_logger()

SUBSCRIPTIONS_MAX: Final = 64
PUBLISHES_MAX: Final = 32
MISTAKES_IN_A_ROW_MAX: Final = 20
SILENCE_MS: Final = 15_000  # how long a delivery waits before it asks for rights again
RECORDS_PER_MESSAGE: Final = 1_000
POLICY_CLOSE: Final = 1008


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketServices:
    """The broker around its sockets. `is_still_valid`: whether what a principal signed in by still stands."""

    cluster: Cluster
    publisher: RecordPublisher
    batches: BatchPublisher
    records: RecordsHttp
    tails: Tails
    access: Access
    quotas: Quotas
    is_still_valid: Callable[[Principal], bool] = lambda _: True


@dataclass(slots=True)
class _Subscription:
    credit: Credit
    task: asyncio.Task[None]


class Socket:
    """One of them.

    Args:
        release: gives back bytes of messages that are done with.
        may_publish: whether it may.
    """

    def __init__(
        self,
        services: SocketServices,
        ws: web.WebSocketResponse,
        *,
        principal: Principal,
        bodies: Bodies,
        release: Callable[[int], None],
        may_publish: bool,
    ) -> None:
        self._services = services
        self._ws = ws
        self._principal = principal
        self._bodies = bodies
        self._release = release
        self._may_publish = may_publish
        self._subscriptions: dict[int, _Subscription] = {}
        self._publishes: set[asyncio.Task[None]] = set()
        self._mistakes = 0

    async def run(self) -> None:
        """Serve until either side closes.

        Raises:
            ConnectionError, TimeoutError: the client has left, or does not read.
        """
        cluster = self._services.cluster
        limits = {
            "message_bytes": MESSAGE_BYTES_MAX,
            "credit_bytes": CREDIT_BYTES_MAX,
            "subscriptions": SUBSCRIPTIONS_MAX,
            "publishes": PUBLISHES_MAX,
        }
        await self._say(text_message("hello", region=cluster.region, broker=cluster.broker_id, limits=limits))
        try:
            while (message := await self._ws.receive()).type in (WSMsgType.TEXT, WSMsgType.BINARY):
                is_text = message.type is WSMsgType.TEXT
                await self._take(message.data.encode() if is_text else message.data, is_text=is_text)
                if self._mistakes >= MISTAKES_IN_A_ROW_MAX:
                    await self._ws.close(code=POLICY_CLOSE, message=b"too many mistakes in a row")
                    return
        finally:
            tasks = [*self._publishes, *(subscription.task for subscription in self._subscriptions.values())]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    # --- what comes ------------------------------------------------------------------------------

    async def _take(self, raw: bytes, *, is_text: bool) -> None:
        is_kept = False
        command = await self._parsed(raw) if is_text else parse_message(raw, is_text=False)
        try:
            self._mistakes = self._mistakes + 1 if isinstance(command, Mistake) else 0
            is_kept = await self._do(command, len(raw))
        except GeorelayError as error:
            await self._say(refusal("refused", command.id, error))
        finally:
            if not is_kept:
                self._release(len(raw))

    async def _parsed(self, raw: bytes) -> Command | Mistake:
        try:
            return await self._bodies.parse(raw, partial(parse_message, is_text=True), values_max=REST_VALUES_MAX)
        except GeorelayError as error:  # more values than it may have
            return Mistake(None, error)

    async def _do(self, command: Command | Mistake, size_bytes: int) -> bool:
        """Do what a message says; return whether its bytes are needed until later."""
        match command:
            case Mistake():
                raise command.error
            case Subscribe():
                await self._subscribe(command)
            case Unsubscribe():
                await self._unsubscribe(command)
            case GiveCredit():
                self._subscription(command.id).credit.give(command.size_bytes)
            case _:
                await self._publish(command, size_bytes)
                return True
        return False

    def _subscription(self, number: int) -> _Subscription:
        found = self._subscriptions.get(number)
        if found is None:
            raise BadRequest(f"message.id: there is no subscription {number}")
        return found

    # --- reading ---------------------------------------------------------------------------------

    async def _subscribe(self, command: Subscribe) -> None:
        if command.id in self._subscriptions:
            raise BadRequest(f"message.id: there is a subscription {command.id} already")
        if len(self._subscriptions) >= SUBSCRIPTIONS_MAX:
            raise Busy(f"a socket has at most {SUBSCRIPTIONS_MAX} subscriptions: end one, or open another socket")
        self._check_reading(command.topic)
        tail = await self._services.tails.begin(command.topic, lambda view: starts(command, view.partitions))
        self._services.tails.check_epochs(tail, command.epochs)
        credit, positions = Credit(command.credit_bytes), positions_json(tail.positions)
        await self._say(text_message("subscribed", command.id, topic=tail.view.name, positions=positions))
        work = self._deliver(command, tail, credit)
        task = asyncio.get_running_loop().create_task(work, name=f"socket-{command.topic}")
        self._subscriptions[command.id] = _Subscription(credit, task)

    async def _unsubscribe(self, command: Unsubscribe) -> None:
        task = self._subscription(command.id).task
        del self._subscriptions[command.id]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await self._say(text_message("ended", command.id))

    async def _deliver(self, command: Subscribe, tail: Tail, credit: Credit) -> None:
        """Send what a tail reads, until it cannot be read any more: then say why."""
        try:
            while True:
                await credit.some()
                try:
                    await self._deliver_next(command, tail, credit)
                except GeorelayError as error:
                    if error.retry not in (Retry.LATER, Retry.REFRESH) or isinstance(error, UnknownTopic):
                        raise
                    await asyncio.sleep(RETRY_S)
        except GeorelayError as error:
            self._subscriptions.pop(command.id, None)
            await self._say(refusal("ended", command.id, error))
        except (ConnectionError, TimeoutError) as error:
            self._cut_off(error)

    async def _deliver_next(self, command: Subscribe, tail: Tail, credit: Credit) -> None:
        room = AnswerRoom(self._principal.name)
        try:
            size_bytes = await self._send_next(command, tail, credit, room)
        finally:
            room.end()
        if size_bytes:
            await self._services.records.pause_for(self._principal, size_bytes)

    async def _send_next(self, command: Subscribe, tail: Tail, credit: Credit, room: AnswerRoom) -> int:
        """Send what comes next; return how many bytes of records that were."""
        out: RecordTexts | StoredBatches
        out = StoredBatches(room=room) if command.batches else RecordTexts(records_max=RECORDS_PER_MESSAGE, room=room)
        tail.skipped = []
        await self._services.tails.next(tail, out, wait_ms=SILENCE_MS)
        self._check_reading(command.topic)
        if not tail.has_found(out):
            return 0
        credit.use(size_bytes := out.size_bytes)
        if isinstance(out, RecordTexts):
            more = {
                "skipped": [json.dumps(row).encode() for row in tail.skipped],
                PASSED_OVER: out.texts(PASSED_OVER),
            }
            said = records_message(
                command.id,
                out.texts(),
                size_bytes=out.size_bytes,
                positions=positions_json(tail.positions),
                epochs=positions_json(tail.epochs),
                **more,
            )
            del out, more
            room.keep(len(said))
            async with asyncio.timeout(SEND_S):
                await self._ws.send_frame(said, WSMsgType.TEXT)
        else:
            for row in tail.skipped:
                await self._say(text_message("skipped", command.id, **row))
            for partition, following, batch in out.batches:
                await self._say(deliver_batch(command.id, partition, following, batch))
        return size_bytes

    def _check_reading(self, topic: str) -> None:
        self._check_sign_in()
        self._services.access.check(self._principal, Operation.READ, Resource.TOPIC, topic)

    def _check_sign_in(self) -> None:
        if not self._services.is_still_valid(self._principal):
            raise Unauthenticated("the sign-in has ended: sign in again")

    # --- publishing ------------------------------------------------------------------------------

    async def _publish(self, command: PublishRecords | PublishBatch, size_bytes: int) -> None:
        """Begin a publish; its answer follows when it is done."""
        services = self._services
        self._check_sign_in()
        if not self._may_publish:
            raise AccessDenied("this socket only reads: publish by POST /v1/topics/{topic}/records")
        check_topic(services.access, services.cluster, self._principal, Operation.WRITE, command.topic)
        while len(self._publishes) >= PUBLISHES_MAX:
            await asyncio.wait(self._publishes, return_when=asyncio.FIRST_COMPLETED)
        asker = Asker(access=services.access, principal=self._principal)
        topic = await require_topic(services.cluster, command.topic, asker)
        name, level = command.topic, command.level
        if isinstance(command, PublishRecords):
            begun = services.publisher.begin(topic, name, command.records, level)
        else:
            begun = services.batches.begin(topic, name, command.partition, command.batch, level, lane=self)
        task = asyncio.get_running_loop().create_task(self._answer(command, begun, size_bytes))
        self._publishes.add(task)
        task.add_done_callback(self._publishes.discard)
        task.add_done_callback(lambda _: begun.close())  # where it was cancelled before it began
        if (pause_ms := services.quotas.produce(self._principal, size_bytes)) > 0:
            await asyncio.sleep(pause_ms / 1_000)

    async def _answer(
        self, command: PublishRecords | PublishBatch, begun: Coroutine[Any, Any, list[RecordPlace]], size_bytes: int
    ) -> None:
        try:
            placed = self._services.records.placed(await begun, command.level)
            said = text_message("published", command.id, **placed)
        except GeorelayError as error:
            said = refusal("refused", command.id, error)
        except Exception:
            log.exception("socket.publish_broke")
            said = refusal("refused", command.id, OutcomeUnknown("internal error; the broker's log has the cause"))
        finally:
            self._release(size_bytes)
        try:
            await self._say(said)
        except (ConnectionError, TimeoutError) as error:
            self._cut_off(error)

    # --- what goes -------------------------------------------------------------------------------

    async def _say(self, message: str | bytes) -> None:
        """Send one message. Raises ConnectionError, TimeoutError."""
        async with asyncio.timeout(SEND_S):
            if isinstance(message, str):
                await self._ws.send_str(message)
            else:
                await self._ws.send_bytes(message)

    def _cut_off(self, error: Exception) -> None:
        log.info("socket.left", peer=self._principal.host, error=repr(error))
        cut_off(self._ws.get_extra_info("transport"))
