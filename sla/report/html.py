"""report.html: one file that opens without network, script or server.

Rule 1: the first screen answers a stranger: what was promised, what became of it, how sure that is, what is missing.
Rule 2: every name is escaped by the template; the only trusted markup is what sla.report.plots made.
Rule 3: the page asks for nothing: its policy allows no source at all, and a test reads it for references.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Final

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from georelay.trace.kinds import Stage, TraceKind
from sla.judging.verdict import Verdict
from sla.report import tables as t
from sla.report import wording as w
from sla.report.measured_tables import integrity_news
from sla.report.model import Interval, LatencyPair, Note, Report, StageLatency, Subject, TargetKind, TargetResult
from sla.report.next_steps import next_steps
from sla.report.plots import Plot, plots_of
from sla.report.text_table import TextTable

LOW_BUDGET_SHARE: Final = 0.25  # below it the bar changes its colour
WORST_ON_CARD: Final = 4
_BAD_WORD: Final = {TargetKind.LATENCY: "records late", TargetKind.PROBES: "probes failed"}
_PAIR_KINDS: Final = frozenset(_BAD_WORD)
_SUBJECTS: Final = {
    TargetKind.LATENCY: "pairs",
    TargetKind.THROUGHPUT: "regions",
    TargetKind.INTEGRITY: "readers",
    TargetKind.REQUESTS: "operations",
    TargetKind.PROBES: "pairs",
    TargetKind.MINUTES: "pairs",
}
ALARMS_SHOWN: Final = 4  # of each severity
_UNDECIDED_SHARE_MAX: Final = 0.001  # of records, before the card of the clocks warns


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetLine:
    """One line of the first screen.

    Args:
        is_reason_news: the reason says more than the measured share does.
        spread: for how many subjects it came to that verdict.
        fill: width of the budget's bar in percent, None without a budget.
    """

    verdict: str
    sentence: str
    reason: str
    is_reason_news: bool
    measured: str
    bounds: str
    worst_subject: str
    counted: str
    spread: str
    budget: str
    budget_details: str
    fill: int | None
    fill_class: str
    subjects: TextTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A question, its answer and the figures behind it. `state`: good, warning or plain."""

    title: str
    state: str
    answer: str
    facts: tuple[tuple[str, str], ...]
    anchor: str
    link: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A section: what is shown at once, and what opens; `good_news` stands for a table that has nothing to say."""

    key: str
    title: str
    good_news: str
    tables: tuple[TextTable, ...]
    plots: tuple[Plot, ...]
    more_tables: tuple[TextTable, ...]
    more_plots: tuple[Plot, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What the template is filled with."""

    verdict: str
    headline: str
    period_from: str
    period_to: str
    length: str
    generated_at: str
    alarm: str
    steps: tuple[str, ...]
    targets: tuple[TargetLine, ...]
    cards: tuple[Card, ...]
    notes: tuple[Note, ...]
    parts: tuple[Part, ...]
    words: tuple[tuple[str, str], ...]
    code_version: str
    targets_file: str


def to_html(report: Report) -> str:
    """Return the page."""
    folder = resources.files("sla.report")
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, finalize=_shown, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(folder.joinpath("page.html.j2").read_text(encoding="utf-8"))
    style = Markup(folder.joinpath("page.css").read_text(encoding="utf-8"))  # noqa: S704 (our own file)
    return template.render(page=_page(report), style=style) + "\n"


def _shown(value: object) -> object:
    """Return what an expression of the template becomes; markup is ours and stays as it is."""
    return value if isinstance(value, Markup) else w.printable(str(value))


def _page(report: Report) -> Page:
    made = report.made
    return Page(
        verdict=report.verdict.value,
        headline=report.headline.removeprefix(f"{report.verdict.value}: "),
        period_from=w.moment(made.period_from),
        period_to=w.moment(made.period_to),
        length=w.minutes(made.minutes),
        generated_at=w.moment(made.generated_at),
        alarm=_alarm(report),
        steps=next_steps(report),
        targets=tuple(_target_line(target, report) for target in report.targets),
        cards=(_inputs_card(report), _clocks_card(report), _worst_card(report)),
        notes=tuple(note for note in report.notes if note.code != w.BURNING_CODE),  # said in the alarm
        parts=tuple(_parts(report)),
        words=w.WORDS,
        code_version=made.code_version,
        targets_file=made.targets_file,
    )


def _alarm(report: Report) -> str:
    """Return which burn-rate alerts are on, the urgent ones first; empty when none is."""
    firing = [
        (window.severity, f"{target.name} {w.short(subject.name)}")
        for target in report.targets
        for subject in target.subjects
        for window in subject.burn
        if window.is_firing
    ]
    parts = []
    for severity in dict.fromkeys(sorted(severity for severity, _ in firing)):
        names = list(dict.fromkeys(name for found, name in firing if found == severity))
        more = f" and {len(names) - ALARMS_SHOWN} more" if len(names) > ALARMS_SHOWN else ""
        parts.append(f"{w.urgency(severity)}: {', '.join(names[:ALARMS_SHOWN])}{more}.")
    return " ".join(parts)


