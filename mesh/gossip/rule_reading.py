"""Reads the rules about clients that one member of the region's pool holds, page by page."""

from __future__ import annotations

from typing import Final

from mesh.distance.rule_set_core import RULES_MAX, Rule, RuleSet
from mesh.gossip.distance_reading import ANSWER_WAIT_S, AskedPool
from mesh.gossip.query_core import names_filter
from mesh.gossip.rule_pages_core import RULES_QUERY, question, read_page

PAGES_MAX: Final = RULES_MAX


async def read_rules(pool: AskedPool, member: str, known: RuleSet) -> list[Rule] | None:
    """Return the rules of a member whose set is not the known one; None: it did not answer to the end.

    Raises:
        FieldError: what it answers is no page.
    """
    found: list[Rule] = []
    after = ""
    for _ in range(PAGES_MAX):
        asked = question(known, after)
        report = await pool.query(RULES_QUERY, asked, filters=[names_filter([member])], timeout_s=ANSWER_WAIT_S)
        raw = report.answers.get(member)
        if raw is None:
            return None
        rules, after = read_page(raw)
        found += rules
        if not after:
            return found
    return found
