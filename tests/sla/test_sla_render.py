"""What the report looks like: page, Markdown, JSON, Parquet, JUnit and terminal, from one report made by hand."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from sla.report import model as m
from sla.report import plots, tables, wording
from sla.report.html import to_html
from sla.report.jsonout import to_json
from sla.report.jsonschema import report_schema, schema_text, stored_schema_text
from sla.report.junit import to_junit
from sla.report.markdown import to_markdown
from sla.report.parquetout import SUMMARY_SCHEMA, to_parquet
from sla.report.terminal import show
from sla.report.text_table import ROWS_MAX
from tests.sla.sample_report import HOSTILE, START, sample_report

GOLDEN = Path(__file__).parents[1] / "golden" / "sla" / "report.json"
REFERENCES = {"src", "srcset", "href", "xlink:href", "action", "data", "poster", "background", "ping", "formaction"}


@pytest.fixture(scope="module")
def report() -> m.Report:
    return sample_report()


@pytest.fixture(scope="module")
def page(report: m.Report) -> str:
    return to_html(report)


def with_name(report: m.Report, name: str) -> m.Report:
    """Return the report with another name of a topic, a note and the headline."""
    reader = dataclasses.replace(report.integrity.readers[0], topic=name)
    return dataclasses.replace(
        report,
        headline=f"BREACH: {name}",
        integrity=dataclasses.replace(report.integrity, readers=(reader,)),
        notes=(m.Note(code="X", text=name, is_warning=True),),
        worst=(dataclasses.replace(report.worst[0], name=name),),
    )


# --- numbers -------------------------------------------------------------------------------------------


@given(st.integers(0, 10**12), st.integers(1, 10**12))
def test_a_share_is_never_rounded_in_its_favour(good: int, total: int) -> None:
    share = min(good, total) / total
    shown = float(wording.percent(share).removesuffix(" %"))
    above = float(wording.percent_up(share).removesuffix(" %"))
    assert (shown == 100) is (share == 1)
    assert (above == 0) is (share == 0)
    assert shown / 100 <= share + 1e-11
    assert above / 100 >= share - 1e-11
    assert above - shown < 0.00011


@pytest.mark.parametrize(
    ("share", "text"), [(0.99, "99 %"), (0.9999, "99.99 %"), (0.99999999, "99.9999 %"), (1.0, "100 %"), (0.0, "0 %")]
)
def test_a_share_has_four_digits_at_most(share: float, text: str) -> None:
    assert wording.percent(share) == text


def test_what_is_certain_has_no_range() -> None:
    assert wording.measured_with_bounds(m.Interval(value=0.5, lo=0.5, hi=0.5)) == "50 %"
    assert wording.measured_with_bounds(m.Interval(value=0.5, lo=0.4, hi=0.6)) == "50 % (40 % to 60 %)"
    assert wording.measured_with_bounds(m.Interval(value=None, lo=0.0, hi=1.0)) == "unknown (0 % to 100 %)"


@pytest.mark.parametrize(
    ("used", "words"), [(0, "100 % left"), (50, "50 % left"), (100, "0 % left"), (250, "overspent, 2.5 x")]
)
def test_a_budget_says_what_is_left(used: int, words: str) -> None:
    budget = m.Budget(
        unit=m.Unit.RECORDS, allowed=100.0, used=used, left_share=1 - used / 100, full_outage_minutes_left=None,
        exhausted_at=None,
    )  # fmt: skip
    assert wording.budget_left(budget) == words


@pytest.mark.parametrize(("minutes", "text"), [(0.5, "30 s"), (3.25, "3.2 min"), (600, "10 h"), (43_200, "30 days")])
def test_lengths_of_time_have_a_readable_unit(minutes: float, text: str) -> None:
    assert wording.minutes(minutes) == text


def test_the_card_of_the_input_counts_a_dropped_row_once_silence_by_clocks_alone_and_no_samples(
    report: m.Report,
) -> None:
    def row(kind: str, **changes: Any) -> m.InputRow:
        values = {"missing_rows": 0, "dropped_rows": 0, "gone_rows": 0, "silent_writer_hours": 0} | changes
        return dataclasses.replace(report.inputs.rows[0], kind=kind, quarantined_files=0, **values)

    def card(*rows: m.InputRow) -> str:
        inputs = dataclasses.replace(report.inputs, rows=rows, quarantined=(), hours_expected=report.inputs.hours)
        return first_screen(to_html(dataclasses.replace(report, inputs=inputs, series=())))

    assert "No: 100 rows missing, 100 of them dropped by brokers" in card(
        row("probe", missing_rows=100, dropped_rows=100, gone_rows=100)
    )
    assert "rows missing, of these dropped107, 107" in card(
        row("probe", missing_rows=100, dropped_rows=100, gone_rows=100),
        row("outcome", dropped_rows=7, gone_rows=7),
    )
    assert "No: 20 rows missing, 10 of them dropped by brokers" in card(
        row("probe", missing_rows=10, dropped_rows=10, gone_rows=20)
    )
    assert "Yes: nothing is known to be missing" in card(row("outcome", silent_writer_hours=3))
    assert "No: 2 silent writer hours" in card(row("clock", silent_writer_hours=2))
    samples = card(row("delivery", missing_rows=8, dropped_rows=8, gone_rows=8), row("probe"))
    assert "Yes: only samples of single batches are missing, which are in no figure" in samples
    assert "rows missing, of these dropped0, 0samples missing8" in samples


# --- report.json -----------------------------------------------------------------------------------------


def test_report_json_is_the_golden_one(request: pytest.FixtureRequest) -> None:
    text = to_json(sample_report(points=4))
    if request.config.getoption("--rewrite"):
        GOLDEN.write_text(text, encoding="utf-8")
    assert text == GOLDEN.read_text(encoding="utf-8")


def test_the_stored_schema_is_that_of_the_model(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--rewrite"):
        Path(tables.__file__).with_name("report.schema.json").write_text(schema_text(), encoding="utf-8")
    assert stored_schema_text() == schema_text()


def violations(value: Any, schema: dict[str, Any], root: dict[str, Any], path: str = "$") -> list[str]:
    """Check the part of JSON Schema that the report's schema uses."""
    if "$ref" in schema:
        return violations(value, root["$defs"][schema["$ref"].rpartition("/")[2]], root, path)
    if "anyOf" in schema:
        tried = [violations(value, part, root, path) for part in schema["anyOf"]]
        return [] if [] in tried else [f"{path}: {value!r} is none of {schema['anyOf']}"]
    if "const" in schema or "enum" in schema:
        return [] if value in schema.get("enum", [schema.get("const")]) else [f"{path}: {value!r}"]
    kinds: dict[str, Any] = {
        "string": str, "integer": int, "number": (int, float), "boolean": bool, "null": type(None), "array": list,
        "object": dict,
    }  # fmt: skip
    is_bool_as_number = isinstance(value, bool) and schema["type"] != "boolean"
    if not isinstance(value, kinds[schema["type"]]) or is_bool_as_number:
        return [f"{path}: {value!r} is no {schema['type']}"]
    if schema["type"] == "array":
        return [
            text for at, item in enumerate(value) for text in violations(item, schema["items"], root, f"{path}[{at}]")
        ]
    if schema["type"] == "object":
        wrong = (
            [f"{path}: {sorted(set(schema['required']) ^ set(value))}"] if set(schema["required"]) != set(value) else []
        )
        return wrong + [
            text
            for name, item in value.items()
            if name in schema["properties"]
            for text in violations(item, schema["properties"][name], root, f"{path}.{name}")
        ]
    return []