def _target_line(target: TargetResult, report: Report) -> TargetLine:
    worst = next((subject for subject in target.subjects if subject.name == target.worst_subject), None)
    left = None if target.budget is None else target.budget.left_share
    return TargetLine(
        verdict=target.verdict.value,
        sentence=target.sentence,
        reason=target.reason,
        is_reason_news=bool(target.reason) and (target.verdict is not Verdict.BREACH or target.measured is None),
        measured=t.measured_of(target, report),
        bounds="" if target.measured is None or _is_certain(target.measured) else w.bounds(target.measured),
        worst_subject=w.short(target.worst_subject or ""),
        counted="" if worst is None else f"{w.count(worst.bad)} bad of {w.count(worst.total)}",
        spread=_spread(target),
        budget="no error budget" if target.budget is None else w.budget_left(target.budget),
        budget_details="" if target.budget is None else w.budget_details(target.budget),
        fill=None if left is None else max(0, min(100, int(left * 100))) if left >= 0 else 100,
        fill_class="" if left is None else "gone" if left < 0 else "low" if left < LOW_BUDGET_SHARE else "left",
        subjects=t.subjects_table(target),
    )


def _spread(target: TargetResult) -> str:
    """Return for how many pairs, regions or readers the target has its verdict; empty when there is one only."""
    if len(target.subjects) < 2:
        return ""
    verdicts = [subject.verdict for subject in target.subjects]
    verdict = target.verdict if target.verdict in verdicts else Verdict.NO_DATA  # a doubt for what was not counted
    of = f"{w.count(verdicts.count(verdict))} of {w.count(len(verdicts))} {_SUBJECTS[target.kind]}"
    return f"{of} {w.WORD_OF_VERDICT[verdict]}"


def _is_certain(interval: Interval) -> bool:
    return interval.lo == interval.value == interval.hi


# --- cards -------------------------------------------------------------------------------------------


def _inputs_card(report: Report) -> Card:
    inputs = report.inputs
    rows = sum(row.rows for row in inputs.rows)
    of_figures = [row for row in inputs.rows if row.kind != TraceKind.DELIVERY.value]  # samples are in no figure
    missing = sum(row.gone_rows for row in of_figures)
    dropped = sum(row.dropped_rows for row in of_figures)
    samples = sum(row.gone_rows for row in inputs.rows) - missing
    aside = max(len(inputs.quarantined), sum(row.quarantined_files for row in inputs.rows))
    silent = sum(row.silent_writer_hours for row in inputs.rows if row.kind == TraceKind.CLOCK.value)
    wrong = [
        w.things(number, *words)
        for number, words in (
            (inputs.hours_expected - inputs.hours, ("hour without data", "hours without data")),
            (aside, ("file set aside", "files set aside")),
            (missing, ("row missing", "rows missing")),
            (dropped, ("of them dropped by its broker", "of them dropped by brokers")),
            (silent, ("silent writer hour", "silent writer hours")),
        )
        if number
    ]
    if any(note.code == "ROWS_LEFT_OUT" for note in report.notes):
        wrong.append("rows that are in no figure")
    writers = {writer for row in inputs.rows for writer in row.writers}
    whole = f"nothing is known to be missing of {w.count(rows)} rows"
    if samples:
        whole = "only samples of single batches are missing, which are in no figure"
    return Card(
        title="Was everything counted?",
        state="warning" if wrong else "good",
        answer=f"No: {', '.join(wrong)}" if wrong else f"Yes: {whole}",
        facts=(
            ("hours with data", f"{w.count(inputs.hours)} of {w.count(inputs.hours_expected)}"),
            ("trace rows read", w.count(rows)),
            ("from brokers and gateways", w.count(len(writers))),
            ("rows missing, of these dropped", f"{w.count(missing)}, {w.count(dropped)}"),
            *((("samples missing", w.count(samples)),) if samples else ()),
            ("files set aside", w.count(aside)),
            ("hours revised since / not final", f"{w.count(inputs.hours_revised)} / {w.count(inputs.hours_not_final)}"),
        ),
        anchor="evidence",
        link="What was read",
    )


