"""The page of a run: verdict, what was judged, and plots over time with the faults marked. It opens without a network.

Rule: names are text: jinja2 escapes them, and matplotlib's `$math$` is off.
"""

from __future__ import annotations

import io
import json
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import matplotlib as mpl
from jinja2 import Environment, StrictUndefined
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from loadtest.campaign.phases_core import lines_of, spans_of
from loadtest.load.results import Results
from loadtest.load.samples_core import Samples
from loadtest.load.verdict_core import Judgement

TEMPLATE: Final = Path(__file__).with_name("page.html.j2")
SIZE_INCHES: Final = (10.0, 3.0)
PROLOGUE: Final = re.compile(r"^.*?(?=<svg)", re.S)
Series = Mapping[str, list[tuple[float, float]]]


def page_of(results: Results, judgement: Judgement) -> str:
    """Return the page as HTML."""
    run = json.loads((results.folder / "run.json").read_text()) if (results.folder / "run.json").exists() else {}
    template = Environment(autoescape=True, undefined=StrictUndefined).from_string(TEMPLATE.read_text("utf-8"))
    return template.render(
        name=results.campaign.name,
        about=results.campaign.about,
        verdict=judgement.verdict,
        invalid=judgement.invalid,
        lines=judgement.lines,
        when=run.get("began", "no run.json"),
        code=run.get("code", "unknown"),
        machine="; ".join(run.get("machine", [])),
        seconds=f"{results.campaign.seconds:g}",
        events=[
            {"at": f"{event['second'] - results.began_s:.1f}", "what": event["what"], "of": event.get("of", "")}
            for event in results.events
        ],
        figures="\n".join(results.figures),
        phases="\n".join(lines_of(results.phases)),
        plots=_plots(results),
    )


def _plots(results: Results) -> list[dict[str, str]]:
    """Return the plots, each with what it shows."""
    by_second = _by_second(results)
    deliver = {name: rows for (method, name), rows in by_second.items() if method == "deliver"}
    done: dict[str, list[tuple[float, float]]] = {
        method: _summed([rows for (kind, _), rows in by_second.items() if kind == method])
        for method in ("publish", "deliver")
    }
    lag: dict[str, list[tuple[float, float]]] = defaultdict(list)
    cpu: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in results.seconds:
        at, engine = row["second"] - results.began_s, f"{row['role']} engine of {row['worker']}"
        cpu[engine].append((at, row["cpu_share"]))
        if row["role"] == "publish":
            lag[engine].append((at, row["lag_p99_ms"]))
    for row in results.cpu:
        for name, share in row["cpu"].items():
            cpu[name].append((row["second"] - results.began_s, share))
    p99 = {pair: [(at, samples.quantile_ms(0.99)) for at, samples in rows] for pair, rows in deliver.items()}
    made = [
        (p99, "deliver p99, ms", "Latency from when a record was due until it was read, p99 of each second, by pair."),
        (done, "records per second", "Acknowledged, and read in all regions together."),
        (cpu, "CPU, cores", "CPU of every process of the mesh and of the generator."),
        (lag, "late, ms", "How late the generator sent what was due, p99 of each second."),
    ]
    return [{"svg": _svg(results, series, label), "caption": caption} for series, label, caption in made if series]


def _by_second(results: Results) -> dict[tuple[str, str], list[tuple[float, Samples]]]:
    found: dict[tuple[str, str], dict[int, Samples]] = defaultdict(lambda: defaultdict(Samples))
    for row in results.seconds:
        second = int(row["second"] - results.began_s)
        for done in row["done"]:
            found[done["method"], done["name"]][second].extend(done)
    return {key: [(float(at), rows[at]) for at in sorted(rows)] for key, rows in sorted(found.items())}


def _summed(many: list[list[tuple[float, Samples]]]) -> list[tuple[float, float]]:
    sums: dict[float, float] = defaultdict(float)
    for rows in many:
        for at, samples in rows:
            sums[at] += samples.n
    return sorted(sums.items())


def _svg(results: Results, series: Series, label: str) -> str:
    with mpl.rc_context({"svg.fonttype": "none", "text.parse_math": False, "font.size": 8.5, "axes.grid": True}):
        figure = Figure(figsize=SIZE_INCHES, layout="constrained")
        axes = figure.subplots()
        for name, rows in sorted(series.items()):
            axes.plot([at for at, _ in rows], [value for _, value in rows], label=name, linewidth=1.2)
        for begin, end, words in _spans(results):
            axes.axvspan(begin, end, color="#b42318", alpha=0.15)
            axes.text(begin, 1.0, words, transform=axes.get_xaxis_transform(), va="bottom", fontsize=7)
        axes.set_xlabel("seconds since the begin of the load")
        axes.set_ylabel(label)
        axes.set_ylim(bottom=0)
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=7)
        text = io.StringIO()
        write: Callable[..., None] = FigureCanvasSVG(figure).print_svg
        write(text, metadata={"Date": None})
    return PROLOGUE.sub("", text.getvalue())


def _spans(results: Results) -> list[tuple[float, float, str]]:
    """Return (begin, end, words) of every fault; one that was not healed holds to the end."""
    healed, others = spans_of(results.events)
    ends = [span.end_s for span in healed] + [results.began_s + results.campaign.seconds] * len(others)
    return [
        (span.begin_s - results.began_s, end_s - results.began_s, f"{span.what} {span.of}")
        for span, end_s in zip([*healed, *others], ends, strict=True)
    ]
