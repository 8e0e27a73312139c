"""In which seconds of a period probes are expected: a minute that is there with a part is judged by that part.

Rule 1: where the user named an end of the period, it counts to that end: silence there is unknown.
Rule 2: an open end is that of the traces. It lies where probes begin (end) when that is at most EDGE_S_MAX from the
        first (last) row: a mesh that starts probes nothing before its links are up, and one that stops may answer
        requests a moment longer. A longer silence is no edge: it counts, as unknown.
Rule 3: the last second of probes is not counted: they may be on their way.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from sla.judging.facts import Span

EDGE_S_MAX: Final = 60


def with_probed(
    span: Span,
    *,
    rows: tuple[int, int],
    probes: tuple[int, int] | None,
    is_start_open: bool,
    is_end_open: bool,
) -> Span:
    """Return the span with the seconds in which probes are expected.

    Args:
        rows: first and last second with a row of any kind that periods are made of.
        probes: first and last second that a probe was due in; None without any.
        is_start_open, is_end_open: the user named no start, no end.
    """
    first_s, end_s = span.probed
    if is_start_open:
        first_s = max(first_s, rows[0])
        if probes is not None and 0 <= probes[0] - first_s <= EDGE_S_MAX:
            first_s = probes[0]
    if is_end_open:
        end_s = min(end_s, rows[1] + 1)
        if probes is not None and 0 <= end_s - probes[1] <= EDGE_S_MAX + 1:
            end_s = probes[1]
    if first_s >= end_s:
        return span
    return dataclasses.replace(span, probed_start_s=first_s, probed_end_s=end_s)
