"""First batches of transactions on their way into one stream: each waits until the coordinator has confirmed it.

A batch that comes after its transaction was ended would open one that nobody ends. So the first batch of a transaction
in a stream is stored only when the transaction's coordinator says that it is open and has this partition (KIP-890).

Rule 1: batches of one producer that come meanwhile wait behind the first and are stored in the order they came in.
Rule 2: the coordinator's answer is the number of the open transaction. Whoever reads it here must compare it with the
        newest marker in the log END: an answer may be older than a marker, also one of a coordinator that does not
        know yet that it was deposed.
Rule 3: what waits is bounded; a batch that waits is not stored, and nothing that happens to it here leaves that open,
        but a defect while it is stored: OutcomeUnknown.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

import structlog

from georelay.errors import (
    Busy,
    GeorelayError,
    InvalidTransactionState,
    OutcomeUnknown,
    ProducerFenced,
    Unavailable,
    UnknownTransactionalId,
)
from georelay.ids import StreamKey
from georelay.limits import UNCOMMITTED_BYTES_MAX
from region.kafka.ports import Publish, Published

log = structlog.get_logger()

LANE_BATCHES_MAX: Final = 16  # of one producer; Kafka clients keep at most 5 in flight
_FINAL: Final = (InvalidTransactionState, ProducerFenced, UnknownTransactionalId)


class TransactionVerifier(Protocol):
    """Asks the coordinator of a transactional id."""

    async def __call__(self, key: StreamKey, *, transactional_id: str, producer_id: int, producer_epoch: int) -> int:
        """Return the number of the producer's open transaction, which has the partition `key`.

        Raises:
            InvalidTransactionState, ProducerFenced, UnknownTransactionalId: there is none. GeorelayError: not known.
        """


Admit = Callable[[Publish, int], asyncio.Future[Published]]
_Waiting = tuple[Publish, asyncio.Future[Published]]


class TransactionLanes:
    """Producers whose transaction is being verified.

    Args:
        admit: stores a batch of a transaction with that number, or raises what keeps it from being stored.
        again: publishes a batch from the start: it waited behind one of another transaction.
    """

    def __init__(self, key: StreamKey, *, admit: Admit, again: Callable[[Publish], asyncio.Future[Published]]) -> None:
        self.verifier: TransactionVerifier | None = None
        self._key = key
        self._admit = admit
        self._again = again
        self._lanes: dict[int, deque[_Waiting]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._bytes = 0

    def __contains__(self, producer_id: int) -> bool:
        return producer_id in self._lanes

    def wait(self, batch: Publish) -> asyncio.Future[Published]:
        """Queue a batch; the first of its producer is verified.

        Raises:
            Busy: too much waits. Unavailable: this broker serves no transactions.
        """
        producer_id = batch.header.producer_id
        lane = self._lanes.get(producer_id, ())
        if len(lane) >= LANE_BATCHES_MAX or self._bytes + len(batch.raw) > UNCOMMITTED_BYTES_MAX:
            raise Busy(f"too many batches of {self._key} wait for the coordinators of their transactions")
        if self.verifier is None:
            raise Unavailable("this broker serves no transactions")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Published] = loop.create_future()
        kept = batch.kept()
        self._bytes += len(kept.raw)
        if isinstance(lane, deque):
            lane.append((kept, answer))
            return answer
        self._lanes[producer_id] = deque([(kept, answer)])
        task = loop.create_task(self._verify(self.verifier, kept), name=f"verify {producer_id} {self._key}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return answer

    async def _verify(self, verifier: TransactionVerifier, first: Publish) -> None:
        header = first.header
        number = -1
        error: GeorelayError | None = None
        try:
            number = await verifier(
                self._key,
                transactional_id=first.transactional_id,
                producer_id=header.producer_id,
                producer_epoch=header.producer_epoch,
            )
        except GeorelayError as failure:
            error = failure if isinstance(failure, _FINAL) else _not_known(failure)
        except Exception as failure:  # nobody may wait for ever behind a question that broke
            log.exception("transaction.verification_broke", stream=str(self._key), producer=header.producer_id)
            error = _not_known(failure)
        for batch, answer in self._take(header.producer_id):
            is_same = _transaction(batch) == _transaction(first)
            try:
                if error is not None and is_same:
                    raise error
                stored = self._admit(batch, number) if is_same else self._again(batch)
            except GeorelayError as refusal:
                _refuse(answer, refusal)
            except Exception:  # the others of the lane still get their answers
                log.exception("transaction.batch_broke", stream=str(self._key), producer=header.producer_id)
                _refuse(answer, OutcomeUnknown("the batch met a defect of the broker while it was stored"))
            else:
                stored.add_done_callback(partial(_pass_on, answer))

    def _take(self, producer_id: int) -> list[_Waiting]:
        lane = self._lanes.pop(producer_id, deque())
        self._bytes -= sum(len(batch.raw) for batch, _ in lane)
        return list(lane)

    def fail(self, error: GeorelayError) -> None:
        """Refuse everything that waits: nothing of it is stored."""
        for task in self._tasks:
            task.cancel()
        for producer_id in list(self._lanes):
            for _, answer in self._take(producer_id):
                _refuse(answer, error)


def _transaction(batch: Publish) -> tuple[str, int]:
    return batch.transactional_id, batch.header.producer_epoch


def _not_known(error: Exception) -> GeorelayError:
    return Busy(f"the transaction could not be confirmed by its coordinator, nothing was stored: {error}")


def _refuse(answer: asyncio.Future[Published], error: GeorelayError) -> None:
    if not answer.done():
        answer.set_exception(error)
        answer.exception()  # that nobody waits for it any more is no error


def _pass_on(answer: asyncio.Future[Published], stored: asyncio.Future[Published]) -> None:
    if stored.cancelled():
        answer.cancel()
        return
    error = stored.exception()
    if answer.done():
        return
    if error is None:
        answer.set_result(stored.result())
    else:
        answer.set_exception(error)
        answer.exception()