def test_report_json_keeps_to_its_schema() -> None:
    schema = report_schema()
    whole = json.loads(to_json(sample_report(points=4)))
    assert violations(whole, schema, schema) == []
    whole["targets"][0]["subjects"][0]["total"] = "many"
    del whole["made"]["minutes"]
    assert violations(whole, schema, schema) == [
        "$.made: ['minutes']",
        "$.targets[0].subjects[0].total: 'many' is no integer",
    ]


# --- the page ----------------------------------------------------------------------------------------------


class Reader(HTMLParser):
    """Collects what a browser would act on."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.references: list[str] = []
        self.handlers: list[str] = []
        self.identifiers: list[str] = []
        self.policy = ""
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        values = dict(attrs)
        self.references += [value or "" for name, value in attrs if name in REFERENCES]
        self.handlers += [name for name, _ in attrs if name.startswith("on")]
        self.identifiers += [value or "" for name, value in attrs if name == "id"]
        if values.get("http-equiv") == "Content-Security-Policy":
            self.policy = values.get("content") or ""

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    return reader


def test_the_page_refers_to_nothing_outside_itself(page: str) -> None:
    reader = read(page)
    assert {reference[:1] for reference in reader.references} == {"#"}
    assert not {"script", "link", "iframe", "img", "object", "embed", "base", "form"} & set(reader.tags)
    assert reader.handlers == []
    assert re.findall(r"https?:|//[a-z]|@import|url\((?!#)", page) == []
    assert reader.policy == "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def test_every_identifier_is_there_once_and_every_reference_finds_its_own(page: str) -> None:
    reader = read(page)
    assert sorted(reader.identifiers) == sorted(set(reader.identifiers))
    clips = set(re.findall(r"url\(#([^)]*)\)", page))
    assert clips
    assert ({reference[1:] for reference in reader.references} | clips) - set(reader.identifiers) == set()


@pytest.mark.parametrize(
    "name", [HOSTILE, '"><img src=x onerror=alert(1)>', "{{ 7*7 }}", "$\\frac{1}{2}$", "a\x1b[2Jb", "\u4e2d\u6587"]
)
def test_a_name_stays_text_wherever_it_is_shown(report: m.Report, name: str) -> None:
    hostile = with_name(report, name)
    line = dataclasses.replace(report.series[0], name=name)
    page = to_html(dataclasses.replace(hostile, series=(line,)))
    reader = read(page)
    assert "script" not in reader.tags and "img" not in reader.tags and reader.handlers == []
    assert "".join(reader.text).count(wording.printable(name)) >= 3  # the plot's font lacks some characters
    assert "\x1b" not in page
    markdown = to_markdown(hostile)
    assert re.findall(r"(?<!\\)<(?!/?details|/?summary)|\x1b", markdown) == []
    screen = Console(file=io.StringIO(), width=400)
    show(hostile, screen)
    assert "\x1b" not in screen.file.getvalue()  # type: ignore[attr-defined]
    ET.fromstring(to_junit(hostile))


def first_screen(page: str) -> str:
    return " ".join("".join(read(page.partition("<nav")[0]).text).split())


def test_the_first_screen_says_verdicts_proof_budget_input_clocks_and_worst_pairs(page: str) -> None:
    text = first_screen(page)
    for part in (
        "BREACH us -> ap: 99.9647 % of probes",
        "2026-11-20 00:00 UTC – 2026-11-22 00:00 UTC (2 days",
        "Error budgets burning at the end of the period: act now (page): probes us -> ap.",
        "99.99 % of probes come in time, every pair",
        "99.9646 % (99.9531 % to 99.9718 %)",
        "us -> ap: 61 bad of 172,800",
        "overspent, 3.5 x",
        "88 % left",
        "0 in all",
        "No: 1 hour without data, 1 file set aside, 1,832 rows missing, 40 of them dropped by brokers",
        "Not everywhere: 110,000 of 51,840,000 records could be in time or late",
        "us -> ap: 0.0354 % of probes failed",
        "ap -> eu, records late92,000 of 8,640,000",
        "hour 2026-11-21 14:00 UTC has no traces from ap",
    ):
        assert part in text, part


def test_good_news_reads_as_good_news(report: m.Report) -> None:
    inputs = m.Inputs(
        rows=(dataclasses.replace(report.inputs.rows[0], silent_writer_hours=0),), quarantined=(), hours=48,
        hours_expected=48, hours_revised=0, hours_not_final=0,
    )  # fmt: skip
    certain = m.Interval(value=1.0, lo=1.0, hi=1.0)
    latency = tuple(
        dataclasses.replace(
            pair,
            n_clock_unknown=0,
            stages=tuple(dataclasses.replace(stage, within=certain, clock_error_ms=0.4) for stage in pair.stages),
        )
        for pair in report.latency
    )
    text = first_screen(to_html(dataclasses.replace(report, inputs=inputs, latency=latency, targets=(), series=())))
    assert "Yes: nothing is known to be missing of 5,184,000 rows" in text
    assert "Yes: they err by 0.400 ms at most" in text
    assert "Nowhere: no pair has a bad event" in text


def test_readers_that_all_pass_are_one_sentence(report: m.Report) -> None:
    integrity = dataclasses.replace(report.integrity, readers=report.integrity.readers[:1])
    passing = dataclasses.replace(report, integrity=integrity, series=())
    sentence = "Nothing lost, repeated without saying so, or reordered: 1 reader."
    assert sentence in to_html(passing) and sentence not in to_html(dataclasses.replace(report, series=()))
    screen = Console(file=io.StringIO(), width=200)
    show(passing, screen)
    assert sentence in screen.file.getvalue()  # type: ignore[attr-defined]


def test_a_report_of_nothing_is_a_page_too(report: m.Report) -> None:
    totals = [field.name for field in dataclasses.fields(m.IntegrityTotals)]
    empty = dataclasses.replace(
        report, latency=(), throughput=(), clocks=(), worst=(), changes=(), series=(), notes=(),
        targets=tuple(dataclasses.replace(one, subjects=(), measured=None, budget=None) for one in report.targets),
        integrity=m.Integrity(totals=m.IntegrityTotals(**dict.fromkeys(totals, 0)), readers=(), streams=(), mirrors=()),
        availability=m.Availability(requests=(), pairs=()),
        inputs=dataclasses.replace(report.inputs, rows=(), quarantined=()),
    )  # fmt: skip
    text = first_screen(to_html(empty))
    assert "Nothing was counted for it." in text
    assert "Not needed: no record crossed from one region to another" in text
    assert to_markdown(empty).count("\n## ") == 2
    assert to_junit(empty).count("<skipped") == len(report.targets)


# --- plots -------------------------------------------------------------------------------------------------


def line(values: list[float | None], plot: str = "latency_p99_ms", name: str = "us -> eu") -> m.Series:
    start = int(START.timestamp())
    at_s = tuple(start + 60 * minute for minute in range(len(values)))
    return m.Series(plot=plot, name=name, step_s=60, at_s=at_s, values=tuple(values))


def test_a_thinned_series_keeps_its_worst_value_and_its_holes() -> None:
    values: list[float | None] = [1.0] * 43_200
    values[20_001] = 900.0
    values[30_000:40_000] = [None] * 10_000
    times, thin = plots.thin(line(values), max)
    assert len(times) == len(thin) <= plots.POINTS_MAX
    assert max(value for value in thin if math.isfinite(value)) == 900.0
    assert sum(map(math.isnan, thin)) == pytest.approx(len(thin) * 10_000 / 43_200, abs=2)


def test_a_step_without_a_point_is_a_hole() -> None:
    whole = line([1.0, 2.0, 3.0, 4.0])
    holed = dataclasses.replace(whole, at_s=(*whole.at_s[:1], *whole.at_s[3:]), values=(1.0, 4.0))
    times, values = plots.thin(holed, max)
    assert times == [*whole.at_s]
    assert [math.isnan(value) for value in values] == [False, True, True, False]


def test_a_plot_takes_its_ink_from_the_page_and_shows_names_as_they_are() -> None:
    (plot,) = plots.plots_of([line([5.0, 6.0, None, 7.0], name="$x$ -> <b>")])
    assert "currentColor" in plot.svg and "#123456" not in plot.svg
    assert "$x$ -&gt; &lt;b&gt;" in plot.svg
    assert "#ffffff" not in plot.svg and "xmlns" not in plot.svg


def test_pairs_beyond_the_room_are_counted_and_pairs_without_failures_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "PANELS_MAX", 3)  # what a panel takes to be drawn is most of this file
    many = [line([1.0, 2.0], name=f"r{number:02} -> eu") for number in range(6)]
    (latency,) = plots.plots_of(many)
    assert latency.left_out == 3
    fine = line([0.0, None, 0.0], plot="probe_bad_share")
    assert plots.plots_of([fine]) == []
    (probes,) = plots.plots_of([fine, line([0.0, 0.5], plot="probe_bad_share", name="us -> ap")])
    assert "us -&gt; ap" in probes.svg and "us -&gt; eu" not in probes.svg


def test_one_point_is_a_plot(page: str) -> None:
    (plot,) = plots.plots_of([line([5.0])])
    assert "us -&gt; eu" in plot.svg


@pytest.mark.parametrize("length_s", [0, 7, 60, 3_600, 90_000, 86_400 * 30, 86_400 * 366])
def test_times_have_a_few_round_ticks(length_s: int) -> None:
    start = int(START.timestamp()) + 11
    ticks = plots.time_ticks(start, start + length_s)
    assert len(ticks) <= plots.TICKS_MAX
    assert all(start <= tick <= start + length_s for tick in ticks)
    assert len({plots.time_label(tick, ticks) for tick in ticks}) == len(ticks) or length_s > 86_400


# --- the other outputs -------------------------------------------------------------------------------------


def test_markdown_has_every_table_and_escapes_names(report: m.Report) -> None:
    text = to_markdown(report)
    titles = [table.title for table in tables.all_tables(report) if table.key != "readers-not-passing"]
    assert [title for title in titles if f"\n## {title}\n" not in text] == []
    assert len(titles) > 15
    assert (
        "| BREACH | 99.99 % of probes come in time, every pair | 99.9646 % (99.9531 % to 99.9718 %) | 99.99 % |" in text
    )
    assert "\\$x\\$ \\| \\*y\\*" in text
    assert text.count("<details>") == len(report.targets)


def test_a_table_of_text_has_an_end(report: m.Report) -> None:
    readers = tuple(
        dataclasses.replace(report.integrity.readers[0], partition=number) for number in range(ROWS_MAX + 7)
    )
    long = dataclasses.replace(report, integrity=dataclasses.replace(report.integrity, readers=readers))
    table = next(table for table in tables.all_tables(long) if table.key == "readers")
    assert (len(table.rows), table.left_out) == (ROWS_MAX, 7)
    assert "7 more rows are in report.json" in to_markdown(long)


def test_what_is_worst_comes_first_where_rows_may_be_cut_off(report: m.Report) -> None:
    latency = next(target for target in report.targets if target.kind is m.TargetKind.LATENCY)
    verdicts = [row[0] for row in tables.subjects_table(latency).rows]
    assert verdicts == sorted(verdicts, key=["BREACH", "INCONCLUSIVE", "PASS"].index)
    assert len(set(verdicts)) == 3
    alerts = [row[-1] for row in tables.burn_table(report).rows]
    early = "too early: would be on; has data for 2 days of 3 days"
    assert alerts[:4] == ["ON: act now (page)", "ON: act now (page)", "off; was on for 3 min", early]


def test_an_alert_says_how_urgent_it_is_and_programs_read_one_word(report: m.Report, page: str) -> None:
    screen = Console(file=io.StringIO(), width=200)
    show(report, screen)
    printed = screen.file.getvalue()  # type: ignore[attr-defined]
    assert "probes: us -> ap: act now (page), windows 1h+5m" in printed
    for text in (printed, to_markdown(report).replace("\\", ""), page):
        assert "act now (page)" in text and "page: probes" not in text and "1h+5m page" not in text
    assert "probes: us -> ap: 1h+5m page" in to_json(report) and "act now" not in to_json(report)
    note = m.Note(
        code="BUDGET_BURNING", text="requests: us: 3d+6h ticket, ticket: 1h+5m page and 2 more", is_warning=True
    )
    said = "requests: us: look soon (ticket), windows 3d+6h, ticket: act now (page), windows 1h+5m and 2 more"
    assert wording.note_text(note) == said


def test_the_terminal_ends_with_the_verdict(report: m.Report) -> None:
    screen = Console(file=io.StringIO(), width=200)
    show(report, screen)
    lines = screen.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert lines[-1].startswith("BREACH: us -> ap: 99.9647 % of probes")
    assert lines[-2] == "probes: us -> ap: act now (page), windows 1h+5m"
    assert [line for line in lines if line.startswith("│ PASS") and " billing " in line] == []  # a reader that passes
    assert any("overspent, 3.5 x" in line for line in lines)


def test_the_summary_has_a_row_per_subject(report: m.Report) -> None:
    table = pq.read_table(io.BytesIO(to_parquet(report)))
    assert table.schema.equals(SUMMARY_SCHEMA)
    rows = table.to_pylist()
    assert len(rows) == sum(len(target.subjects) for target in report.targets)
    row = next(row for row in rows if (row["target"], row["subject"]) == ("probes", "us -> ap"))
    assert (row["total"], row["bad"], row["verdict"], row["budget_used"]) == (172_800, 61, "BREACH", 61)
    assert row["lo"] < row["value"] < row["hi"]


def test_junit_fails_breaches_and_skips_what_is_open(report: m.Report) -> None:
    suites = {suite.get("name", "").partition(":")[0]: suite for suite in ET.fromstring(to_junit(report))}
    probes, minutes, throughput = suites["probes"], suites["minutes"], suites["throughput"]
    assert (probes.get("tests"), probes.get("failures"), probes.get("skipped")) == ("2", "1", "0")
    assert [case.get("name") for case in probes if case.find("failure") is not None] == ["us -> ap"]
    assert (minutes.get("failures"), minutes.get("skipped")) == ("0", "1")
    assert (throughput.get("failures"), throughput.get("skipped")) == ("0", "0")
