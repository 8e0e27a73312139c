"""The tables of what was measured: latency, throughput, integrity and availability."""

from __future__ import annotations

from collections.abc import Iterable

from georelay.trace.kinds import Stage
from sla.judging.verdict import Verdict
from sla.report import wording as w
from sla.report.model import (
    Account,
    IntegrityStream,
    IntegrityTotals,
    LatencyPair,
    Report,
    StageLatency,
    TargetKind,
)
from sla.report.text_table import TextTable, text_table

# --- latency -----------------------------------------------------------------------------------------


def latency_tables(report: Report) -> list[TextTable]:
    """Return the judged latency per pair, and its stages."""
    return [
        text_table(
            "latency",
            "Latency from publish to deliver, ms",
            "From the first broker's receive stamp to the consumer's socket, per record. The floor is half of the "
            "shortest round trip: no record can be faster. A quantile is shown when 20 records lie beyond it.",
            "pair|#records|#p50|#p95|#p99|#p99.9|#max|#clock ±|#within 50 ms|proven|#floor|50 ms possible",
            (
                _latency_row(pair, stage)
                for pair in report.latency
                for stage in pair.stages
                if stage.stage == Stage.TOTAL.value
            ),
        ),
        text_table(
            "stages",
            "Where the time goes, ms",
            "commit: to the commit at home; replicate: from the home to the commit in the mirror; deliver: from the "
            "commit there to the consumer's socket; total: all of it. Quantiles of stages do not add up.",
            "pair|stage|#records|#p50|#p90|#p99|#p99.9|#p99.99|#mean|#max|#clock ±",
            (_stage_row(pair, stage) for pair in report.latency for stage in pair.stages),
        ),
        text_table(
            "clock-effect",
            "What the clocks could not decide",
            "There and back is the mean one way plus the mean the other way: the clocks cancel, it is true whatever "
            "they say.",
            "pair|#records|#clock unknown|#clock fitted later|#there and back, mean ms",
            (
                (
                    w.way(pair.origin, pair.dest, pair.home),
                    w.count(max((stage.n for stage in pair.stages), default=0)),
                    w.count(pair.n_clock_unknown),
                    w.count(pair.n_clock_revised),
                    w.ms(pair.there_and_back_mean_ms, missing=w.UNKNOWN),
                )
                for pair in report.latency
                if not pair.is_intra
            ),
        ),
    ]


def _latency_row(pair: LatencyPair, stage: StageLatency) -> tuple[str, ...]:
    quantiles = stage.quantiles
    if pair.is_feasible is None:
        possible = w.UNKNOWN
    elif pair.is_feasible:
        possible = "yes"
    else:
        possible = f"no: judged by {w.ms(pair.own_limit_ms)}"
    return (
        w.way(pair.origin, pair.dest, pair.home),
        w.count(stage.n),
        w.ms(quantiles.p50_ms),
        w.ms(quantiles.p95_ms),
        w.ms(quantiles.p99_ms),
        w.ms(quantiles.p99_9_ms),
        w.ms(stage.max_ms),
        w.ms(stage.clock_error_ms, missing=w.UNKNOWN),
        w.measured(stage.within),
        w.bounds(stage.within),
        w.ms(pair.floor_ms, missing=w.UNKNOWN),
        possible,
    )


def _stage_row(pair: LatencyPair, stage: StageLatency) -> tuple[str, ...]:
    quantiles = stage.quantiles
    return (
        w.way(pair.origin, pair.dest, pair.home),
        stage.stage,
        w.count(stage.n),
        w.ms(quantiles.p50_ms),
        w.ms(quantiles.p90_ms),
        w.ms(quantiles.p99_ms),
        w.ms(quantiles.p99_9_ms),
        w.ms(quantiles.p99_99_ms),
        w.ms(stage.mean_ms),
        w.ms(stage.max_ms),
        w.ms(stage.clock_error_ms, missing=w.UNKNOWN),
    )


# --- throughput, integrity, availability ---------------------------------------------------------------


