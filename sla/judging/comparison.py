"""What changed since the previous period of the same length, and whether chance or doubt could explain it."""

from __future__ import annotations

from collections.abc import Iterable

from sla.judging.intervals import is_apart
from sla.judging.verdict import Verdict
from sla.report.model import Change, Subject, TargetResult


def changes_between(before: Iterable[TargetResult], now: Iterable[TargetResult]) -> tuple[Change, ...]:
    """Return one change per subject that was measured before, in the order of targets and subjects now.

    A subject that is gone keeps its line: a pair that is no longer measured is news.
    """
    earlier = {target.name: {subject.name: subject for subject in target.subjects} for target in before}
    changes = []
    for target in now:
        known = earlier.get(target.name, {})
        current = {subject.name: subject for subject in target.subjects}
        changes += [
            _change(target.name, known[name], current.get(name)) for name in sorted(known) if _has_data(known[name])
        ]
    return tuple(changes)


def _has_data(subject: Subject) -> bool:
    is_known = subject.measured is None or subject.measured.value is not None
    return subject.total > 0 and subject.verdict is not Verdict.NO_DATA and is_known


def _change(target: str, before: Subject, now: Subject | None) -> Change:
    share_now = now.measured if now is not None else None
    return Change(
        target=target,
        subject=before.name,
        before=before.measured,
        now=share_now,
        verdict_before=before.verdict,
        verdict_now=now.verdict if now is not None else Verdict.NO_DATA,
        is_proven=before.measured is not None and share_now is not None and is_apart(before.measured, share_now),
    )
