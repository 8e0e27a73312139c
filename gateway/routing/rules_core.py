"""What operators decided about clients: pins, drained regions, frozen switching. Pure; every gateway has the same in
time (mesh.distance.rule_set_core)."""

from __future__ import annotations

import enum
from collections.abc import Iterable

from gateway.routing.client_book_core import NAME_CHARS_MAX, ClientKey
from georelay.errors import BadRequest
from mesh.distance.prefix_core import prefix_named, prefix_of
from mesh.distance.rule_set_core import RULES_MAX, SUBJECT_PATTERN, Rule, RuleSet


class Kind(enum.Enum):
    """What a rule is about."""

    PIN = "pin"  # subject: a client's name or a prefix; value: the region
    DRAIN = "drain"  # subject: a region; value: "clients"
    FREEZE = "freeze"  # subject: "switching"; value: "frozen"


class Rules:
    """The rules in force. `version` changes with them; `held` are all, as others are told."""

    def __init__(self) -> None:
        self.held = RuleSet()
        self._draining_since_s: dict[str, float] = {}  # when this gateway came to know of it
        self.version = 0

    def in_force(self) -> list[Rule]:
        """Return the rules that say something."""
        return [rule for rule in self.held.rules if rule.value]

    def make(self, kind: Kind, subject: str, value: str, *, now_us: int, now_s: float, by: str) -> Rule:
        """Return a new rule that is in force from now on; an empty value takes it back.

        Raises:
            BadRequest: there are RULES_MAX already, or the subject is none.
        """
        if kind is Kind.PIN and SUBJECT_PATTERN.fullmatch(subject) is None:
            raise BadRequest(f"pin a client's name of 1 to {NAME_CHARS_MAX} printable characters, or a prefix")
        if kind is Kind.PIN and "/" in subject:
            prefix = prefix_named(subject)
            if prefix is None:
                raise BadRequest(f"{subject[:60]!r} is no /24 of IPv4 and no /48 of IPv6")
            subject = str(prefix)
        known = self.held.find(kind.value, subject)
        made_us = now_us if known is None else max(now_us, known.made_us + 1)
        rule = Rule(kind.value, subject, value, made_us, by)
        if not self.merge([rule], now_us=now_us, now_s=now_s):
            raise BadRequest(f"{RULES_MAX} rules are in force already: take one back")
        return rule

    def merge(self, rules: Iterable[Rule], *, now_us: int, now_s: float) -> list[Rule]:
        """Take in rules of another gateway; returns those that were news."""
        self.held, news = self.held.merged(rules, now_us=now_us)
        for rule in news:
            if rule.kind == Kind.DRAIN.value and rule.value:
                self._draining_since_s.setdefault(rule.subject, now_s)
            elif rule.kind == Kind.DRAIN.value:
                self._draining_since_s.pop(rule.subject, None)
        self.version += bool(news)
        return news

    def draining_since_s(self, region: str) -> float | None:
        """Return since when a region drains, monotonic; None: it does not."""
        return self._draining_since_s.get(region)

    @property
    def is_frozen(self) -> bool:
        """Return whether nobody moves without need."""
        rule = self.held.find(Kind.FREEZE.value, "switching")
        return rule is not None and bool(rule.value)

    def pin(self, client: ClientKey) -> str:
        """Return the region that a client, or else its prefix, is pinned to; "" when it is not."""
        if not self.held.rules:
            return ""
        prefix = prefix_of(client.address)
        for subject in (client.name, "" if prefix is None else str(prefix)):
            rule = self.held.find(Kind.PIN.value, subject)
            if rule is not None and rule.value:
                return rule.value
        return ""
