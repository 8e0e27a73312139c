"""The plots of the page: matplotlib's SVG, made fit to stand inside one HTML document.

Rule 1: nothing in a plot points outside the page: no namespace, no font file, no script, no identifier twice.
Rule 2: a plot takes its ink from the page (currentColor), so it is readable on a light and on a dark ground.
Rule 3: names are text, never markup: matplotlib's `$math$` is off, and the backend escapes.
Rule 4: a long series is thinned to POINTS_MAX by its worst value per step, so that no incident disappears.
"""

from __future__ import annotations

import datetime
import io
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import matplotlib as mpl
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from georelay.trace.histogram import GOOD_US_MAX
from sla.report.model import Series
from sla.report.wording import printable

POINTS_MAX: Final = 480
PANELS_MAX: Final = 12
TICKS_MAX: Final = 5
_COLUMNS: Final = 3
_DECADES_SHOWN_FINE: Final = 100  # highest by lowest latency up to which 2 and 5 have ticks too
_MINUTE_S: Final = 60
_HOUR_S: Final = 3_600
_DAY_S: Final = 86_400
_TICK_STEPS_S: Final = (
    *(1, 5, 10, 30),
    *(_MINUTE_S * minutes for minutes in (1, 2, 5, 10, 15, 30)),
    *(_HOUR_S * hours for hours in (1, 2, 3, 6, 12)),
    *(_DAY_S * days for days in (1, 2, 5, 10, 30, 90, 365)),
)
_INK: Final = "#123456"  # stands for currentColor until the text of the SVG is mended
_FAINT: Final = "#808080"
_BLUE: Final = "#3b82d0"
_ORANGE: Final = "#d97a1e"
_STYLE: Final = {
    "svg.fonttype": "none",
    "font.size": 8.5,
    "text.color": _INK,
    "text.parse_math": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "axes.edgecolor": _FAINT,
    "axes.labelcolor": _INK,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": _FAINT,
    "grid.alpha": 0.25,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "legend.frameon": False,
    "lines.linewidth": 1.1,
}
_PROLOGUE: Final = re.compile(r"^.*?(?=<svg)", re.DOTALL)
_NAMESPACE: Final = re.compile(r'\s+xmlns(?::\w+)?="[^"]*"')
_HEAD: Final = re.compile(r"<metadata>.*?</metadata>|<style[^>]*>.*?</style>|<!--.*?-->", re.DOTALL)
_IDENTIFIER: Final = re.compile(r'(\bid="|href="#|url\(#)')


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """One figure of `columns` panels in a row. `svg` is trusted markup; `left_out` panels had no room."""

    key: str
    title: str
    explanation: str
    svg: str
    columns: int
    left_out: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """One line of every panel: which series, its colour, how it is thinned."""

    plot: str
    label: str
    color: str
    worst: Callable[[Sequence[float]], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Figure:
    key: str
    title: str
    explanation: str
    lines: tuple[_Line, ...]
    shape: Callable[[Any], None]
    is_shown: Callable[[Series], bool] = lambda _: True


def plots_of(series: Sequence[Series]) -> list[Plot]:
    """Return the figures that there are data for."""
    plots = []
    for figure in _FIGURES:
        wanted = {line.plot for line in figure.lines}
        mine = [item for item in series if item.plot in wanted and _has_data(item) and figure.is_shown(item)]
        if mine:
            plots.append(_draw(figure, mine))
    return plots


def thin(series: Series, worst: Callable[[Sequence[float]], float]) -> tuple[list[int], list[float]]:
    """Return at most POINTS_MAX (time, value) of a series; nan where it has no value or no step at all."""
    if not series.at_s:
        return [], []
    first_s, known = series.at_s[0], dict(zip(series.at_s, series.values, strict=True))
    steps = (series.at_s[-1] - first_s) // series.step_s + 1
    width_s = series.step_s * math.ceil(steps / POINTS_MAX)
    buckets: dict[int, list[float]] = {}
    for at_s, value in known.items():
        if value is not None:
            buckets.setdefault((at_s - first_s) // width_s, []).append(value)
    times = list(range(first_s, series.at_s[-1] + 1, width_s))
    return times, [worst(buckets[index]) if index in buckets else math.nan for index in range(len(times))]


def _has_data(series: Series) -> bool:
    return any(value is not None for value in series.values)


def _draw(figure: _Figure, series: Sequence[Series]) -> Plot:
    names = list(dict.fromkeys(item.name for item in series))
    shown = names[:PANELS_MAX]
    columns = min(_COLUMNS, len(shown))
    rows = math.ceil(len(shown) / columns)
    with mpl.rc_context(_STYLE):
        canvas = Figure(figsize=(3.7 * columns, 1.75 * rows + 0.3), layout="constrained")
        panels = canvas.subplots(rows, columns, squeeze=False, sharex=True)
        for index, panel in enumerate(panels.flat):
            if index >= len(shown):
                panel.set_visible(False)
                continue
            _draw_panel(panel, figure, [item for item in series if item.name == shown[index]], shown[index])
        handles, labels = panels.flat[0].get_legend_handles_labels()
        canvas.legend(handles, labels, loc="outside upper right", ncols=len(labels))
        text = io.StringIO()
        FigureCanvasSVG(canvas).print_svg(text, metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return Plot(
        key=figure.key,
        title=figure.title,
        explanation=figure.explanation,
        svg=_fit_for_page(text.getvalue(), figure.key, figure.title),
        columns=columns,
        left_out=len(names) - len(shown),
    )


def _draw_panel(panel: Any, figure: _Figure, series: Sequence[Series], name: str) -> None:
    for line in figure.lines:
        for item in series:
            if item.plot != line.plot:
                continue
            times, values = thin(item, line.worst)
            marker = "." if sum(math.isfinite(value) for value in values) < 3 else ""
            panel.plot(times, values, color=line.color, label=line.label, marker=marker)
    panel.set_title(_drawable(name), loc="left")
    ticks = time_ticks(min(item.at_s[0] for item in series), max(item.at_s[-1] for item in series))
    panel.xaxis.set_major_locator(FixedLocator(ticks))
    panel.xaxis.set_major_formatter(FuncFormatter(lambda at_s, _: time_label(int(at_s), ticks)))
    figure.shape(panel)


def _drawable(name: str) -> str:
    """Return a name with the characters that matplotlib's own font can measure; tables have it whole."""
    return printable(name).encode("latin-1", "replace").decode("latin-1")


def time_ticks(first_s: int, last_s: int) -> list[int]:
    """Return at most TICKS_MAX round moments (UTC) in [first_s, last_s]."""
    step = next((step for step in _TICK_STEPS_S if (last_s - first_s) / step < TICKS_MAX), _TICK_STEPS_S[-1])
    return list(range(first_s + -first_s % step, last_s + 1, step))


def time_label(at_s: int, ticks: Sequence[int]) -> str:
    """Return the label of a tick: the time of day, or the day where one begins."""
    moment = datetime.datetime.fromtimestamp(at_s, tz=datetime.UTC)
    if len(ticks) > 1 and ticks[1] - ticks[0] < _MINUTE_S:
        return f"{moment:%H:%M:%S}"
    is_day = moment.hour == moment.minute == 0
    return f"{moment.day} {moment:%b}" if is_day else f"{moment:%H:%M}"


def _latency_axis(panel: Any) -> None:
    panel.set_yscale("log")
    panel.axhline(GOOD_US_MAX / 1_000, color=_FAINT, linestyle="--", linewidth=0.9, label="50 ms")
    low, high = panel.get_ylim()
    panel.yaxis.set_major_locator(LogLocator(subs=(1,) if high > _DECADES_SHOWN_FINE * low else (1, 2, 5)))
    panel.yaxis.set_minor_locator(NullLocator())
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))


def _share_axis(panel: Any) -> None:
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value * 100:.4g} %"))
    panel.set_ylim(top=1)


