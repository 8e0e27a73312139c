"""Transactions of one coordinator: its replicated state, and the service of its leader.

Operations of `call` (key: the transactional id; errors are classes of georelay.errors):

    init            transactional_id, timeout_ms, producer_id -1, producer_epoch -1 -> producer_id, producer_epoch
    add_partitions  transactional_id, producer_id, producer_epoch, partitions [[topic, partition], ...] -> errors
                    {"topic/partition": error code}; {} when all are in, else none was added
    add_offsets     transactional_id, producer_id, producer_epoch, group_id -> {}
    end             transactional_id, producer_id, producer_epoch, is_commit -> {}
    verify          transactional_id, producer_id, producer_epoch, and topic_id, origin, partition or group_id -> number
    describe        transactional_id -> see `_describe`
    list            states [], producer_ids [] -> transactions [[transactional id, producer id, state], ...]

Rule 1: whatever is answered is committed first. The answer to `end` follows the decision, as Kafka's; the markers are
        written after it.
Rule 2: one change of an id at a time: meanwhile others are told to come again (ConcurrentTransactions). A change whose
        asker has gone away goes on: the next one is decided from what it leaves.
Rule 3: an id is its principal's who made it. What it keeps more has to fit into the share of its principal
        (region.coordination.shares_core); the end of a transaction always fits.
Rule 4: clocks decide at the leader only: what has timed out is aborted with an epoch of its own, what is idle expires.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final

import structlog

from georelay.errors import (
    BadRequest,
    Busy,
    ConcurrentTransactions,
    GeorelayError,
    InvalidTransactionTimeout,
    NotLeader,
    PolicyViolation,
    ProducerFenced,
    UnknownTransactionalId,
)
from georelay.fields import FieldError, Fields
from georelay.ids import RaftIndex, StreamKey
from region.coordination.coordinators import PRINCIPALS_LEVEL
from region.coordination.log import CoordinatorLog, TimerHandle
from region.coordination.part import CommandError, JsonObject, Part
from region.coordination.shares_core import NOBODY, Room, Shares
from region.groups.settings import GROUP_ID_CHARS_MAX as KEPT_GROUP_ID_CHARS_MAX
from region.transactions.book_core import (
    GROUP_ID_CHARS_MAX,
    STATE_BYTES_MAX,
    TRANSACTIONAL_ID_CHARS_MAX,
    TRANSACTIONAL_IDS_MAX,
    TransactionBook,
    key_of,
    put_command,
    remove_command,
    row_bytes,
)
from region.transactions.completion import Completions
from region.transactions.participants import Participants
from region.transactions.settings import TransactionSettings
from region.transactions.transaction_core import (
    PARTITIONS_PER_TRANSACTION_MAX,
    PREPARED,
    ProducerIdNeeded,
    State,
    Transaction,
    abort_by_fencing,
    add,
    check_owner,
    complete,
    end,
    initialize,
    is_idle,
    is_overdue,
    verified_number,
)

log = structlog.get_logger()

TOPIC_CHARS_MAX: Final = 300
FILTERS_MAX: Final = 1_000
_INT63_MAX: Final = 2**63 - 1
_EPOCH_MAX: Final = 32_767


class TransactionsPart:
    """Implements region.coordination.part.CoordinatorPart."""

    part = Part.TRANSACTIONS

    def __init__(
        self, log_: CoordinatorLog, participants: Participants, settings: TransactionSettings | None = None
    ) -> None:
        self._log = log_
        self._participants = participants
        self._settings = TransactionSettings() if settings is None else settings
        self._book = TransactionBook()
        self._changing: set[str] = set()
        self._new_ids = Shares(TRANSACTIONAL_IDS_MAX)  # on their way into the log, as are these bytes
        self._new_bytes = Shares(STATE_BYTES_MAX)
        self._unheard: dict[str, tuple[int, int]] = {}  # (producer id, epoch) that began in an epoch not known whole
        self._serving = False
        self._timer: TimerHandle | None = None
        self._chores: set[asyncio.Task[None]] = set()
        self._completions = Completions(participants, self._finished)
        self._operations: Mapping[str, Callable[[Fields], Awaitable[JsonObject]]] = {
            "add_partitions": self._add_partitions,
            "add_offsets": self._add_offsets,
            "end": self._end,
            "verify": self._verify,
            "describe": self._describe,
            "list": self._list,
        }

    @property
    def book(self) -> TransactionBook:
        """Return the replicated state, to look at."""
        return self._book

    # --- replicated state -------------------------------------------------------------------------

    def apply(self, command: bytes, *, index: RaftIndex, append_us: int) -> None:
        """Follow one committed command; a decision is carried out by the leader."""
        try:
            written = self._book.apply(command, append_us=append_us)
        except ValueError as error:
            raise CommandError(f"entry {index} holds no transaction command: {error}") from error
        if written is not None and written.state is State.ONGOING and self._is_unheard(written):
            del self._unheard[written.transactional_id]  # another replica has let it go on
        if self._serving and written is not None and written.state in PREPARED:
            self._completions.begin(written)

    def snapshot(self) -> bytes:
        """Return the state after the newest command."""
        return self._book.snapshot()

    def restore(self, raw: bytes) -> None:
        """Replace the state."""
        self._book.restore(raw)

    def fence(self, *, append_us: int, epoch: int, is_whole: bool = False) -> None:
        """Change nothing in the state: open transactions end by their timeout. Where the state is not whole, fence
        every producer until it initializes: of a transaction that it began nothing may be known here, and "committed"
        would be said of the one before. Forgotten at a restart, when who goes on has long been told.
        """
        if not is_whole:
            self._unheard = {row.transactional_id: (row.producer_id, row.producer_epoch) for row in self._book}

    def claim(self, name: str) -> int:
        """Return when a transactional id was last changed, 0 for an unknown one."""
        known = self._book.get(name)
        return 0 if known is None else max(known.updated_us, 1)

    # --- leading ----------------------------------------------------------------------------------

    def elected(self) -> None:
        """Go on with what was decided, and watch the clock."""
        self._serving = True
        for row in self._book:
            if row.state in PREPARED:
                self._completions.begin(row)
        self._look_later()

    def deposed(self) -> None:
        """Stop: the next leader goes on."""
        self._serving = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._completions.stop()
        for chore in self._chores:
            chore.cancel()
        self._changing.clear()

    def close(self) -> None:
        """Let everything go."""
        self.deposed()

    async def call(self, operation: str, body: JsonObject, *, principal: str) -> JsonObject:
        """Answer one operation; see the module."""
        init = partial(self._init, principal=principal)
        serve = init if operation == "init" else self._operations.get(operation)
        if serve is None:
            raise BadRequest(f"transactions have no operation '{operation[:64]}'")
        if not self._serving:
            raise NotLeader("this broker does not lead the coordinator any more")
        try:
            return await serve(Fields(body, operation))
        except FieldError as error:
            raise BadRequest(str(error)) from error

    # --- changing an id ---------------------------------------------------------------------------

    def _check_free(self, transactional_id: str) -> None:
        if transactional_id in self._changing:
            raise ConcurrentTransactions(f"another request for '{transactional_id}' is being carried out")

    async def _put(self, following: Transaction, *, shrinks: bool = False) -> None:
        """Replicate the next version of an id.

        Raises:
            ConcurrentTransactions: somebody else was quicker. NotLeader, Busy, DiskFull, OutcomeUnknown.
        """
        name = following.transactional_id
        current = self._book.get(name)
        if following.version != (1 if current is None else current.version + 1):
            raise ConcurrentTransactions(f"'{name}' was changed meanwhile: ask again")
        proposed = (following.principal, current is None, row_bytes(following) - (row_bytes(current) if current else 0))
        if not shrinks:
            self._check_room(name, *proposed)
        await self._replicate(name, put_command(following), shrinks=shrinks, proposed=proposed)
        current = self._book.get(name)
        if current is None or current.version < following.version:
            raise ConcurrentTransactions(f"'{name}' was changed meanwhile: ask again")

    def _check_room(self, name: str, principal: str, is_new: bool, growth_bytes: int) -> None:
        ids = self._book.ids.look(principal, int(is_new), on_its_way=self._new_ids)
        room = self._book.bytes.look(principal, growth_bytes, on_its_way=self._new_bytes) if ids is Room.FREE else ids
        if room is Room.FREE:
            return
        log.warning(
            "transaction.refused",
            transactional_id=name,
            principal=principal,
            why=room.value,
            ids=self._book.ids.used,
            bytes=self._book.bytes.used,
            own_ids=self._book.ids.held_by(principal),
            own_bytes=self._book.bytes.held_by(principal),
        )
        what = "use fewer transactional ids, or shorter ones, or let them expire"
        if room is Room.OWN_SHARE_FULL:
            raise PolicyViolation(f"the share of {principal} of this coordinator of transactions is full: {what}")
        raise Busy(f"this coordinator has no room for more transactional ids: {what}")

    async def _replicate(
        self, name: str, command: bytes, *, shrinks: bool, proposed: tuple[str, bool, int] = (NOBODY, False, 0)
    ) -> None:
        """Propose a change of an id; nobody else may until that is applied or lost, also when the asker goes away.

        Args:
            proposed: whose it is, whether the id is new, and by how many bytes it makes the state larger.
        """
        self._check_free(name)
        future = self._log.propose(Part.TRANSACTIONS, command, shrinks=shrinks)
        self._changing.add(name)
        self._on_its_way(*proposed)

        def ended(_: asyncio.Future[RaftIndex]) -> None:
            self._changing.discard(name)
            principal, is_new, growth_bytes = proposed
            self._on_its_way(principal, is_new, growth_bytes, sign=-1)

        future.add_done_callback(ended)
        await asyncio.shield(future)

    def _on_its_way(self, principal: str, is_new: bool, growth_bytes: int, *, sign: int = 1) -> None:
        self._new_ids.add(principal, sign * is_new)
        self._new_bytes.add(principal, sign * max(growth_bytes, 0))

    async def _finished(self, transaction: Transaction) -> None:
        """Write down that everybody has heard."""
        current = self._book.get(transaction.transactional_id)
        if current is None or current.version != transaction.version:
            return
        following = complete(current)
        await self._put(following, shrinks=True)
        log.debug(
            "transaction.completed",
            transactional_id=following.transactional_id,
            producer=following.producer_id,
            epoch=following.producer_epoch,
            number=following.number,
            is_commit=following.is_commit,
        )

    # --- operations -------------------------------------------------------------------------------

    async def _init(self, fields: Fields, principal: str) -> JsonObject:
        name = _transactional_id(fields, chars_min=1)
        timeout_ms = fields.integer("timeout_ms", low=-(2**31), high=2**31 - 1)
        producer_id = fields.integer("producer_id", low=-1, high=_INT63_MAX) if fields.has("producer_id") else -1
        epoch = fields.integer("producer_epoch", low=-1, high=_EPOCH_MAX) if fields.has("producer_epoch") else -1
        fields.done()
        if not 0 < timeout_ms <= self._settings.timeout_ms_max:
            limit = self._settings.timeout_ms_max
            raise InvalidTransactionTimeout(f"the transaction timeout {timeout_ms} ms is not in 1..{limit}")
        expected = (producer_id, epoch) if producer_id >= 0 else None
        self._check_free(name)
        is_written = self._log.is_understood(PRINCIPALS_LEVEL)
        if self._book.get(name) is None:  # before it gets a producer id
            self._check_room(name, principal if is_written else NOBODY, True, 0)
        following = await self._initialized(name, timeout_ms, expected, principal if is_written else NOBODY)
        await self._put(following)
        if following.state in PREPARED:
            raise ConcurrentTransactions(f"the transaction that '{name}' left open is being aborted")
        log.info("transaction.producer_initialized", transactional_id=name, producer=following.producer_id)
        return {"producer_id": following.producer_id, "producer_epoch": following.producer_epoch}

    async def _initialized(
        self, name: str, timeout_ms: int, expected: tuple[int, int] | None, principal: str
    ) -> Transaction:
        def make(new_id: int | None = None) -> Transaction:
            return initialize(
                self._book.get(name),
                transactional_id=name,
                timeout_ms=timeout_ms,
                expected=expected,
                new_producer_id=new_id,
                principal=principal,
            )

        try:
            return make()
        except ProducerIdNeeded:
            return make(await self._participants.allocate_producer_id())

    async def _add_partitions(self, fields: Fields) -> JsonObject:
        current = self._owned(fields)
        wanted = [_partition(row) for row in fields.items("partitions", count_max=PARTITIONS_PER_TRANSACTION_MAX)]
        fields.done()
        keys: set[StreamKey] = set()
        errors: dict[str, str] = {}
        for topic, partition in wanted:
            try:
                keys.add(self._participants.resolve(topic, partition))
            except GeorelayError as error:
                errors[f"{topic}/{partition}"] = error.code
        if not errors:
            await self._add(current, partitions=frozenset(keys))
        return {"errors": errors}

    async def _add_offsets(self, fields: Fields) -> JsonObject:
        current = self._owned(fields)
        # A longer one has no coordinator that could ever hear of the end.
        group = fields.text("group_id", chars_max=KEPT_GROUP_ID_CHARS_MAX, chars_min=1)
        fields.done()
        await self._add(current, groups=frozenset({group}))
        return {}

    async def _add(
        self,
        current: Transaction,
        *,
        partitions: frozenset[StreamKey] = frozenset(),
        groups: frozenset[str] = frozenset(),
    ) -> None:
        self._check_free(current.transactional_id)
        following = add(current, partitions=partitions, groups=groups)
        if following is not None:
            await self._put(following)

    async def _end(self, fields: Fields) -> JsonObject:
        current = self._owned(fields)
        is_commit = fields.flag("is_commit")
        fields.done()
        self._check_free(current.transactional_id)
        following = end(current, is_commit=is_commit)
        if following is not None:
            await self._put(following, shrinks=True)
        return {}

    async def _verify(self, fields: Fields) -> JsonObject:
        name = _transactional_id(fields)
        producer_id, epoch = _producer(fields)
        partition, group = None, None
        if fields.has("group_id"):
            group = fields.text("group_id", chars_max=GROUP_ID_CHARS_MAX, chars_min=1)
        else:
            partition = key_of(fields.value("topic_id"), fields.value("origin"), fields.value("partition"))
        fields.done()
        self._check_heard(name, producer_id, epoch)
        number = verified_number(
            self._book.get(name),
            transactional_id=name,
            producer_id=producer_id,
            epoch=epoch,
            partition=partition,
            group=group,
        )
        return {"number": number}

    async def _describe(self, fields: Fields) -> JsonObject:
        name = _transactional_id(fields)
        fields.done()
        row = self._book.get(name)
        if row is None:
            raise UnknownTransactionalId(f"'{name}' is unknown")
        topics: dict[str, list[int]] = {}
        for key in sorted(row.partitions, key=lambda key: (key.topic_id, key.partition)):
            topic = self._participants.name_of(key)
            if topic is not None:
                topics.setdefault(topic, []).append(key.partition)
        return {
            "transactional_id": name,
            "state": row.state.value,
            "producer_id": row.producer_id,
            "producer_epoch": row.producer_epoch,
            "timeout_ms": row.timeout_ms,
            "started_ms": row.started_us // 1000 if row.state is State.ONGOING or row.state in PREPARED else -1,
            "partitions": sorted([topic, partitions] for topic, partitions in topics.items()),
            "groups": sorted(row.groups),
        }

    async def _list(self, fields: Fields) -> JsonObject:
        states = (
            {str(name) for name in fields.items("states", count_max=FILTERS_MAX)} if fields.has("states") else set()
        )
        producers = (
            set(fields.integers("producer_ids", count_max=FILTERS_MAX, low=-1, high=_INT63_MAX))
            if fields.has("producer_ids")
            else set()
        )
        fields.done()
        return {
            "transactions": [
                [row.transactional_id, row.producer_id, row.state.value]
                for row in self._book
                if (not states or row.state.value in states) and (not producers or row.producer_id in producers)
            ]
        }

    def _owned(self, fields: Fields) -> Transaction:
        """Return the transaction of the producer that asks. Raises as `check_owner`."""
        name = _transactional_id(fields)
        producer_id, epoch = _producer(fields)
        self._check_heard(name, producer_id, epoch)
        return check_owner(self._book.get(name), transactional_id=name, producer_id=producer_id, epoch=epoch)

    def _is_unheard(self, row: Transaction) -> bool:
        return self._unheard.get(row.transactional_id) == (row.producer_id, row.producer_epoch)

    def _check_heard(self, name: str, producer_id: int, epoch: int) -> None:
        if self._unheard.get(name) == (producer_id, epoch):
            text = f"'{name}' moved here without the last moments of its region: start the producer again"
            raise ProducerFenced(text)

    # --- the clock --------------------------------------------------------------------------------

    def _look_later(self) -> None:
        self._timer = self._log.call_later(self._settings.look_interval_s, self._look)

    def _look(self) -> None:
        """Abort what has timed out and forget what is idle."""
        if not self._serving:
            return
        now_us = self._log.now_us()
        for row in self._book:
            if row.transactional_id in self._changing:
                continue
            if is_overdue(row, now_us=now_us):
                self._chore(self._abort_overdue(row))
            elif row.state in PREPARED:
                self._completions.begin(row)  # goes on already, unless it broke
            elif is_idle(row, now_us=now_us, expiry_ms=self._settings.expiry_ms):
                self._chore(self._forget(row))
        self._look_later()

    def _chore(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(self._quietly(work))
        self._chores.add(task)
        task.add_done_callback(self._chores.discard)

    async def _quietly(self, work: Awaitable[None]) -> None:
        try:
            await work
        except GeorelayError as error:  # the next look tries again
            log.debug("transaction.chore_failed", reason=str(error))

    async def _abort_overdue(self, row: Transaction) -> None:
        await self._put(abort_by_fencing(row), shrinks=True)
        log.warning(
            "transaction.timed_out", transactional_id=row.transactional_id, producer=row.producer_id, ms=row.timeout_ms
        )

    async def _forget(self, row: Transaction) -> None:
        await self._replicate(row.transactional_id, remove_command(row), shrinks=True)
        log.info("transaction.id_expired", transactional_id=row.transactional_id)


def _transactional_id(fields: Fields, *, chars_min: int = 0) -> str:
    return fields.text("transactional_id", chars_max=TRANSACTIONAL_ID_CHARS_MAX, chars_min=chars_min)


def _producer(fields: Fields) -> tuple[int, int]:
    return (
        fields.integer("producer_id", low=-1, high=_INT63_MAX),
        fields.integer("producer_epoch", low=-1, high=_EPOCH_MAX),
    )


def _partition(row: object) -> tuple[str, int]:
    if not isinstance(row, list) or len(row) != 2:
        raise FieldError("a partition is [topic, number]")
    topic, partition = row
    if not isinstance(topic, str) or len(topic) > TOPIC_CHARS_MAX or type(partition) is not int:
        raise FieldError("a partition is [topic, number]")
    return topic, partition
