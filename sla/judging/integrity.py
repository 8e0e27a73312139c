"""Integrity of streams: lost, repeated and reordered records, per stream and reader.

Rule 1: a record that a gap hides is lost when some ledger knows it as committed; a gap that no ledger explains is
        a doubt, and so is any gap where rows of the reader's ledger are missing: the gap may be the ledger's own.
Rule 2: a redelivery that says so (attempt > 1, or another session of the group) is no fault; one that does not is.
Rule 3: repeats and reordering are seen, not inferred: missing rows cannot make them, so they are a breach anyway.
Rule 4: what the account of a reader (sla.judging.accounts) cannot explain is a doubt: records that no home's ledger
        names, and records that a group was handed neither in one session nor in the next. So is an account that has
        too many holes to be added up.
Rule 5: aborted, expired and healed records are no loss; pending ones are not judged. A reader that was handed nothing
        more is behind by what was committed since.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from georelay.trace.kinds import TraceKind
from sla.judging.accounts import Reader, accounts_of, pending_at_end
from sla.judging.completeness import Completeness
from sla.judging.facts import IntegrityFacts, PeriodFacts
from sla.judging.verdict import Judgement, Verdict, worst
from sla.report.model import Account, Integrity, IntegrityStream, IntegrityTotals, MirrorTotal, StreamTotal, Subject
from sla.report.wording import things
from sla.targets import IntegrityTarget

_NONE = IntegrityTarget(name="integrity")


def judge_reader(
    facts: IntegrityFacts, *, target: IntegrityTarget, is_ledger_complete: bool, account: Account | None = None
) -> Judgement:
    """Judge one stream as one region's readers of one group got it; `account` is theirs, None when there is none."""
    if facts.delivered == 0:
        return Judgement(verdict=Verdict.NO_DATA, reason="nothing was delivered")
    counts = (
        (facts.lost, target.lost_max, "lost"),
        (facts.dup_unflagged, target.duplicates_max, "repeated without saying so"),
        (facts.order_violations, target.reordered_max, "out of order"),
    )
    wrong = [
        f"{count:,} {name}" for count, most, name in counts if count > most and (name != "lost" or is_ledger_complete)
    ]
    if wrong:
        return Judgement(verdict=Verdict.BREACH, reason=", ".join(wrong))
    doubts = []
    if facts.lost > target.lost_max:
        records = things(facts.lost, "record was", "records were")
        doubts.append(f"{records} not delivered, but rows of the ledger are missing")
    elif facts.lost + facts.unexplained > target.lost_max:
        offsets = things(facts.unexplained, "offset was", "offsets were")
        doubts.append(f"{offsets} skipped that no ledger knows as committed")
    doubts += _unexplained(account)
    if not is_ledger_complete and not doubts:
        doubts.append("rows of the ledger are missing")
    return Judgement(verdict=Verdict.INCONCLUSIVE, reason=doubts[0]) if doubts else Judgement(verdict=Verdict.PASS)


def _unexplained(account: Account | None) -> list[str]:
    doubts = []
    if account is not None and account.unnamed is None:
        doubts.append("the ledgers name its stream with too many holes to be added up")
    if account is not None and account.adds_up is False and account.unnamed:
        records = things(account.unnamed, "record was", "records were")
        doubts.append(f"{records} delivered or replicated that no home's ledger names as committed")
    if account is not None and account.group and account.untraced:
        records = things(account.untraced, "record", "records")
        doubts.append(f"{records} between two sessions of the group: nobody says that they were handed over")
    return doubts


def reader_name(facts: IntegrityFacts) -> str:
    """Return `orders/0 in eu`, `us.orders/0 in eu`, `orders/0 in eu for billing`."""
    topic = f"{facts.origin}.{facts.topic}" if facts.origin else facts.topic
    return f"{topic}/{facts.partition} in {facts.dest}" + (f" for {facts.group}" if facts.group else "")


def subjects_of(target: IntegrityTarget, period: PeriodFacts, *, completeness: Completeness) -> tuple[Subject, ...]:
    """Judge every reader that the target means. Streams are not shares: there is no interval and no budget."""
    accounts = _by_reader(accounts_of(period.accounts, completeness, readers=period.integrity))
    return tuple(
        _subject(target, facts, completeness, accounts.get(_reader(facts)))
        for facts in sorted(period.integrity, key=reader_name)
        if target.has_reader(dest=facts.dest, topic=facts.topic, group=facts.group)
    )


def _reader(row: IntegrityFacts | Account) -> Reader:
    return row.topic, row.origin, row.partition, row.dest, row.group


def _by_reader(accounts: Iterable[Account]) -> dict[Reader, Account]:
    return {_reader(account): account for account in accounts}


