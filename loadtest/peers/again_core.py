"""The same comparison twice: does the second run find what the first one said it would?

Rounds of one run spread. Where the median of another run of as many rounds will be follows from that spread, if only
chance lies between them: the prediction interval of a normal distribution, here of the logarithms, as times and rates
vary by a share of themselves. What two runs differ by beyond it came from the machine, or from a broker.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Final

from loadtest.bench.figures_core import spread
from loadtest.peers.page_core import Figure, Part, Promise, Result, markdown, numbers_of

# Student's t, two-sided 95 %, by degrees of freedom from 1 on.
T_95: Final = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


def predicted(numbers: Sequence[float]) -> tuple[float, float]:
    """Return between what 19 of 20 further runs of as many rounds will have their mean; of 2 to 10 positive numbers.

    Raises:
        ValueError: fewer than 2 numbers, more than 10, or one of them is not positive.
    """
    if not 2 <= len(numbers) <= len(T_95) + 1 or min(numbers) <= 0:
        raise ValueError(f"2 to {len(T_95) + 1} positive numbers are needed, not {list(numbers)}")
    logs = [math.log(number) for number in numbers]
    middle = statistics.fmean(logs)
    wide = T_95[len(logs) - 2] * statistics.stdev(logs) * math.sqrt(2 / len(logs))
    return math.exp(middle - wide), math.exp(middle + wide)


def again(first: Sequence[Result], second: Sequence[Result], promises: Mapping[str, Promise], part: Part) -> str:
    """Return a table of what both runs found, and how often the second was where the first one said."""
    names = [name for name in promises if any(result["contender"] == name for result in first)]
    within = {True: 0, False: 0}
    parts = []
    for title, figures in part.tables:
        rows = [["", *(figure.title for figure in figures)]]
        for name in names:
            cells = []
            for figure in figures:
                text, is_within = _cell(numbers_of(first, name, figure), numbers_of(second, name, figure), figure)
                cells.append(text)
                if is_within is not None:
                    within[is_within] += 1
            if any(cell != "-" for cell in cells):
                rows.append([name, *cells])
        if len(rows) > 1:
            parts.append(f"### {title}\n\n{markdown(rows)}")
    total = sum(within.values())
    return "\n\n".join([f"{within[True]} of {total} figures of the second run are where the first one said.", *parts])


def _cell(before: Sequence[float], after: Sequence[float], figure: Figure) -> tuple[str, bool | None]:
    """Return what is told of one figure, and whether it was as predicted; None if there is too little of it."""
    try:
        least, most = predicted(before)
    except ValueError:
        return "-", None
    if not after:
        return "-", None
    middle = statistics.median(after)
    told = f"{spread(before, figure.form)}, then {spread(after, figure.form)}"
    if least <= middle <= most:
        return told, True
    return f"{told}: **not** within {figure.form.format(least)} to {figure.form.format(most)}", False
