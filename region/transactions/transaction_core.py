"""One transactional id: its states, what may follow what, and what a request makes of it. Pure.

    EMPTY            no transaction; the id has a producer id and epoch
    ONGOING          partitions or groups were added
    PREPARE_COMMIT   decided: every partition and group in it is being told, until all have heard
    PREPARE_ABORT
    COMPLETE_COMMIT  all have heard; the next AddPartitions begins the next transaction
    COMPLETE_ABORT
    DEAD             expired: the id is forgotten

Rule 1: a PREPARE state is the decision. It is replicated before anybody is told, and never changes to the other one.
Rule 2: a producer epoch that is not the current one is fenced; a new owner of the id, and a timeout, raise the epoch.
Rule 3: `number` counts the transactions of one producer id. It goes into every marker, so that a partition tells a late
        marker of one transaction from that of the next (region.topics.transaction_table_core).
Rule 4: every change raises `version` by one; a change that was made from another version does nothing.

As Kafka's TransactionMetadata (KIP-98, KIP-360, KIP-588); numbers instead of a coordinator epoch are ours.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from georelay.errors import (
    ConcurrentTransactions,
    InvalidTransactionState,
    ProducerFenced,
    TooLarge,
    UnknownTransactionalId,
)
from georelay.ids import StreamKey
from region.coordination.shares_core import NOBODY

NO_EPOCH: Final = -1
EPOCH_LAST: Final = 32_766  # the one above it is for the abort of what this one left open
NUMBER_LAST: Final = 2**31 - 1
PARTITIONS_PER_TRANSACTION_MAX: Final = 2_000
GROUPS_PER_TRANSACTION_MAX: Final = 100


class State(enum.StrEnum):
    """Where a transactional id stands. Values are in commands and snapshots: never rename."""

    EMPTY = "empty"
    ONGOING = "ongoing"
    PREPARE_COMMIT = "prepare_commit"
    PREPARE_ABORT = "prepare_abort"
    COMPLETE_COMMIT = "complete_commit"
    COMPLETE_ABORT = "complete_abort"
    DEAD = "dead"


# What may be written over what; the first state of an id is EMPTY. DEAD is written over by nothing: the row is gone.
TRANSITIONS: Final[Mapping[State, frozenset[State]]] = MappingProxyType(
    {
        State.EMPTY: frozenset({State.EMPTY, State.ONGOING, State.DEAD}),
        State.ONGOING: frozenset({State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT}),
        State.PREPARE_COMMIT: frozenset({State.COMPLETE_COMMIT}),
        State.PREPARE_ABORT: frozenset({State.COMPLETE_ABORT}),
        State.COMPLETE_COMMIT: frozenset({State.EMPTY, State.ONGOING, State.DEAD}),
        State.COMPLETE_ABORT: frozenset({State.EMPTY, State.ONGOING, State.DEAD}),
        State.DEAD: frozenset(),
    }
)
PREPARED: Final = frozenset({State.PREPARE_COMMIT, State.PREPARE_ABORT})
COMPLETE: Final = frozenset({State.COMPLETE_COMMIT, State.COMPLETE_ABORT})
COMPLETION: Final = MappingProxyType(
    {State.PREPARE_COMMIT: State.COMPLETE_COMMIT, State.PREPARE_ABORT: State.COMPLETE_ABORT}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """One transactional id and its newest transaction.

    Args:
        producer_epoch: the current one; every other is fenced.
        last_producer_epoch: the one before, of the same owner (KIP-360), or NO_EPOCH: then it may not come back.
        timeout_ms: an ONGOING transaction older than that is aborted.
        partitions, groups: who has to hear how it ends; empty unless ONGOING or PREPARE.
        number: of the newest transaction of this producer id, 0 before the first.
        started_us: append time of the command that began it. updated_us: of the newest command.
        version: rises by one with every change, from 1.
        principal: whose id it is: who made it, as far as that is written down.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    last_producer_epoch: int = NO_EPOCH
    timeout_ms: int
    state: State = State.EMPTY
    partitions: frozenset[StreamKey] = frozenset()
    groups: frozenset[str] = frozenset()
    number: int = 0
    started_us: int = 0
    updated_us: int = 0
    version: int = 1
    principal: str = NOBODY

    @property
    def is_exhausted(self) -> bool:
        """Return whether its producer id has no epoch or no number left: the next owner gets a new one."""
        return self.producer_epoch >= EPOCH_LAST or self.number >= NUMBER_LAST

    @property
    def is_commit(self) -> bool:
        """Return how it ends, for a PREPARE or COMPLETE state."""
        return self.state in (State.PREPARE_COMMIT, State.COMPLETE_COMMIT)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionEnd:
    """What a partition or a group is told when a transaction ends."""

    producer_id: int
    producer_epoch: int
    is_commit: bool
    number: int