def _count_axis(panel: Any) -> None:
    panel.set_ylim(bottom=0)
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def _bad_share_axis(panel: Any) -> None:
    panel.set_ylim(-0.02, 1.02)
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value * 100:.0f} %"))


def _fit_for_page(svg: str, key: str, title: str) -> str:
    svg = _NAMESPACE.sub("", _HEAD.sub("", _PROLOGUE.sub("", svg, count=1)))
    svg = svg.replace("xlink:href", "href").replace(_INK, "currentColor")
    svg = _IDENTIFIER.sub(rf"\g<1>{key}-", svg)
    return re.sub(r"<svg[^>]*?(viewBox=\"[^\"]*\")[^>]*>", rf'<svg \1 role="img" aria-label="{title}">', svg, count=1)


_FIGURES: Final = (
    _Figure(
        key="plot-latency",
        title="Latency over time, ms",
        explanation="Publish to deliver by second of publish, logarithmic; the dashed line is 50 ms.",
        lines=(
            _Line(plot="latency_p50_ms", label="p50", color=_BLUE, worst=max),
            _Line(plot="latency_p99_ms", label="p99", color=_ORANGE, worst=max),
        ),
        shape=_latency_axis,
    ),
    _Figure(
        key="plot-within",
        title="Share of records within 50 ms over time",
        explanation="As measured; the axis of each panel begins where its data do.",
        lines=(_Line(plot="within_share", label="within 50 ms", color=_BLUE, worst=min),),
        shape=_share_axis,
    ),
    _Figure(
        key="plot-throughput",
        title="Records per second over time",
        explanation="Offered to the region's readers, and delivered to them.",
        lines=(
            _Line(plot="offered_per_s", label="offered", color=_ORANGE, worst=max),
            _Line(plot="delivered_per_s", label="delivered", color=_BLUE, worst=max),
        ),
        shape=_count_axis,
    ),
    _Figure(
        key="plot-probes",
        title="Share of probes that failed over time",
        explanation="Pairs without a failed probe are left out.",
        lines=(_Line(plot="probe_bad_share", label="failed", color=_ORANGE, worst=max),),
        shape=_bad_share_axis,
        is_shown=lambda series: any(series.values),
    ),
)
