"""The report as tables of text: one source for the terminal, Markdown and the page."""

from __future__ import annotations

from typing import Final

from georelay.trace.kinds import TraceKind
from sla.judging.verdict import Verdict
from sla.report import wording as w
from sla.report.measured_tables import (
    availability_tables,
    integrity_tables,
    latency_tables,
    throughput_tables,
)
from sla.report.model import Report, Subject, TargetResult
from sla.report.text_table import TextTable, text_table

_WORST_FIRST: Final = (Verdict.BREACH, Verdict.INCONCLUSIVE, Verdict.NO_DATA, Verdict.PASS)


def all_tables(report: Report) -> list[TextTable]:
    """Return every table of a report in reading order; empty ones are left out.

    The readers that do not pass have a table of their own, and stand in that of all readers too.
    """
    tables = [
        targets_table(report),
        *latency_tables(report),
        *throughput_tables(report),
        *integrity_tables(report),
        *availability_tables(report),
        burn_table(report),
        *evidence_tables(report),
        worst_table(report),
        changes_table(report),
    ]
    return [table for table in tables if table.rows]


# --- targets -----------------------------------------------------------------------------------------


def targets_table(report: Report) -> TextTable:
    """Return the table of the first screen."""
    return text_table(
        "targets",
        "Targets",
        "One line per promise. The measured share is that of its worst subject; in brackets what is proven about it.",
        "!verdict|target|#measured|#objective|error budget|worst|why",
        (
            (
                target.verdict.value,
                target.sentence,
                measured_of(target, report) if target.measured is None else w.measured_with_bounds(target.measured),
                w.percent(target.objective),
                w.budget_left(target.budget),
                target.worst_subject or w.NONE,
                target.reason,
            )
            for target in report.targets
        ),
    )


def measured_of(target: TargetResult, report: Report) -> str:
    """Return the measured share; of a target that allows nothing, how many events were bad.

    They are `up to` so many where rows of a reader are missing, which are taken for a loss, and `so far` where an hour
    of the period is younger than its settle time.
    """
    if target.measured is not None or target.objective is not None or not target.subjects:
        return w.measured(target.measured)
    bad = sum(subject.bad for subject in target.subjects)
    hidden = {row.region for row in report.inputs.rows if row.kind == TraceKind.LEDGER.value and row.completeness < 1}
    most = "up to " if bad and any(row.lost and row.dest in hidden for row in report.integrity.readers) else ""
    return f"{most}{w.count(bad)} in all{' so far' if report.inputs.hours_not_final else ''}"


def subjects_table(target: TargetResult) -> TextTable:
    """Return what one target says about each pair, region or stream, the worst verdicts first."""
    return text_table(
        f"target-{target.name}",
        target.sentence,
        "",
        "!verdict|subject|#counted|#bad|#measured|proven|error budget|budget in numbers|why",
        (_subject_row(subject) for subject in sorted(target.subjects, key=lambda one: _WORST_FIRST.index(one.verdict))),
    )


def _subject_row(subject: Subject) -> tuple[str, ...]:
    own = f" (own limit {w.ms(subject.threshold_ms)} ms)" if subject.is_own_limit else ""
    return (
        subject.verdict.value,
        f"{subject.name}{own}",
        w.count(subject.total),
        w.count(subject.bad),
        w.measured(subject.measured),
        w.NONE if subject.measured is None else w.bounds(subject.measured),
        w.budget_left(subject.budget),
        w.budget_details(subject.budget),
        subject.reason,
    )