def end_of(transaction: Transaction) -> TransactionEnd:
    """Return what the participants of a prepared transaction are told."""
    return TransactionEnd(
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        is_commit=transaction.is_commit,
        number=transaction.number,
    )


def may_follow(current: Transaction | None, following: Transaction) -> bool:
    """Return whether a command that writes `following` takes effect: made from this version, and a legal step."""
    if current is None:
        return following.state is State.EMPTY and following.version == 1
    return following.version == current.version + 1 and following.state in TRANSITIONS[current.state]


# --- owners ---------------------------------------------------------------------------------------


class ProducerIdNeeded(Exception):
    """The id is new or its producer id is exhausted: allocate one and ask again with it."""


def initialize(
    current: Transaction | None,
    *,
    transactional_id: str,
    timeout_ms: int,
    new_producer_id: int | None = None,
    expected: tuple[int, int] | None = None,
    principal: str = NOBODY,
) -> Transaction:
    """Return what InitProducerId makes of the id: EMPTY with a new epoch, or PREPARE_ABORT of what was left open.

    After a PREPARE_ABORT the client has to come again; the epoch that aborts is given to nobody, unless it was
    `expected`'s own transaction.

    Args:
        expected: (producer id, epoch) that the client believes to have (KIP-360), None for a client that starts.
        principal: whose a new id is, and an older one of which that is not written down.

    Raises:
        ProducerIdNeeded. ConcurrentTransactions: ask again. ProducerFenced: `expected` is not the owner any more.
    """
    if current is None:
        return Transaction(
            transactional_id=transactional_id,
            producer_id=_needed(new_producer_id),
            producer_epoch=0,
            timeout_ms=timeout_ms,
            principal=principal,
        )
    if current.principal == NOBODY:
        current = replace(current, principal=principal)
    is_retry = _check_expected(current, expected)
    if current.state in PREPARED:
        raise ConcurrentTransactions(f"the previous transaction of '{transactional_id}' is being finished")
    if current.state is State.ONGOING:
        own_epoch = NO_EPOCH if expected is None else current.producer_epoch
        return abort_by_fencing(current, last_producer_epoch=own_epoch)
    if is_retry and current.producer_epoch <= EPOCH_LAST:
        return _next(current, state=State.EMPTY, timeout_ms=timeout_ms)
    if current.is_exhausted:
        return _next(
            current,
            state=State.EMPTY,
            producer_id=_needed(new_producer_id),
            producer_epoch=0,
            last_producer_epoch=NO_EPOCH,
            number=0,
            timeout_ms=timeout_ms,
        )
    return _next(
        current,
        state=State.EMPTY,
        producer_epoch=current.producer_epoch + 1,
        last_producer_epoch=NO_EPOCH if expected is None else current.producer_epoch,
        timeout_ms=timeout_ms,
    )


def _needed(producer_id: int | None) -> int:
    if producer_id is None:
        raise ProducerIdNeeded
    return producer_id


def _check_expected(current: Transaction, expected: tuple[int, int] | None) -> bool:
    """Return whether `expected` asks again for an epoch that it was given already."""
    if expected is None:
        return False
    producer_id, epoch = expected
    if producer_id == current.producer_id:
        if epoch == current.producer_epoch:
            return False
        if epoch == current.last_producer_epoch:
            return True
    raise ProducerFenced(f"'{current.transactional_id}' has another producer by now: stop this one")


def abort_by_fencing(current: Transaction, *, last_producer_epoch: int = NO_EPOCH) -> Transaction:
    """Return the ONGOING transaction aborted with an epoch of its own, which fences its producer everywhere."""
    epoch = current.producer_epoch
    return _next(
        current,
        state=State.PREPARE_ABORT,
        producer_epoch=epoch + 1 if epoch <= EPOCH_LAST else epoch,
        last_producer_epoch=last_producer_epoch,
    )


# --- one transaction ------------------------------------------------------------------------------


