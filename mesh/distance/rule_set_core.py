"""What operators decided about clients, as it travels: rules that come out the same in whatever order they are heard.
Pure.

Rule 1: a rule is one subject with one value and the time it was made, microseconds since 1970; of two the later one
        counts, of two at one time the larger value: whichever comes first, everybody ends with the same.
Rule 2: what is taken back is a rule as well, with an empty value: or who was away would bring it back.
Rule 3: RULES_MAX subjects at most; of those taken back the oldest gives way, to another one taken back only if that is
        newer: or two full sets would swap them for ever.
Rule 4: a set does not change, the next one takes its place: it is read in another thread.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from georelay.fields import Fields, JsonObject

RULES_MAX: Final = 256
AHEAD_US_MAX: Final = 60_000_000  # a clock further ahead would have the last word for long
SUBJECT_CHARS_MAX: Final = 128
VALUE_CHARS_MAX: Final = 40
BY_CHARS_MAX: Final = 32
FINGERPRINT_BYTES: Final = 8
_TIME_MAX: Final = (1 << 53) - 1
_KIND: Final = re.compile(r"[a-z]{1,16}")
SUBJECT_PATTERN: Final = re.compile(rf"[\x21-\x7e]{{1,{SUBJECT_CHARS_MAX}}}")
_VALUE: Final = re.compile(rf"[\x20-\x7e]{{0,{VALUE_CHARS_MAX}}}")


@dataclass(frozen=True, slots=True, order=True)
class Rule:
    """One decision. `value` is empty where it was taken back; `made_us`: wall clock of the gateway that was told."""

    kind: str
    subject: str
    value: str
    made_us: int
    by: str = ""

    def to_json(self) -> JsonObject:
        """Return it as it travels; of who decided the first characters."""
        return {"k": self.kind, "s": self.subject, "v": self.value, "t": self.made_us, "by": self.by[:BY_CHARS_MAX]}


def rule_of(item: object) -> Rule:
    """Read a rule that has travelled; one of a kind that is not known here travels on. Raises FieldError."""
    fields = Fields(item, "a rule")
    rule = Rule(
        kind=fields.text("k", chars_max=16, pattern=_KIND),
        subject=fields.text("s", chars_max=SUBJECT_CHARS_MAX, pattern=SUBJECT_PATTERN),
        value=fields.text("v", chars_max=VALUE_CHARS_MAX, pattern=_VALUE),
        made_us=fields.integer("t", low=0, high=_TIME_MAX),
        by=fields.text("by", chars_max=BY_CHARS_MAX),
    )
    fields.done()
    return rule


class RuleSet:
    """Rules by kind and subject. `fingerprint` is equal where the rules are."""

    __slots__ = ("_by_subject", "fingerprint", "rules")

    def __init__(self, rules: Iterable[Rule] = ()) -> None:
        self.rules = tuple(sorted(rules))
        self._by_subject = {(rule.kind, rule.subject): rule for rule in self.rules}
        text = "\n".join(f"{rule.kind} {rule.subject} {rule.made_us} {rule.value}" for rule in self.rules)
        self.fingerprint = blake2b(text.encode(), digest_size=FINGERPRINT_BYTES).hexdigest()

    def find(self, kind: str, subject: str) -> Rule | None:
        """Return the rule about a subject, be it one that was taken back."""
        return self._by_subject.get((kind, subject))

    def merged(self, rules: Iterable[Rule], *, now_us: int) -> tuple[RuleSet, list[Rule]]:
        """Return the set with these rules of somebody else taken in, and those that were news."""
        held, news = dict(self._by_subject), []
        for rule in rules:
            key = (rule.kind, rule.subject)
            known = held.get(key)
            if known is None and (rule.made_us > now_us + AHEAD_US_MAX or not _makes_place(held, rule)):
                continue
            if known is not None and (known.made_us, known.value) >= (rule.made_us, rule.value):
                continue
            held[key] = rule
            news.append(rule)
        return (RuleSet(held.values()) if news else self), news


def _makes_place(held: dict[tuple[str, str], Rule], rule: Rule) -> bool:
    if len(held) < RULES_MAX:
        return True
    taken_back = [rule for rule in held.values() if not rule.value]
    if not taken_back:
        return False
    oldest = min(taken_back, key=_age)
    if not rule.value and _age(rule) < _age(oldest):
        return False
    del held[oldest.kind, oldest.subject]
    return True


def _age(rule: Rule) -> tuple[int, str, str]:
    """Return what orders rules by age, in the same way everywhere."""
    return rule.made_us, rule.kind, rule.subject