def burn_table(report: Report) -> TextTable:
    """Return all burn-rate alerts: those that are on first, then those that were, then those that are too early."""
    windows = [
        (target.name, subject.name, window)
        for target in report.targets
        for subject in target.subjects
        for window in subject.burn
    ]
    return text_table(
        "burn",
        "Burn rates",
        "How fast an error budget is being spent: 1 spends exactly the budget over its period. "
        "An alert is on when both windows burn faster than its threshold and the long one has data for all its length; "
        "rates are those at the end of the period, of what data there are.",
        "target|subject|windows|#threshold|#long window|#short window|#worst|when worst|alert",
        (
            (
                target,
                subject,
                window.name,
                w.rate(window.threshold),
                w.rate(window.long_rate),
                w.rate(window.short_rate),
                w.rate(window.worst_rate),
                w.moment(window.worst_at),
                w.burn_state(window),
            )
            for target, subject, window in sorted(
                windows, key=lambda item: (not item[2].is_firing, -item[2].firing_minutes, not item[2].is_burning)
            )
        ),
    )


# --- evidence ------------------------------------------------------------------------------------------


def evidence_tables(report: Report) -> list[TextTable]:
    """Return what is known about clocks and input."""
    return [
        text_table(
            "clocks",
            "Clocks between regions",
            "Their clock minus ours. The bound is proven: the error of a corrected latency cannot be larger. "
            "50 ms can be judged well where the bound is far below it.",
            "region|clock of|#exchanges|#offset ms|#spread ms|#drift ppm|#bound ms|#shortest round trip ms"
            "|#clock set|#not synchronised",
            (
                (
                    row.region,
                    row.peer,
                    w.count(row.exchanges),
                    w.us_as_ms(row.offset_us),
                    w.UNKNOWN if row.offset_spread_us is None else w.ms(row.offset_spread_us / 1_000),
                    w.UNKNOWN if row.drift_ppm is None else f"{row.drift_ppm:+,.1f}",
                    w.UNKNOWN if row.bound_max_us is None else w.ms(row.bound_max_us / 1_000),
                    w.UNKNOWN if row.rtt_min_us is None else w.ms(row.rtt_min_us / 1_000),
                    w.count(row.steps),
                    w.count(row.unsync),
                )
                for row in report.clocks
            ),
        ),
        text_table(
            "inputs",
            "What was read",
            "Rows are numbered by their writers, so what is missing between two files is known.",
            "kind|region|#files|#size|#rows|#missing rows|#dropped rows|#files set aside|#silent writer hours|#complete"
            "|writers",
            (
                (
                    row.kind,
                    row.region,
                    w.count(row.files),
                    w.size(row.bytes),
                    w.count(row.rows),
                    w.count(row.missing_rows),
                    w.count(row.dropped_rows),
                    w.count(row.quarantined_files),
                    w.count(row.silent_writer_hours),
                    w.percent(row.completeness),
                    ", ".join(row.writers),
                )
                for row in report.inputs.rows
            ),
        ),
        text_table(
            "quarantine",
            "Files set aside",
            "They could not be proven whole, so no row of them was counted.",
            "file|reason",
            ((item.file, item.reason) for item in report.inputs.quarantined),
        ),
    ]


def worst_table(report: Report) -> TextTable:
    """Return the minutes, pairs and topics that cost most."""
    return text_table(
        "worst",
        "What cost most",
        "The minutes, pairs and topics with the most bad events of each target.",
        "target|what|name|when|#bad|#of|#bad share",
        (
            (
                row.target,
                row.what,
                row.name,
                w.moment(row.at),
                w.count(row.bad),
                w.count(row.total),
                w.percent_up(row.bad_share),
            )
            for row in report.worst
        ),
    )


def changes_table(report: Report) -> TextTable:
    """Return the comparison with the previous period."""
    return text_table(
        "changes",
        "Since the previous period",
        "Beside the period of the same length before. A change is proven when the two ranges do not overlap.",
        "target|subject|#before|#now|verdict before|!verdict now|proven change",
        (
            (
                row.target,
                row.subject,
                w.measured_with_bounds(row.before),
                w.measured_with_bounds(row.now),
                row.verdict_before.value,
                row.verdict_now.value,
                "yes" if row.is_proven else "no",
            )
            for row in report.changes
        ),
    )
