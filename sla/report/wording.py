"""Numbers and names as the report shows them, the same in every output.

Rule 1: rounding never flatters: a share is cut off, bounds are rounded outwards, so 100 % means all of them.
Rule 2: what is not known is a word ("unknown", "too few"), never an empty cell or a zero.
"""

from __future__ import annotations

import datetime
import math
import re
from typing import Final

from sla.judging.verdict import Verdict
from sla.report.model import Budget, BurnWindow, Interval, Note

TOO_FEW: Final = "too few"
UNKNOWN: Final = "unknown"
NONE: Final = "-"
NONE_READ: Final = "none of its traces can be read"
_PART_READ: Final = "of its traces are missing, and none of the others is about this"
NAME_SHOWN_MAX: Final = 80  # three names of regions and their arrows fit
_SHARE_STEPS: Final = 1_000_000  # four digits behind the point of a percentage
_BYTE_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
_KIBI: Final = 1024
BURNING_CODE: Final = "BUDGET_BURNING"
_URGENCY: Final = {"page": "act now", "ticket": "look soon"}
_WINDOW_SEVERITY: Final = re.compile(r"([0-9]+[smhd]\+[0-9]+[smhd]) (page|ticket)\b")  # no name has a plus sign
WORD_OF_VERDICT: Final = {
    Verdict.PASS: "met",
    Verdict.BREACH: "missed",
    Verdict.INCONCLUSIVE: "not proven",
    Verdict.NO_DATA: "no data",
}

WORDS: Final = (
    (
        "publish, deliver",
        "the first broker's receive stamp of a record; the moment it was handed to the consumer's socket",
    ),
    ("pair", "region where the record entered, region that delivered it"),
    (
        "measured, proven",
        "the share as counted; the range it must be in whatever clocks, missing traces, silent minutes and chance hide",
    ),
    (
        "PASS, BREACH",
        "the whole proven range is on one side of the objective; a verdict never rests on what is unknown",
    ),
    (
        "INCONCLUSIVE",
        "the objective lies inside the proven range, too few events were counted to say, or a part that the target "
        "means cannot be read, or was counted nowhere",
    ),
    ("error budget", "what may go wrong over the period before the target is missed: (1 - objective) x events"),
    (
        "full outage",
        "how long everything could fail, at the period's mean rate, before the rest of the budget is spent",
    ),
    (
        "burn rate",
        "how many times faster than planned a budget is being spent; an alert needs data for its whole window "
        "(Google SRE workbook, chapter 5)",
    ),
    (
        "act now (page), look soon (ticket)",
        "how urgent the targets file calls an alert: worth waking somebody up, or worth a look in working hours",
    ),
    (
        "floor",
        "half of the shortest round trip; a pair that light cannot cross in time has a limit of its own",
    ),
    ("quantile", "middle of a bucket at most 2.2 % wide; shown when at least 20 records lie beyond it"),
    ("lost", "committed at home, jumped over by a reader and not delivered to it before the settle time was over"),
    ("repeated, told", "delivered again and marked as a repeat, or by a new session of a group after a rebalance"),
    ("minute", "down when as many of its probes fail as the target says; unknown without probes"),
)