def _subject(
    target: IntegrityTarget, facts: IntegrityFacts, completeness: Completeness, account: Account | None
) -> Subject:
    judgement = judge_reader(
        facts, target=target, is_ledger_complete=_is_complete(facts, completeness), account=account
    )
    return Subject(
        name=reader_name(facts),
        total=facts.delivered,
        bad=facts.lost + facts.dup_unflagged + facts.order_violations,
        threshold_ms=None,
        is_own_limit=False,
        measured=None,
        verdict=judgement.verdict,
        reason=judgement.reason,
        budget=None,
        burn=(),
    )


def _is_complete(facts: IntegrityFacts, completeness: Completeness) -> bool:
    return completeness.missing_share(TraceKind.LEDGER, facts.dest) == 0


def integrity_section(
    period: PeriodFacts, *, targets: tuple[IntegrityTarget, ...], completeness: Completeness
) -> Integrity:
    """Return the tables and their sums. A reader's verdict is the worst of all targets that mean it."""
    published = {
        (item.topic, item.origin, item.partition): max(0, item.committed - item.aborted) for item in period.streams
    }
    accounts = accounts_of(period.accounts, completeness, readers=period.integrity)
    account_of = _by_reader(accounts)
    at_end = pending_at_end(period.accounts)
    readers = tuple(
        _reader_row(
            facts,
            targets,
            completeness,
            account_of.get(_reader(facts)),
            published.get((facts.topic, facts.origin, facts.partition), 0),
            _pending(facts, at_end),
        )
        for facts in sorted(period.integrity, key=reader_name)
    )
    streams = sorted(period.streams, key=lambda item: (item.topic, item.origin, item.partition))
    mirrors = sorted(period.mirrors, key=lambda item: (item.topic, item.origin, item.partition, item.region))
    return Integrity(
        totals=_totals(period, at_end),
        readers=readers,
        streams=tuple(
            StreamTotal(
                topic=item.topic,
                origin=item.origin,
                partition=item.partition,
                committed=item.committed,
                aborted=item.aborted,
                expired=item.expired,
                epochs=item.epochs,
            )
            for item in streams
        ),
        mirrors=tuple(
            MirrorTotal(
                topic=item.topic,
                origin=item.origin,
                partition=item.partition,
                region=item.region,
                replicated=item.replicated,
                missing=item.missing,
            )
            for item in mirrors
        ),
        accounts=accounts,
    )


def _reader_row(
    facts: IntegrityFacts,
    targets: tuple[IntegrityTarget, ...],
    completeness: Completeness,
    account: Account | None,
    published: int,
    pending: int,
) -> IntegrityStream:
    is_complete = _is_complete(facts, completeness)
    reader = {"dest": facts.dest, "topic": facts.topic, "group": facts.group}
    meant = [target for target in targets if target.has_reader(**reader)] or [_NONE]
    judgements = [
        judge_reader(facts, target=target, is_ledger_complete=is_complete, account=account) for target in meant
    ]
    verdict = worst(judgement.verdict for judgement in judgements)
    return IntegrityStream(
        topic=facts.topic,
        origin=facts.origin,
        partition=facts.partition,
        dest=facts.dest,
        group=facts.group,
        published=published,
        sessions=facts.sessions,
        delivered=facts.delivered,
        delivered_once=facts.delivered - facts.dup_flagged - facts.dup_unflagged,
        dup_flagged=facts.dup_flagged,
        dup_unflagged=facts.dup_unflagged,
        gaps=facts.gaps,
        gap_records=facts.gap_records,
        healed_records=facts.healed_records,
        lost=facts.lost,
        unexplained=facts.unexplained,
        aborted=facts.aborted,
        expired=facts.expired,
        order_violations=facts.order_violations,
        pending=pending,
        verdict=verdict,
        reason=next(judgement.reason for judgement in judgements if judgement.verdict is verdict),
    )


def _pending(facts: IntegrityFacts, at_end: Mapping[Reader, int]) -> int:
    """Return what is pending at the period's end; of before the period only the stream's ends of its hours tell."""
    return max(facts.pending, at_end.get(_reader(facts), 0))


def _totals(period: PeriodFacts, at_end: Mapping[Reader, int]) -> IntegrityTotals:
    readers, streams = period.integrity, period.streams
    return IntegrityTotals(
        committed=sum(item.committed for item in streams),
        aborted=sum(item.aborted for item in streams),
        expired=sum(item.expired for item in streams),
        mirror_missing=sum(item.missing for item in period.mirrors),
        delivered=sum(item.delivered for item in readers),
        dup_flagged=sum(item.dup_flagged for item in readers),
        dup_unflagged=sum(item.dup_unflagged for item in readers),
        lost=sum(item.lost for item in readers),
        unexplained=sum(item.unexplained for item in readers),
        healed_records=sum(item.healed_records for item in readers),
        order_violations=sum(item.order_violations for item in readers),
        pending=sum(_pending(item, at_end) for item in readers),
    )
