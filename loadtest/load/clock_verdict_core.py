"""Whether corrected latencies are right where clocks are known to be wrong, and verdicts as careful as they must be.

A latency is corrected by `clock_offset_us`, and `clock_err_us` is the bound of that correction's error. What the clocks
are wrong by is known here, because it was set: so every correction can be checked against the truth. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

OPEN: Final = "INCONCLUSIVE"
US_PER_MS: Final = 1_000
IN_TIME_MS: Final = 50.0
UNKNOWN_SHARE_MAX: Final = 2  # one in so many: a clock is unknown until it was asked a few times


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """The corrections of one pair and their truth, microseconds.

    Args:
        records: of their histograms. unknown: those whose clock error nobody knew.
        true_us: what has to be added to a measured latency.
        outside: histograms whose error is beyond their own bound.
    """

    origin: str
    dest: str
    records: int
    unknown: int
    true_us: int
    outside: int


def corrections(rows: Iterable[Mapping[str, Any]], skews_ms: Mapping[str, float]) -> list[Correction]:
    """Return one line per pair of different regions.

    Args:
        rows: of `latency_hist`, stage total: origin, dest, n, clock_offset_us, clock_err_us.
        skews_ms: by how much each region's clock is ahead.
    """
    pairs: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["origin"] != row["dest"]:
            pairs.setdefault((row["origin"], row["dest"]), []).append(row)
    found = []
    for (origin, dest), of_pair in sorted(pairs.items()):
        # A clock that is ahead at the end makes a latency too long, one at the beginning too short.
        true_us = int((skews_ms.get(origin, 0) - skews_ms.get(dest, 0)) * US_PER_MS)
        known = [row for row in of_pair if row["clock_err_us"] is not None]
        found.append(
            Correction(
                origin=origin,
                dest=dest,
                records=sum(row["n"] for row in of_pair),
                unknown=sum(row["n"] for row in of_pair if row["clock_err_us"] is None),
                true_us=true_us,
                outside=sum(abs(row["clock_offset_us"] - true_us) > row["clock_err_us"] for row in known),
            )
        )
    return found


def faults_of_corrections(lines: Sequence[Correction]) -> list[str]:
    """Return what is wrong about corrections; a run that tested none is wrong, too."""
    if not lines:
        return ["no latency between regions was counted"]
    faults = [f"{line.origin} -> {line.dest}: {line.outside} beyond their bound" for line in lines if line.outside]
    faults += [
        f"{line.origin} -> {line.dest}: nobody knew the clocks of {line.unknown} of {line.records} records"
        for line in lines
        if line.unknown * UNKNOWN_SHARE_MAX > line.records
    ]
    if not any(line.true_us for line in lines):
        faults.append("no clock of these pairs was wrong: nothing was tested")
    return faults


def clock_faults(
    rows: Iterable[Mapping[str, Any]],
    skews_ms: Mapping[str, float],
    targets: Iterable[Mapping[str, Any]],
    truth: Mapping[str, float],
) -> tuple[int, list[str]]:
    """Return (records whose correction was checked, what is wrong about corrections and verdicts).

    Args:
        rows, skews_ms: as `corrections` takes them.
        targets: of report.json.
        truth: share of records within IN_TIME_MS, by `us -> eu`. Judged by a limit of their own, pairs have no truth.
    """
    lines = corrections(rows, skews_ms)
    faults = faults_of_corrections(lines)
    for target in targets:
        if target["kind"] == "latency":
            names = {subject["name"] for subject in target["subjects"] if not subject["is_own_limit"]}
            known = {name: share for name, share in truth.items() if name in names}
            faults += wrong_verdicts(target["subjects"], target["objective"], known)
    return sum(line.records for line in lines), faults


def must_be_open(*, share_lo: float, share_hi: float, objective: float) -> bool:
    """Return whether no verdict may be given: what is proven reaches the objective neither surely nor surely not."""
    return share_lo < objective <= share_hi


def wrong_verdicts(subjects: Iterable[Mapping[str, Any]], objective: float, truth: Mapping[str, float]) -> list[str]:
    """Return what is wrong with the verdicts of a latency target's subjects.

    Args:
        subjects: of report.json: name (`us -> eu`), verdict, measured {value, lo, hi}.
        truth: true share of records in time, by the name of the subject, where it is known.
    """
    faults = []
    for subject in subjects:
        name, verdict, measured = subject["name"], subject["verdict"], subject["measured"]
        if measured is None:
            continue
        is_open = must_be_open(share_lo=measured["lo"], share_hi=measured["hi"], objective=objective)
        if is_open != (verdict == OPEN):
            faults.append(f"{name}: {verdict} with {measured['lo']:.4f} to {measured['hi']:.4f} of {objective}")
        share = truth.get(name)
        if share is not None and ((verdict == "PASS") != (share >= objective)) and verdict in ("PASS", "BREACH"):
            faults.append(f"{name}: {verdict}, and in truth {share:.4f} were in time")
    return faults
