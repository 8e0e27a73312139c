"""What a reader has to know beside the verdicts. One code per kind of note; texts name what is meant."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from georelay.trace.kinds import Stage, TraceKind
from sla.judging.accounts import account_name
from sla.judging.budgets import iso
from sla.judging.completeness import Completeness
from sla.judging.facts import NEWEST_S_MAX, HourFacts, InputFacts, Span
from sla.judging.latency import Detour
from sla.report.model import (
    BurnWindow,
    ClockRow,
    Inputs,
    Integrity,
    LatencyPair,
    Made,
    MirrorTotal,
    Note,
    TargetResult,
)
from sla.report.next_steps import HOME_FAR_AWAY
from sla.report.wording import count, covered, percent, rate, stream, things, way

NAMES_SHOWN = 5
_STAGES_OF_TWO_CLOCKS = (Stage.TOTAL.value, Stage.COMMIT.value, Stage.REPLICATE.value)
_ROUND_TRIP_SHARE_MIN = 0.1  # of the shortest round trip: what exchanges on a path with queues can prove at best


def notes_of(
    *,
    made: Made,
    results: Iterable[TargetResult],
    pairs: Iterable[LatencyPair],
    clocks: Iterable[ClockRow],
    inputs: Inputs,
    integrity: Integrity,
    detours: Iterable[Detour],
    span: Span,
    hours: HourFacts,
    completeness: Completeness,
    read: Iterable[InputFacts] = (),
) -> tuple[Note, ...]:
    """Return every note that applies, warnings first.

    Args:
        hours: state of the roll-ups.
        completeness: what of the traces is missing.
        read: what `inputs` is made of.
    """
    clocks, pairs = tuple(clocks), tuple(pairs)
    found = [
        *_period(made, inputs),
        *_hours(made, hours),
        *_kept(hours),
        *_newest(span),
        *_probed(span),
        *_inputs(inputs),
        *_left_out(read),
        *_steps(clocks),
        *_unsync(clocks, pairs),
        *_pairs(pairs),
        *_detours(detours),
        *_integrity(integrity, hours, completeness),
        *_accounts(integrity),
        *_burning(results),
    ]
    return tuple(sorted(found, key=lambda note: not note.is_warning))


def _period(made: Made, inputs: Inputs) -> Iterator[Note]:
    is_rounded = (made.asked_from is not None and made.asked_from != made.period_from) or (
        made.asked_to is not None and made.asked_to != made.period_to
    )
    if is_rounded:
        yield _hint("PERIOD_ROUNDED", f"the period was rounded outward to whole minutes: {_period_text(made)}")
    if (made.integrity_from, made.integrity_to) != (made.period_from, made.period_to):
        hours = f"{made.integrity_from} to {made.integrity_to}"
        yield _hint("INTEGRITY_HOURS", f"integrity, clocks and inputs are judged over whole hours: {hours}")
    if inputs.hours < inputs.hours_expected:
        missing = inputs.hours_expected - inputs.hours
        expected = things(inputs.hours_expected, "hour", "hours")
        yield _warning("HOURS_MISSING", f"{count(missing)} of {expected} without traces")


def _hours(made: Made, hours: HourFacts) -> Iterator[Note]:
    if hours.not_final:
        are = things(hours.not_final, "hour is", "hours are")
        yield _hint("HOURS_NOT_FINAL", f"{are} younger than the settle time of {made.settle_s} s and may change")
    if hours.unseen:
        were = things(hours.unseen, "hour was", "hours were")
        text = f"{were} rolled up before the settle time was over, and traces of it are gone since"
        yield _warning("HOURS_UNSEEN", f"{text}: what came later is in no figure, and counts as missing")
    if hours.revised:
        changed = things(hours.revised, "hour", "hours")
        yield _hint("HOURS_REVISED", f"{changed} changed after being final: traces came late")


def _newest(span: Span) -> Iterator[Note]:
    if span.newest_start_s > span.start_s:
        days = things(NEWEST_S_MAX // 86_400, "day", "days")
        text = f"alerts and worst minutes are of the last {days}, from {iso(span.newest_start_s)}"
        yield _hint("ALERTS_OF_NEWEST_DAYS", f"{text}; everything else is of the whole period")


def _kept(hours: HourFacts) -> Iterator[Note]:
    if hours.kept:
        are, they = ("is", "it was") if hours.kept == 1 else ("are", "they were")
        kept = things(hours.kept, "hour", "hours")
        text = f"{kept} {are} from roll-ups alone: traces that {they} made of are gone"
        if hours.is_without_traces:
            yield _warning("HOURS_KEPT", f"{text}, and no trace file at all is left: is it the right directory?")
        else:
            yield _hint("HOURS_KEPT", text)


def _probed(span: Span) -> Iterator[Note]:
    first_s, end_s = span.probed
    if (first_s, end_s) != (span.start_s, span.end_s):
        text = f"minutes are judged from {iso(first_s)} to {iso(end_s)}, as far as there are probes or other traces"
        yield _hint("MINUTES_CUT", f"{text}; a minute that is cut off counts by its part")


def _period_text(made: Made) -> str:
    return f"{made.period_from} to {made.period_to}"


def _inputs(inputs: Inputs) -> Iterator[Note]:
    bad = sum(row.quarantined_files for row in inputs.rows)
    if bad or inputs.quarantined:
        files = things(max(bad, len(inputs.quarantined)), "trace file is", "trace files are")
        yield _warning("FILES_QUARANTINED", f"{files} unreadable")
    counted = [row for row in inputs.rows if row.kind != TraceKind.DELIVERY.value]
    missing = sum(row.missing_rows for row in counted)
    if missing:
        kinds = _names(f"{row.kind} of {row.region}" for row in counted if row.missing_rows)
        yield _warning("ROWS_MISSING", f"{things(missing, 'row of traces is', 'rows of traces are')} missing: {kinds}")
    dropped = sum(row.dropped_rows for row in counted)
    if dropped:
        kinds = _names(f"{row.kind} of {row.region}" for row in counted if row.dropped_rows)
        yield _warning(
            "ROWS_DROPPED",
            f"{things(dropped, 'row was', 'rows were')} dropped by brokers that could not keep up: {kinds}",
        )
    samples = [row for row in inputs.rows if row.kind == TraceKind.DELIVERY.value and row.gone_rows]
    if samples:
        gone = things(sum(row.gone_rows for row in samples), "row of single batches is", "rows of single batches are")
        kinds = _names(f"{row.kind} of {row.region}" for row in samples)
        yield _hint("SAMPLES_MISSING", f"{gone} missing ({kinds}); they are in no figure")
    silent = [row for row in inputs.rows if row.kind == TraceKind.CLOCK.value and row.silent_writer_hours]
    if silent:
        names = _names(f"{row.region} ({row.silent_writer_hours} h)" for row in silent)
        yield _warning("WRITERS_SILENT", f"brokers wrote nothing for whole hours: {names}")


def _left_out(inputs: Iterable[InputFacts]) -> Iterator[Note]:
    found = [facts for facts in inputs if facts.left_out_rows]
    if found:
        rows = things(sum(facts.left_out_rows for facts in found), "row of traces is", "rows of traces are")
        kinds = _names(f"{facts.kind} of {facts.region}" for facts in found)
        why = "more than 24 hours from their time, or came when other traces of their hour were gone"
        yield _warning("ROWS_LEFT_OUT", f"{rows} in no figure, and count as missing: {kinds}; they are {why}")


def _steps(clocks: tuple[ClockRow, ...]) -> Iterator[Note]:
    stepped = [row for row in clocks if row.steps]
    if stepped:
        names = _names(f"{row.peer} seen from {row.region} ({row.steps})" for row in stepped)
        yield _warning("CLOCK_STEPPED", f"clocks were set: {names}")


def _unsync(clocks: tuple[ClockRow, ...], pairs: tuple[LatencyPair, ...]) -> Iterator[Note]:
    """Say where round trips alone bound an error that latencies were judged with."""
    unsync = {frozenset((row.region, row.peer)): row for row in clocks if row.unsync and row.region != row.peer}
    bound = [
        (pair, row)
        for pair in pairs
        if (row := unsync.get(frozenset((pair.origin, pair.dest)))) is not None and _is_bound_by_round_trip(pair, row)
    ]
    if bound:
        hosts = {row.region for row in clocks if row.unsync for _, met in bound if row.region in (met.region, met.peer)}
        names = _names(f"{pair.origin} -> {pair.dest}" for pair, _ in bound)
        text = f"hosts of {_names(sorted(hosts))} do not know how wrong their clocks are"
        yield _warning("CLOCK_UNSYNC", f"{text}; only round trips bound the clock error of {names}")


def _is_bound_by_round_trip(pair: LatencyPair, clock: ClockRow) -> bool:
    """Return whether latencies of a pair have an error that can come from round trips: no smaller one, as configured.

    Exchanges together prove less than half of their shortest round trip, but not much less.
    """
    least_ms = (clock.rtt_min_us or 0) * _ROUND_TRIP_SHARE_MIN / 1_000
    return any(
        stage.clock_error_ms is None or stage.clock_error_ms > least_ms
        for stage in pair.stages
        if stage.stage in _STAGES_OF_TWO_CLOCKS
    )


def _pairs(pairs: tuple[LatencyPair, ...]) -> Iterator[Note]:
    for pair in pairs:
        if pair.own_limit_ms is not None:
            by_home = " by way of the home" if pair.home else ""
            text = f"light alone takes {pair.floor_ms:g} ms{by_home}: judged at {pair.own_limit_ms:g} ms instead"
            yield _hint("PAIR_INFEASIBLE", f"{way(pair.origin, pair.dest, pair.home)}: {text}")
    unknown = [pair for pair in pairs if pair.n_clock_unknown]
    if unknown:
        names = _names(f"{way(pair.origin, pair.dest, pair.home)} ({count(pair.n_clock_unknown)})" for pair in unknown)
        yield _warning("CLOCK_UNKNOWN", f"latencies with an unknown clock error: {names}")
    revised = [pair for pair in pairs if pair.n_clock_revised]
    if revised:
        names = _names(f"{way(pair.origin, pair.dest, pair.home)} ({count(pair.n_clock_revised)})" for pair in revised)
        yield _hint("CLOCK_REVISED", f"latencies corrected by a later, better fit of the clocks: {names}")


def _detours(detours: Iterable[Detour]) -> Iterator[Note]:
    for item in detours:
        text = f"{percent(item.share)} of what entered there takes {item.floor_us / 1_000:g} ms by light alone"
        yield _hint(HOME_FAR_AWAY, f"{way(*item.pair, item.home)}: {text}, to its home and on")


def _integrity(integrity: Integrity, hours: HourFacts, completeness: Completeness) -> Iterator[Note]:
    behind = [row for row in integrity.mirrors if row.missing]
    hidden = [row for row in behind if not completeness.is_read_whole(TraceKind.LEDGER, row.region)]
    known = [row for row in behind if row not in hidden]
    if known:
        names = _names(f"{_mirror_name(row)} ({count(row.missing)})" for row in known)
        is_settled = hours.not_final < max(1, hours.rolled_up)
        when = "did not have when they had settled" if is_settled else "does not have yet"
        if is_settled and hours.not_final:
            when += ", or, of the newest hour, does not have yet"
        note = _warning if is_settled else _hint
        yield note("MIRROR_BEHIND", f"committed records that a mirror {when}: {names}")
    if hidden:
        names = _names(f"{_mirror_name(row)} (up to {count(row.missing)})" for row in hidden)
        text = "committed records that a mirror may lack, rows about them are missing"
        yield _warning("MIRROR_BEHIND", f"{text}: {names}")


def _mirror_name(row: MirrorTotal) -> str:
    return f"{stream(row.origin, row.topic)}/{row.partition} in {row.region}"


def _accounts(integrity: Integrity) -> Iterator[Note]:
    wrong = [row for row in integrity.accounts if row.adds_up is False]
    if wrong:
        names = _names(f"{account_name(row)} ({count(row.unnamed or 0)})" for row in wrong)
        text = f"records were delivered or replicated that no home's ledger names as committed: {names}"
        yield _warning("ACCOUNT_OPEN", text)


def _burning(results: Iterable[TargetResult]) -> Iterator[Note]:
    for result in results:
        if result.burning:
            yield _warning("BUDGET_BURNING", f"{result.name}: {_names(result.burning)}")
        partial: dict[str, BurnWindow] = {}  # the shortest window of each subject: it is the first that will be covered
        for subject in result.subjects:
            for window in sorted(subject.burn, key=lambda window: window.long_minutes):
                if window.is_burning and window.is_partial:
                    partial.setdefault(subject.name, window)
        if partial:
            names = _names(f"{name} {rate(window.long_rate)} times" for name, window in partial.items())
            shortest = min(partial.values(), key=lambda window: window.long_minutes)
            text = f"{result.name}: would burn its budget too fast if this went on ({names})"
            yield _hint("BURN_WINDOW_PARTIAL", f"{text}; no alert yet, its window {covered(shortest)}")


def _names(names: Iterable[str]) -> str:
    every = list(dict.fromkeys(names))
    more = f" and {len(every) - NAMES_SHOWN} more" if len(every) > NAMES_SHOWN else ""
    return ", ".join(every[:NAMES_SHOWN]) + more


def _hint(code: str, text: str) -> Note:
    return Note(code=code, text=text, is_warning=False)


def _warning(code: str, text: str) -> Note:
    return Note(code=code, text=text, is_warning=True)