def throughput_tables(report: Report) -> list[TextTable]:
    """Return delivered records per region."""
    return [
        text_table(
            "throughput",
            "Delivered records per second",
            "A record counts once per region, when the first reader there gets it. "
            "A second is loaded when 1,000 records were offered in it, a minute when its best 10 seconds were offered "
            "more than the target. Only loaded minutes are judged: nobody can deliver what was not published.",
            "region|#delivered|#offered|#mean|#best 1 s|#best 10 s|#offered, best 10 s|#best 60 s"
            "|#loaded seconds met|#loaded minutes met",
            (
                (
                    row.region,
                    w.count(row.delivered),
                    w.count(row.offered),
                    w.count(round(row.mean_per_s)),
                    w.count(row.max_1s),
                    w.count(round(row.max_10s_mean)),
                    w.count(round(row.offered_max_10s_mean)),
                    w.count(round(row.max_60s_mean)),
                    f"{w.count(row.loaded_seconds_met)} of {w.count(row.loaded_seconds)}",
                    f"{w.count(row.loaded_minutes_met)} of {w.count(row.loaded_minutes)}",
                )
                for row in report.throughput
            ),
        )
    ]


def integrity_tables(report: Report) -> list[TextTable]:
    """Return what readers saw, what homes committed, what mirrors have."""
    integrity = report.integrity
    return [
        _totals_table(integrity.totals),
        accounts_table(integrity.accounts),
        readers_table("readers", "Lost, repeated and reordered records", integrity.readers),
        readers_table(
            "readers-not-passing",
            "Readers that lost, repeated or reordered records, or may have",
            [row for row in integrity.readers if row.verdict is not Verdict.PASS],
        ),
        text_table(
            "gaps",
            "What became of records that were jumped over",
            "came later: delivered before the settle time was over. aborted, expired: nobody was to see them.",
            "stream|#partition|region|group|#sessions|#handed over|#jumps|#records jumped over|#came later|#aborted"
            "|#expired|#lost|#unexplained",
            (
                (
                    *_reader(row),
                    w.count(row.sessions),
                    w.count(row.delivered),
                    w.count(row.gaps),
                    w.count(row.gap_records),
                    w.count(row.healed_records),
                    w.count(row.aborted),
                    w.count(row.expired),
                    w.count(row.lost),
                    w.count(row.unexplained),
                )
                for row in integrity.readers
            ),
        ),
        text_table(
            "streams",
            "Committed at home",
            "More than one epoch: the home of the stream moved in the period.",
            "stream|#partition|#committed|#aborted|#expired|#epochs",
            (
                (
                    w.stream(row.origin, row.topic),
                    str(row.partition),
                    w.count(row.committed),
                    w.count(row.aborted),
                    w.count(row.expired),
                    w.count(row.epochs),
                )
                for row in integrity.streams
            ),
        ),
        text_table(
            "mirrors",
            "Found in the mirrors",
            "missing: committed at home, and not in the mirror when the settle time was over.",
            "stream|#partition|mirror|#replicated|#missing",
            (
                (
                    w.stream(row.origin, row.topic),
                    str(row.partition),
                    row.region,
                    w.count(row.replicated),
                    w.count(row.missing),
                )
                for row in integrity.mirrors
            ),
        ),
    ]


def accounts_table(accounts: Iterable[Account]) -> TextTable:
    """Return the account of every stream and reader."""
    return text_table(
        "accounts",
        "Every record accounted for",
        "published = delivered + pending + lost + untraced + aborted + expired + not asked for. "
        "pending: stored and not delivered when the report closes. lost: jumped over for good. untraced: between two "
        "sessions; the reader passed them by, or rows of a broker are gone. not asked for: before the reader's first "
        "record. refused: answered with an error and not stored, beside what was published. undecided: unknown to who "
        "sent them; those that are stored are published.",
        "stream|#partition|home|region|group|#published|#delivered|#pending|#lost|#untraced|#aborted|#expired"
        "|#not asked for|adds up|#refused|#undecided",
        (
            (
                w.stream(row.origin, row.topic),
                str(row.partition),
                row.home or w.NONE,
                row.dest or "nobody reads it",
                row.group or w.NONE,
                w.count(row.published),
                _count_or_unknown(row.delivered),
                _count_or_unknown(row.pending),
                _count_or_unknown(row.lost),
                _count_or_unknown(row.untraced),
                _count_or_unknown(row.aborted),
                _count_or_unknown(row.expired),
                _count_or_unknown(row.not_asked),
                _adds_up(row),
                w.count(row.refused),
                w.count(row.undecided),
            )
            for row in accounts
        ),
    )


def _adds_up(row: Account) -> str:
    if row.unnamed is None:
        return f"{w.UNKNOWN}: too many holes"
    if row.adds_up is None:
        return f"{w.UNKNOWN}: rows are missing"
    return "yes" if row.adds_up else f"no: {w.things(row.unnamed, 'record', 'records')} more than any home committed"


def _count_or_unknown(records: int | None) -> str:
    return w.UNKNOWN if records is None else w.count(records)


