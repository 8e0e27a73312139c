"""What operators decided about clients: pins, drained regions, frozen switching. Pure; every gateway has the same in
time.

Rule 1: a rule is one subject with one value and the time it was made, microseconds since 1970; of two the later one
        counts, of two at one time the larger value: whichever comes first, all gateways end with the same.
Rule 2: what is taken back is a rule as well, with an empty value: or who was away would bring it back.
Rule 3: RULES_MAX subjects at most; one that was taken back gives way first.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from gateway.routing.client_book_core import NAME_CHARS_MAX, ClientKey
from georelay.errors import BadRequest
from mesh.distance.prefix_core import prefix_named, prefix_of

RULES_MAX: Final = 256
AHEAD_US_MAX: Final = 60_000_000  # a clock further ahead would have the last word for long
_NAME: Final = re.compile(rf"[\x21-\x7e]{{1,{NAME_CHARS_MAX}}}")


class Kind(enum.Enum):
    """What a rule is about."""

    PIN = "pin"  # subject: a client's name or a prefix; value: the region
    DRAIN = "drain"  # subject: a region; value: "clients"
    FREEZE = "freeze"  # subject: "switching"; value: "frozen"


@dataclass(frozen=True, slots=True, order=True)
class Rule:
    """One decision. `value` is empty where it was taken back; `made_us`: wall clock of the gateway that was told."""

    kind: str
    subject: str
    value: str
    made_us: int
    by: str = ""


class Rules:
    """The rules in force. `version` changes with them."""

    def __init__(self) -> None:
        self._rules: dict[tuple[str, str], Rule] = {}
        self._draining_since_s: dict[str, float] = {}  # when this gateway came to know of it
        self.version = 0

    def all(self) -> list[Rule]:
        """Return every rule, those taken back included."""
        return sorted(self._rules.values())

    def in_force(self) -> list[Rule]:
        """Return the rules that say something."""
        return [rule for rule in self.all() if rule.value]

    def make(self, kind: Kind, subject: str, value: str, *, now_us: int, now_s: float, by: str) -> Rule:
        """Return a new rule that is in force from now on; an empty value takes it back.

        Raises:
            BadRequest: there are RULES_MAX already, or the subject is none.
        """
        if kind is Kind.PIN and _NAME.fullmatch(subject) is None:
            raise BadRequest(f"pin a client's name of 1 to {NAME_CHARS_MAX} printable characters, or a prefix")
        if kind is Kind.PIN and "/" in subject:
            prefix = prefix_named(subject)
            if prefix is None:
                raise BadRequest(f"{subject[:60]!r} is no /24 of IPv4 and no /48 of IPv6")
            subject = str(prefix)
        known = self._rules.get((kind.value, subject))
        made_us = now_us if known is None else max(now_us, known.made_us + 1)
        rule = Rule(kind.value, subject, value, made_us, by)
        if not self.merge([rule], now_us=now_us, now_s=now_s):
            raise BadRequest(f"{RULES_MAX} rules are in force already: take one back")
        return rule

    def merge(self, rules: Iterable[Rule], *, now_us: int, now_s: float) -> list[Rule]:
        """Take in rules of another gateway, or of a file; returns those that were news."""
        news = []
        for rule in rules:
            key = (rule.kind, rule.subject)
            known = self._rules.get(key)
            if rule.made_us > now_us + AHEAD_US_MAX and known is None:
                continue
            if known is not None and (known.made_us, known.value) >= (rule.made_us, rule.value):
                continue
            if known is None and not self._makes_place():
                continue
            self._rules[key] = rule
            news.append(rule)
            if rule.kind == Kind.DRAIN.value:
                if rule.value:
                    self._draining_since_s.setdefault(rule.subject, now_s)
                else:
                    self._draining_since_s.pop(rule.subject, None)
        if news:
            self.version += 1
        return news

    def draining_since_s(self, region: str) -> float | None:
        """Return since when a region drains, monotonic; None: it does not."""
        return self._draining_since_s.get(region)

    @property
    def is_frozen(self) -> bool:
        """Return whether nobody moves without need."""
        rule = self._rules.get((Kind.FREEZE.value, "switching"))
        return rule is not None and bool(rule.value)

    def pin(self, client: ClientKey) -> str:
        """Return the region that a client, or else its prefix, is pinned to; "" when it is not."""
        if not self._rules:
            return ""
        prefix = prefix_of(client.address)
        for subject in (client.name, "" if prefix is None else str(prefix)):
            rule = self._rules.get((Kind.PIN.value, subject))
            if rule is not None and rule.value:
                return rule.value
        return ""

    def _makes_place(self) -> bool:
        if len(self._rules) < RULES_MAX:
            return True
        taken_back = [rule for rule in self._rules.values() if not rule.value]
        if not taken_back:
            return False
        oldest = min(taken_back, key=lambda rule: rule.made_us)
        del self._rules[oldest.kind, oldest.subject]
        return True
