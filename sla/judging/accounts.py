"""The account of every stream and reader: what was published is delivered, pending, or has a name. Pure.

    published = delivered + pending + lost + untraced + aborted + expired + not asked for

published      records that the ledger of the home names as committed in the period's hours.
delivered      of them, handed over to anybody of the region (and group) in these hours.
not asked for  before the first record that the region's readers were ever handed in these hours.
pending        behind the last one: stored, and not delivered when the report closes.
aborted        between the two, of an aborted transaction. expired: deleted by retention.
lost           neither, and a session was seen to jump over them. untraced: nobody saw that. Between two sessions lies
               what a reader passed by, or what a broker handed over and did not write down.
refused        answered with an error, surely not stored, so in none of the others. undecided: answered with an unknown
               outcome; what is stored of them is published, which their positions tell and nobody else.

Rule 1: what a region was handed or has in its mirror was published. When no row of a home names it (`unnamed`), the
        equation does not add up, by so many records: a ledger has a hole, or a broker made something up.
Rule 2: rows of the hours around the period only tell whether a home names a record.
Rule 3: without a row missing the check has an answer, yes or no; with rows missing it has none: what no home names may
        be what is missing. Where no home is known, rows of any region may be a home's.
Rule 4: of too many ranges to be added up only the sum and the hull are known: how many records, and up to where.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from georelay.trace.kinds import LedgerKind, TraceKind
from sla.judging.completeness import Completeness
from sla.judging.facts import AccountFacts, IntegrityFacts
from sla.judging.offset_sets import OffsetSet
from sla.report.model import Account

Reader = tuple[str, str, int, str, str]  # topic, origin, partition, region, group

_Stream = tuple[str, str, int]
_STORED_NAMES = frozenset({LedgerKind.COMMIT.value, LedgerKind.REPLICATED.value})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Named:
    """What the ledgers name of one stream, in the period and (`committed_near`) in the hours around it, too."""

    homes: tuple[str, ...]
    committed: OffsetSet
    committed_near: OffsetSet
    seen: OffsetSet  # replicated or delivered, in the period
    aborted: OffsetSet
    expired: OffsetSet
    refused: int
    undecided: int
    published: int | None  # of ranges that are too many to be added up; else None

    @property
    def unnamed(self) -> OffsetSet:
        """Return what was seen and is named by no home, of the offsets that one could name."""
        begin = self.committed_near.first
        known = self.seen if begin is None else self.seen.above(begin)
        return known.without(self.committed_near)


def accounts_of(
    facts: Iterable[AccountFacts], completeness: Completeness, *, readers: Iterable[IntegrityFacts] = ()
) -> tuple[Account, ...]:
    """Return the accounts, sorted by stream, reader's region and group; a stream without readers has dest ''.

    Args:
        readers: what sessions were seen to jump over.
    """
    jumped = {(item.topic, item.origin, item.partition, item.dest, item.group): item.lost for item in readers}
    streams: dict[_Stream, list[AccountFacts]] = defaultdict(list)
    for item in facts:
        streams[item.topic, item.origin, item.partition].append(item)
    rows: list[Account] = []
    for stream in sorted(streams):
        named = _named(streams[stream])
        handed = [item for item in streams[stream] if item.kind == LedgerKind.DELIVERED.value and item.is_inside]
        for dest, group in sorted({(item.region, item.group) for item in handed}) or [("", "")]:
            mine = OffsetSet.union(item.ranges for item in handed if (item.region, item.group) == (dest, group))
            seen_lost = jumped.get((*stream, dest, group), 0)
            rows.append(_account(stream, named, (dest, group), mine, seen_lost, completeness))
    return tuple(rows)


def pending_at_end(facts: Iterable[AccountFacts]) -> dict[Reader, int]:
    """Return how many offsets above the highest that a reader was handed somebody knew as committed in the period.

    A reader of a stream that nobody committed to or replicated in the period is left out.
    """
    ends: dict[_Stream, int] = {}
    reaches: dict[Reader, int] = {}
    for item in facts:
        if item.is_inside and item.ranges:
            stream, end = (item.topic, item.origin, item.partition), item.ranges[-1][1]
            if item.kind == LedgerKind.DELIVERED.value:
                reader = (*stream, item.region, item.group)
                reaches[reader] = max(end, reaches.get(reader, 0))
            elif item.kind in _STORED_NAMES:
                ends[stream] = max(end, ends.get(stream, 0))
    return {reader: max(0, ends[reader[:3]] - reach) for reader, reach in reaches.items() if reader[:3] in ends}


def _named(items: list[AccountFacts]) -> _Named:
    def ranges(*kinds: LedgerKind, near: bool = False) -> OffsetSet:
        names = {kind.value for kind in kinds}
        return OffsetSet.union(item.ranges for item in items if item.kind in names and (near or item.is_inside))

    def records(kind: LedgerKind) -> int:
        return sum(item.records for item in items if item.kind == kind.value and item.is_inside)

    return _Named(
        homes=tuple(sorted({item.region for item in items if item.kind == LedgerKind.COMMIT.value and item.is_inside})),
        committed=ranges(LedgerKind.COMMIT),
        committed_near=ranges(LedgerKind.COMMIT, near=True),
        seen=ranges(LedgerKind.REPLICATED, LedgerKind.DELIVERED),
        aborted=ranges(LedgerKind.ABORTED, near=True),
        expired=ranges(LedgerKind.EXPIRED, near=True),
        refused=records(LedgerKind.REFUSED),
        undecided=records(LedgerKind.UNDECIDED),
        published=None if all(item.is_whole for item in items) else records(LedgerKind.COMMIT),
    )


def _account(
    stream: _Stream,
    named: _Named,
    reader: tuple[str, str],
    handed: OffsetSet,
    seen_lost: int,
    completeness: Completeness,
) -> Account:
    topic, origin, partition = stream
    dest, group = reader
    if named.published is not None:
        return Account(
            topic=topic,
            origin=origin,
            partition=partition,
            home=", ".join(named.homes),
            dest=dest,
            group=group,
            published=named.published,
            delivered=None,
            pending=None,
            lost=None,
            untraced=None,
            aborted=None,
            expired=None,
            not_asked=None,
            unnamed=None,
            refused=named.refused,
            undecided=named.undecided,
            adds_up=None,
        )
    unnamed = named.unnamed
    known = OffsetSet.union([named.committed.ranges, unnamed.ranges])
    first, reach = handed.first, handed.end
    rest = known.without(handed)
    between = OffsetSet(()) if first is None or reach is None else rest.between(first, reach)
    aborted = between.without(between.without(named.aborted))
    not_aborted = between.without(named.aborted)
    hole = not_aborted.without(named.expired).size
    lost = min(hole, seen_lost)
    homes = frozenset(named.homes) or completeness.regions
    is_whole = not any(
        completeness.missing_share(TraceKind.LEDGER, region) for region in homes | ({dest} if dest else frozenset())
    )
    return Account(
        topic=topic,
        origin=origin,
        partition=partition,
        home=", ".join(named.homes),
        dest=dest,
        group=group,
        published=named.committed.size,
        delivered=known.size - rest.size,
        pending=rest.size if reach is None else rest.above(reach).size,
        lost=lost,
        untraced=hole - lost,
        aborted=aborted.size,
        expired=not_aborted.size - hole,
        not_asked=0 if first is None else rest.size - rest.above(first).size,
        unnamed=unnamed.size,
        refused=named.refused,
        undecided=named.undecided,
        adds_up=unnamed.size == 0 if is_whole else None,
    )


def account_name(account: Account) -> str:
    """Return `orders/0 in eu`, `us.orders/0 in eu for billing`."""
    topic = f"{account.origin}.{account.topic}" if account.origin else account.topic
    reader = f" in {account.dest}" if account.dest else ""
    return f"{topic}/{account.partition}{reader}" + (f" for {account.group}" if account.group else "")
