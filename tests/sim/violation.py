"""What a simulated world reports when a rule does not hold."""

from __future__ import annotations

from typing import Final

RAISED: Final[list[Violation]] = []  # of the world that plays now


class Violation(Exception):
    """A rule is broken. `rule` is its short name, `detail` says who and where."""

    def __init__(self, rule: str, detail: str) -> None:
        super().__init__(f"{rule}: {detail}")
        RAISED.append(self)  # the shipping code around it may catch it: the world must not miss it
        self.rule = rule
        self.detail = detail