def _clocks_card(report: Report) -> Card:
    judged = [(pair, stage) for pair in report.latency for stage in pair.stages if stage.stage == Stage.TOTAL.value]
    across = [(pair, stage) for pair, stage in judged if not pair.is_intra]
    records = sum(stage.n for _, stage in across)
    unknown = sum(pair.n_clock_unknown for pair, _ in across)
    undecided = sum(round((stage.within.hi - stage.within.lo) * stage.n) for _, stage in across)
    errors = [stage.clock_error_ms for _, stage in across if stage.clock_error_ms is not None]
    steps = sum(row.steps for row in report.clocks)
    is_good = undecided <= records * _UNDECIDED_SHARE_MAX and not unknown
    if not records:
        answer = "Not needed: no record crossed from one region to another"
    elif is_good and errors and not max(errors):
        answer = "Yes, by configuration: no error between them was measured, it is set to 0"
    elif is_good:
        answer = f"Yes: they err by {w.ms(max(errors, default=None), missing=w.UNKNOWN)} ms at most"
    else:
        answer = f"Not everywhere: {w.count(undecided)} of {w.count(records)} records could be in time or late"
    worst = max(across, key=_clock_doubt, default=None)
    return Card(
        title="Can the clocks be trusted?",
        state="good" if is_good else "warning",
        answer=answer,
        facts=(
            ("largest error", f"{w.ms(max(errors), missing=w.UNKNOWN)} ms" if errors else w.UNKNOWN),
            ("of pair", w.NONE if worst is None else w.way(worst[0].origin, worst[0].dest, worst[0].home)),
            ("records the clocks leave open", w.count(undecided)),
            ("records with unknown clock error", w.count(unknown)),
            ("fitted again afterwards", w.count(sum(pair.n_clock_revised for pair, _ in across))),
            ("times a clock was set", w.count(steps)),
        ),
        anchor="evidence",
        link="Clocks between regions",
    )


def _clock_doubt(item: tuple[LatencyPair, StageLatency]) -> tuple[bool, float]:
    pair, stage = item
    return pair.n_clock_unknown > 0, stage.clock_error_ms or 0.0


def _worst_card(report: Report) -> Card:
    pairs = [
        (target, subject)
        for target in report.targets
        if target.kind in _PAIR_KINDS
        for subject in target.subjects
        if subject.bad
    ]
    top = sorted(pairs, key=lambda item: (-_times_allowed(*item), item[1].name))[:WORST_ON_CARD]
    answer = "Nowhere: no pair has a bad event"
    if top:
        target, subject = top[0]
        answer = f"{w.short(subject.name)}: {w.percent_up(subject.bad / subject.total)} of {_BAD_WORD[target.kind]}"
    return Card(
        title="Where does it hurt most?",
        state="plain" if top else "good",
        answer=answer,
        facts=tuple(
            (f"{subject.name}, {_BAD_WORD[target.kind]}", f"{w.count(subject.bad)} of {w.count(subject.total)}")
            for target, subject in top
        ),
        anchor="worst-part",
        link="What cost most",
    )


def _times_allowed(target: TargetResult, subject: Subject) -> float:
    """Return how many times the allowed share was bad."""
    return subject.bad / subject.total / (1 - (target.objective or 0.0))


# --- parts -------------------------------------------------------------------------------------------


def _parts(report: Report) -> Iterable[Part]:
    tables = {table.key: table for table in t.all_tables(report)}
    plots = {plot.key: plot for plot in _trusted(plots_of(report.series))}
    layout = (
        ("latency-part", "Latency", ("latency",), ("plot-latency",), ("stages", "clock-effect"), ("plot-within",)),
        ("throughput-part", "Throughput", ("throughput",), ("plot-throughput",), (), ()),
        (
            "integrity-part",
            "Integrity",
            ("totals", "readers-not-passing"),
            (),
            ("accounts", "readers", "gaps", "streams", "mirrors"),
            (),
        ),
        ("availability-part", "Availability", ("probes", "requests"), ("plot-probes",), (), ()),
        ("burn-part", "Burn rates", (), (), ("burn",), ()),
        ("worst-part", "What cost most", ("worst",), (), (), ()),
        ("changes-part", "Since the previous period", (), (), ("changes",), ()),
        ("evidence", "What this rests on", ("clocks", "quarantine"), (), ("inputs",), ()),
    )
    for key, title, shown, shown_plots, more, more_plots in layout:
        part = Part(
            key=key,
            title=title,
            good_news=integrity_news(report) if key == "integrity-part" else "",
            tables=tuple(tables[name] for name in shown if name in tables),
            plots=tuple(plots[name] for name in shown_plots if name in plots),
            more_tables=tuple(tables[name] for name in more if name in tables),
            more_plots=tuple(plots[name] for name in more_plots if name in plots),
        )
        if part.tables or part.plots or part.more_tables or part.more_plots or key in _ALWAYS:
            yield part


_ALWAYS: Final = ("worst-part", "evidence")  # the cards lead to them


def _trusted(plots: Sequence[Plot]) -> Iterable[Plot]:
    for plot in plots:
        yield Plot(
            key=plot.key,
            title=plot.title,
            explanation=plot.explanation,
            svg=Markup(plot.svg),  # noqa: S704 (made by sla.report.plots, which escapes names)
            columns=plot.columns,
            left_out=plot.left_out,
        )