def integrity_news(report: Report) -> str:
    """Return the sentence that stands for the table of readers that do not pass; empty when there are some or none."""
    readers = report.integrity.readers
    if not readers or any(row.verdict is not Verdict.PASS for row in readers):
        return ""
    what = f"lost, repeated without saying so, or reordered: {w.things(len(readers), 'reader', 'readers')}."
    unread = dict.fromkeys(
        w.short(subject.name)
        for target in report.targets
        if target.kind is TargetKind.INTEGRITY
        for subject in target.subjects
        if subject.verdict is Verdict.INCONCLUSIVE and not subject.total
    )
    return f"Of what was read, nothing was {what} Not known: {', '.join(unread)}." if unread else f"Nothing {what}"


def readers_table(key: str, title: str, readers: Iterable[IntegrityStream]) -> TextTable:
    """Return what some readers saw."""
    return text_table(
        key,
        title,
        "Per stream and reader. lost: committed, and jumped over for good. unexplained: jumped over, and no ledger "
        "knows it. repeated, told: redelivered and marked so. pending: not yet read, not judged.",
        "!verdict|stream|#partition|region|group|#published|#delivered once|#pending|#lost|#unexplained"
        "|#out of order|#repeated, not told|#repeated, told|why",
        (
            (
                row.verdict.value,
                *_reader(row),
                w.count(row.published),
                w.count(row.delivered_once),
                w.count(row.pending),
                w.count(row.lost),
                w.count(row.unexplained),
                w.count(row.order_violations),
                w.count(row.dup_unflagged),
                w.count(row.dup_flagged),
                row.reason,
            )
            for row in readers
        ),
    )


def _totals_table(totals: IntegrityTotals) -> TextTable:
    """Return the sums over all streams and readers; a record counts once for each of its readers."""
    return text_table(
        "totals",
        "All streams and readers",
        "A record is handed over once to every group and to every reader without one, in every region.",
        "#committed|#aborted|#expired|#missing in mirrors|#handed over|#lost|#unexplained|#out of order"
        "|#repeated, not told|#repeated, told|#came later|#pending",
        [
            tuple(
                w.count(number)
                for number in (
                    totals.committed,
                    totals.aborted,
                    totals.expired,
                    totals.mirror_missing,
                    totals.delivered,
                    totals.lost,
                    totals.unexplained,
                    totals.order_violations,
                    totals.dup_unflagged,
                    totals.dup_flagged,
                    totals.healed_records,
                    totals.pending,
                )
            )
        ]
        if totals.committed or totals.delivered
        else [],
    )


def _reader(row: IntegrityStream) -> tuple[str, ...]:
    return w.stream(row.origin, row.topic), str(row.partition), row.dest, row.group or w.NONE


def availability_tables(report: Report) -> list[TextTable]:
    """Return probes and minutes per pair, and requests per region."""
    return [
        text_table(
            "probes",
            "Probes and minutes",
            "One probe per second and pair. A minute is down when too many of its probes fail, unknown without any; "
            "unknown minutes count as down in the lower bound and as up in the upper one.",
            "pair|#probes|#ok|#late|#lost|#refused|#came in time|#minutes up|#down|#unknown|#known|#longest down|since"
            "|minutes up, proven",
            (
                (
                    w.pair(row.origin, row.dest),
                    w.count(row.probes),
                    w.count(row.probes_ok),
                    w.count(row.probes_late),
                    w.count(row.probes_lost),
                    w.count(row.probes_refused),
                    w.measured(row.success),
                    w.count(row.minutes_up),
                    w.count(row.minutes_down),
                    w.count(row.minutes_unknown),
                    w.percent(row.coverage),
                    w.minutes(row.longest_down_minutes) if row.longest_down_minutes else w.NONE,
                    w.moment(row.longest_down_at),
                    w.bounds(row.up_share),
                )
                for row in report.availability.pairs
            ),
        ),
        text_table(
            "requests",
            "Requests",
            "As brokers and as gateways saw them; a request through a gateway is in both, so they are never added up. "
            "Client errors count neither as good nor as bad.",
            "region|seen by|operation|#attempts|#ok|#client errors|#server errors|#time-outs|#succeeded|proven",
            (
                (
                    row.region,
                    f"{row.source} ({w.count(row.writers)})",
                    row.op,
                    w.count(row.attempts),
                    w.count(row.ok),
                    w.count(row.client_error),
                    w.count(row.server_error),
                    w.count(row.timeout),
                    w.measured(row.success),
                    w.NONE if row.success is None else w.bounds(row.success),
                )
                for row in report.availability.requests
            ),
        ),
    ]
