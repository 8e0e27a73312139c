"""What operators decided: every gateway comes to the same rules, in whatever order it hears of them."""

from __future__ import annotations

import itertools

import pytest

from gateway.routing.client_book_core import ClientKey
from gateway.routing.rules_core import Kind, Rules
from georelay.errors import BadRequest
from mesh.distance.rule_set_core import AHEAD_US_MAX, RULES_MAX, Rule, RuleSet


def test_rules_heard_in_any_order_end_the_same() -> None:
    told = [Rule("pin", "a", "us", 5), Rule("pin", "a", "eu", 7), Rule("pin", "a", "", 7), Rule("drain", "us", "x", 1)]
    ends = set()
    for order in itertools.permutations(told):
        rules = Rules()
        for rule in order:
            rules.merge([rule], now_us=10, now_s=0)
        ends.add(rules.held.rules)
    assert ends == {(Rule("drain", "us", "x", 1), Rule("pin", "a", "eu", 7))}


def test_a_rule_that_was_taken_back_does_not_come_back_with_who_was_away() -> None:
    rules = Rules()
    old = rules.make(Kind.DRAIN, "us", "clients", now_us=5, now_s=1, by="ann")
    assert rules.draining_since_s("us") == 1
    rules.make(Kind.DRAIN, "us", "", now_us=4, now_s=2, by="ann")  # another gateway's clock is behind
    assert rules.draining_since_s("us") is None
    assert rules.merge([old], now_us=9, now_s=3) == []


def test_a_rule_of_a_clock_that_is_far_ahead_is_not_taken() -> None:
    assert Rules().merge([Rule("pin", "a", "us", AHEAD_US_MAX + 11)], now_us=10, now_s=0) == []


def test_a_clients_name_counts_before_its_prefix() -> None:
    rules = Rules()
    rules.make(Kind.PIN, "ann", "us", now_us=1, now_s=0, by="")
    rules.make(Kind.PIN, "10.1.2.0/24", "eu", now_us=1, now_s=0, by="")
    assert rules.pin(ClientKey("ann", "10.1.2.3")) == "us"
    assert rules.pin(ClientKey("bob", "10.1.2.3")) == "eu"
    assert rules.pin(ClientKey("bob", "10.1.9.3")) == ""


def test_rules_are_bounded_and_those_taken_back_give_way() -> None:
    rules = Rules()
    for number in range(RULES_MAX):
        rules.make(Kind.PIN, f"c-{number}", "us", now_us=1, now_s=0, by="")
    with pytest.raises(BadRequest, match="take one back"):
        rules.make(Kind.PIN, "more", "us", now_us=1, now_s=0, by="")
    rules.make(Kind.PIN, "c-7", "", now_us=2, now_s=0, by="")
    rules.make(Kind.PIN, "more", "us", now_us=2, now_s=0, by="")
    assert len(rules.held.rules) == RULES_MAX


@pytest.mark.parametrize("later_us", [0, 1])
def test_two_full_sets_with_other_rules_taken_back_become_equal_and_then_nothing_is_news(later_us: int) -> None:
    pins = [Rule("pin", f"c-{number}", "us", number) for number in range(RULES_MAX - 2)]
    ours = RuleSet([*pins, *(Rule("pin", name, "", 1000) for name in ("a", "d"))])
    theirs = RuleSet([*pins, *(Rule("pin", name, "", 1000 + later_us) for name in ("b", "c"))])
    for _ in range(3):  # rounds
        (ours, our_news), (theirs, their_news) = (
            ours.merged(theirs.rules, now_us=2000),
            theirs.merged(ours.rules, now_us=2000),
        )
    assert ours.rules == theirs.rules
    assert our_news == their_news == []


@pytest.mark.parametrize("subject", ["", "a b", "x" * 129, "10.0.0.0/8", "a/b"])
def test_what_is_neither_a_name_nor_a_prefix_is_not_pinned(subject: str) -> None:
    with pytest.raises(BadRequest):
        Rules().make(Kind.PIN, subject, "us", now_us=1, now_s=0, by="")
