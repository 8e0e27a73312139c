"""An account has no answer where a region that may be the home cannot be read at all."""

from __future__ import annotations

from sla.judging.accounts import accounts_of
from sla.judging.completeness import Completeness
from sla.judging.facts import AccountFacts
from tests.sla import judging_facts as build

DELIVERED = AccountFacts(
    kind="delivered", topic="orders", origin="", partition=0, region="us", group="", is_inside=True, records=9,
    is_whole=True, ranges=((0, 9),),
)  # fmt: skip
REPLICATED = AccountFacts(
    kind="replicated", topic="orders", origin="", partition=0, region="us", group="", is_inside=True, records=9,
    is_whole=True, ranges=((0, 9),),
)  # fmt: skip


def adds_up(completeness: Completeness) -> bool | None:
    (account,) = accounts_of((DELIVERED, REPLICATED), completeness)
    assert (account.home, account.published) == ("", 0)
    return account.adds_up


def test_what_no_home_names_is_no_open_account_where_a_region_that_took_part_in_probes_was_not_read() -> None:
    read = [build.inputs(region="us")]
    assert adds_up(Completeness(read)) is False
    assert adds_up(Completeness(read, expected=["us", "eu"])) is None
    nothing_known = Completeness((), expected=["us", "eu"])
    assert adds_up(nothing_known) is False, "without any input nothing is known to be missing"
