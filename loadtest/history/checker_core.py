"""The judge of a whole history: every check on every key. Pure; time grows with n log n.

Each check asks for one promise and knows nothing of the others; one fault usually breaks several. What none of them
can see: records that nobody acknowledged and nobody read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Final

from loadtest.history.evidence_core import Evidence, gather
from loadtest.history.operation import Operation
from loadtest.history.read_checks_core import disordered_polls, refused_and_foreign_values, stale_ends
from loadtest.history.send_checks_core import (
    contradicting,
    disordered_sends,
    doubled,
    lost_and_unseen,
    overtaken_sends,
)
from loadtest.history.verdict import Finding, Verdict, verdict_of

CHECKS: Final[tuple[Callable[[Evidence], Iterator[Finding]], ...]] = (
    lost_and_unseen,
    doubled,
    contradicting,
    disordered_sends,
    overtaken_sends,
    disordered_polls,
    refused_and_foreign_values,
    stale_ends,
)


def check(operations: Sequence[Operation]) -> Verdict:
    """Judge a history, its operations in any order.

    Raises:
        HistoryError: it cannot be judged: a value was sent twice, or an operation is there twice.
    """
    found = chain.from_iterable(judge(evidence) for evidence in gather(operations) for judge in CHECKS)
    return verdict_of(operations, found)
