"""The report's page in a browser: it needs no network, and names in it are text."""

from __future__ import annotations

from sla.report import plots
from sla.report.html import to_html
from tests.browser.conftest import Browse
from tests.sla.sample_report import HOSTILE, sample_report


def test_a_browser_without_network_shows_the_page_and_runs_no_name(browse: Browse) -> None:
    answer = browse(to_html(sample_report()))
    assert "<title>BREACH: service report 2026-11-20 00:00 UTC</title>" in answer.stdout
    assert HOSTILE not in answer.stdout, "a name became markup"
    assert HOSTILE.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;") in answer.stdout
    assert answer.stdout.count("<svg") == len(plots.plots_of(sample_report().series))
    assert "Content Security Policy" not in answer.stderr