def printable(text: str) -> str:
    """Return a text in one line: what a terminal would obey, or what is no character, is shown as one mark each."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def count(value: float) -> str:
    """Return a number of things with thousands separated; a fraction keeps one digit."""
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def things(number: float, one: str, many: str) -> str:
    """Return a number and its noun."""
    return f"{count(number)} {one if number == 1 else many}"


def ms(value: float | None, *, missing: str = TOO_FEW) -> str:
    """Return milliseconds, without a unit: three digits below 1, two below 10, one above."""
    if value is None:
        return missing
    return f"{value:,.3f}" if value < 1 else f"{value:,.2f}" if value < 10 else f"{value:,.1f}"


def us_as_ms(value_us: float | None) -> str:
    """Return microseconds as milliseconds with sign and three digits."""
    return UNKNOWN if value_us is None else f"{value_us / 1_000:+,.3f}"


def percent(share: float | None) -> str:
    """Return a share as a percentage, cut off."""
    return NONE if share is None else _percentage(math.floor(_steps(share)))


def percent_up(share: float) -> str:
    """Return an upper bound as a percentage, rounded up."""
    return _percentage(math.ceil(_steps(share)))


def _steps(share: float) -> float:
    return round(share * _SHARE_STEPS, 6)  # 0.99 * 10**6 is not 990000 in floating point


def _percentage(steps: int) -> str:
    if steps % _SHARE_STEPS == 0:
        return f"{steps // _SHARE_STEPS * 100} %"
    return f"{steps / (_SHARE_STEPS / 100):.4f}".rstrip("0").rstrip(".") + " %"


def bounds(interval: Interval) -> str:
    """Return the proven range, such as `99.91 % to 99.98 %`; `exact` when there is no doubt."""
    return "exact" if interval.lo == interval.hi else f"{percent(interval.lo)} to {percent_up(interval.hi)}"


def unread(missing_share: float) -> str:
    """Return why nothing is known of a region some of whose traces are missing; the share is in (0, 1]."""
    return NONE_READ if missing_share == 1 else f"{percent_up(missing_share)} {_PART_READ}"


def is_unread(reason: str) -> bool:
    """Return whether a reason is one of those."""
    return reason.endswith((NONE_READ, _PART_READ))


def measured(interval: Interval | None) -> str:
    """Return the measured share; `-` when nothing was counted."""
    return NONE if interval is None else percent(interval.value)


def measured_with_bounds(interval: Interval | None) -> str:
    """Return the measured share and, when they differ from it, the bounds of what is proven."""
    if interval is None:
        return NONE
    if interval.value is not None and interval.lo == interval.value == interval.hi:
        return percent(interval.value)
    return f"{percent(interval.value) if interval.value is not None else UNKNOWN} ({bounds(interval)})"


def budget_left(budget: Budget | None) -> str:
    """Return how much of an error budget is left, in one short phrase."""
    if budget is None:
        return NONE
    if budget.left_share is None:
        return "nothing may fail" if not budget.used else f"{count(budget.used)} bad, none allowed"
    if budget.left_share < 0:
        times = budget.used / budget.allowed
        return f"overspent, {times:,.1f} x"
    return f"{math.floor(budget.left_share * 100 + 1e-9)} % left"


def budget_details(budget: Budget | None) -> str:
    """Return what the budget is made of."""
    if budget is None:
        return NONE
    text = f"{count(budget.used)} of {count(budget.allowed)} {budget.unit.value} used"
    if budget.full_outage_minutes_left is not None and budget.full_outage_minutes_left > 0:
        text += f"; pays for {minutes(budget.full_outage_minutes_left)} of full outage"
    if budget.exhausted_at is not None and (budget.left_share or 0) > 0:
        text += f"; at the last rate spent by {moment(budget.exhausted_at)}"
    return text


def minutes(value: float) -> str:
    """Return a length of time given in minutes, in the unit that reads best."""
    for limit, unit in ((1, "s"), (120, "min"), (48 * 60, "h")):
        if value < limit:
            scaled = value * 60 if unit == "s" else value if unit == "min" else value / 60
            return f"{count(round(scaled, 1))} {unit}"
    return f"{count(round(value / 1_440, 1))} days"


def rate(value: float | None) -> str:
    """Return a burn rate."""
    return NONE if value is None else f"{value:,.2f}"


def covered(window: BurnWindow) -> str:
    """Return how much of its long window the data reach back over, such as `has data for 2 min of 6 h`."""
    return f"has data for {minutes(window.covered_minutes)} of {minutes(window.long_minutes)}"


def urgency(severity: str) -> str:
    """Return what an alert's severity asks for, with its word in the targets file."""
    return f"{_URGENCY[severity]} ({severity})" if severity in _URGENCY else severity


def note_text(note: Note) -> str:
    """Return a note for people: severities, which programs read as one word, say what they ask for."""
    if note.code != BURNING_CODE:
        return note.text
    return _WINDOW_SEVERITY.sub(lambda found: f"{urgency(found[2])}, windows {found[1]}", note.text)


def burn_state(window: BurnWindow) -> str:
    """Return what a burn-rate alert says at the end of the period; a window with part of its data says nothing yet."""
    if window.is_firing:
        return f"ON: {urgency(window.severity)}"
    if window.is_partial:
        text = "too early: would be on" if window.is_burning else "too early"
        return f"{text}; {covered(window)}"
    if window.firing_minutes:
        return f"off; was on for {minutes(window.firing_minutes)}"
    return "off"


def moment(text: str | None) -> str:
    """Return an ISO 8601 moment as `2026-01-31 12:00:00 UTC`; without seconds when they are zero."""
    if text is None:
        return NONE
    at = datetime.datetime.fromisoformat(text)
    at = at.replace(tzinfo=datetime.UTC) if at.tzinfo is None else at.astimezone(datetime.UTC)
    return at.strftime("%Y-%m-%d %H:%M:%S UTC" if at.second else "%Y-%m-%d %H:%M UTC")


def size(value_bytes: int) -> str:
    """Return a number of bytes in binary units."""
    scaled, unit = float(value_bytes), 0
    while scaled >= _KIBI and unit < len(_BYTE_UNITS) - 1:
        scaled, unit = scaled / _KIBI, unit + 1
    return f"{scaled:,.0f} {_BYTE_UNITS[unit]}" if unit == 0 else f"{scaled:,.1f} {_BYTE_UNITS[unit]}"


def stream(origin: str, topic: str) -> str:
    """Return the name of a stream's topic: topics with homes=every carry their origin."""
    return f"{origin}.{topic}" if origin else topic


def short(name: str) -> str:
    """Return a name for the first screen: the middle of a very long one is left out."""
    return name if len(name) <= NAME_SHOWN_MAX else f"{name[: NAME_SHOWN_MAX // 2]}…{name[-NAME_SHOWN_MAX // 2 :]}"


def pair(origin: str, dest: str) -> str:
    """Return the name of a pair of regions."""
    return f"{origin} -> {dest}"


def way(origin: str, dest: str, home: str | None) -> str:
    """Return the name of a pair, by way of the home between them when there is one."""
    return f"{origin} -> {home} -> {dest}" if home else pair(origin, dest)