def check_owner(current: Transaction | None, *, transactional_id: str, producer_id: int, epoch: int) -> Transaction:
    """Return the transaction when a request is its owner's.

    Raises:
        UnknownTransactionalId: no such id, or another producer id. ProducerFenced: another epoch.
    """
    if current is None or current.producer_id != producer_id:
        raise UnknownTransactionalId(f"'{transactional_id}' has no producer {producer_id}: start the producer again")
    if current.producer_epoch != epoch:
        raise ProducerFenced(
            f"producer {producer_id} of '{transactional_id}' has epoch {current.producer_epoch}, not {epoch}"
        )
    return current


def add(
    current: Transaction, *, partitions: frozenset[StreamKey] = frozenset(), groups: frozenset[str] = frozenset()
) -> Transaction | None:
    """Return the transaction with these participants, begun if there is none; None when nothing changes.

    Raises:
        ConcurrentTransactions: the one before is being finished. TooLarge: too many participants.
        ProducerFenced: no number is left for another transaction.
    """
    if current.state in PREPARED:
        raise ConcurrentTransactions(f"the previous transaction of '{current.transactional_id}' is being finished")
    is_new = current.state is not State.ONGOING
    if is_new and current.number >= NUMBER_LAST:
        raise ProducerFenced(f"producer {current.producer_id} has no number left for a transaction: start it again")
    all_partitions = partitions if is_new else current.partitions | partitions
    all_groups = groups if is_new else current.groups | groups
    if len(all_partitions) > PARTITIONS_PER_TRANSACTION_MAX or len(all_groups) > GROUPS_PER_TRANSACTION_MAX:
        raise TooLarge(
            f"{len(all_partitions)} partitions and {len(all_groups)} groups in a transaction are over "
            f"{PARTITIONS_PER_TRANSACTION_MAX} or {GROUPS_PER_TRANSACTION_MAX}"
        )
    if not is_new and all_partitions == current.partitions and all_groups == current.groups:
        return None
    return _next(
        current,
        state=State.ONGOING,
        partitions=all_partitions,
        groups=all_groups,
        number=current.number + is_new,
        last_producer_epoch=NO_EPOCH if is_new else current.last_producer_epoch,
    )


def end(current: Transaction, *, is_commit: bool) -> Transaction | None:
    """Return the transaction decided; None when it has ended that way already.

    Raises:
        ConcurrentTransactions: decided so, and not all have heard yet. InvalidTransactionState: none is open, or it
        ends the other way.
    """
    if current.state is State.ONGOING:
        return _next(current, state=State.PREPARE_COMMIT if is_commit else State.PREPARE_ABORT)
    if current.state in PREPARED | COMPLETE and current.is_commit == is_commit:
        if current.state in COMPLETE:
            return None
        raise ConcurrentTransactions(f"the transaction of '{current.transactional_id}' is being finished")
    wish = "committed" if is_commit else "aborted"
    raise InvalidTransactionState(
        f"the transaction of '{current.transactional_id}' cannot be {wish}: its state is {current.state}"
    )


def complete(current: Transaction) -> Transaction:
    """Return a prepared transaction after every participant has heard."""
    return _next(current, state=COMPLETION[current.state], partitions=frozenset(), groups=frozenset())


def verified_number(
    current: Transaction | None,
    *,
    transactional_id: str,
    producer_id: int,
    epoch: int,
    partition: StreamKey | None = None,
    group: str | None = None,
) -> int:
    """Return the number of the open transaction that has this participant.

    Raises:
        UnknownTransactionalId, ProducerFenced: not the owner. InvalidTransactionState: not open, or not in it.
    """
    owned = check_owner(current, transactional_id=transactional_id, producer_id=producer_id, epoch=epoch)
    is_in = partition in owned.partitions if partition is not None else group in owned.groups
    if owned.state is not State.ONGOING or not is_in:
        raise InvalidTransactionState(f"the transaction of '{transactional_id}' is not open, or was not told of this")
    return owned.number


def is_overdue(transaction: Transaction, *, now_us: int) -> bool:
    """Return whether an open transaction has outlived its timeout."""
    return transaction.state is State.ONGOING and now_us - transaction.started_us > transaction.timeout_ms * 1000


def is_idle(transaction: Transaction, *, now_us: int, expiry_ms: int) -> bool:
    """Return whether an id without an open transaction was unused for so long that it may be forgotten."""
    is_settled = transaction.state is State.EMPTY or transaction.state in COMPLETE
    return is_settled and now_us - transaction.updated_us > expiry_ms * 1000


def _next(current: Transaction, **changes: object) -> Transaction:
    return replace(current, version=current.version + 1, **changes)  # type: ignore[arg-type]
