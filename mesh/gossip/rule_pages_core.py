"""How rules about clients go through a region's pool: whoever holds some answers, a page at a time. Pure.

question: fingerprint [" " after]     of the set that is known; after: "kind subject" of the last rule that came
answer: {"next": "kind subject" or "", "rules": [...]}: the rules behind that, nothing where the set is the same
"""

from __future__ import annotations

import re
from typing import Final

from georelay.fields import Fields, JsonObject, dump_object, parse_object
from mesh.distance.rule_set_core import FINGERPRINT_BYTES, RULES_MAX, SUBJECT_CHARS_MAX, Rule, RuleSet, rule_of
from mesh.gossip.directory_core import PAGE_BYTES_MAX

RULES_QUERY: Final = "client-rules"
_PLACE_CHARS_MAX: Final = 17 + SUBJECT_CHARS_MAX
_PLACE: Final = re.compile(r"([a-z]{1,16}) ([\x21-\x7e]+)|")
_QUESTION: Final = re.compile(rf"([0-9a-f]{{{2 * FINGERPRINT_BYTES}}})(?: (.+))?")


def question(known: RuleSet, after: str = "") -> bytes:
    """Return the question of who knows these rules for those behind a place."""
    return f"{known.fingerprint}{' ' if after else ''}{after}".encode()


def answer(payload: bytes, held: RuleSet) -> bytes | None:
    """Return the page that is asked for; None: it is no question."""
    found = _QUESTION.fullmatch(payload.decode("ascii", "replace"))
    place = None if found is None else _PLACE.fullmatch(found[2] or "")
    if found is None or place is None:
        return None
    if found[1] == held.fingerprint:
        return _page((), "")
    after = (place[1] or "", place[2] or "")
    return _first_page([rule for rule in held.rules if (rule.kind, rule.subject) > after])


def read_page(raw: bytes) -> tuple[list[Rule], str]:
    """Return the rules of a page and behind which place to ask next, "": nothing is left. Raises FieldError."""
    fields = Fields(parse_object(raw, bytes_max=PAGE_BYTES_MAX), "the page")
    following = fields.text("next", chars_max=_PLACE_CHARS_MAX, pattern=_PLACE)
    rules = [rule_of(item) for item in fields.items("rules", count_max=RULES_MAX)]
    fields.done()
    return rules, following


def _first_page(rules: list[Rule]) -> bytes:
    """Return as many rules as fit; the longest one does, with its place (a test says so)."""
    best = _page((), "")
    for count, last in enumerate(rules, start=1):
        page = _page(tuple(rules[:count]), "" if count == len(rules) else f"{last.kind} {last.subject}")
        if len(page) > PAGE_BYTES_MAX:
            break
        best = page
    return best


def _page(rules: tuple[Rule, ...], following: str) -> bytes:
    told: list[JsonObject] = [rule.to_json() for rule in rules]
    return dump_object({"next": following, "rules": told})
