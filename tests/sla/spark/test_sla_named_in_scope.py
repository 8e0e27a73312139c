"""A topic or group that a latency target names is counted where the target looks, and nowhere else."""

from __future__ import annotations

from typing import Any

import pytest

from sla.targets import LatencyTarget, Scope
from sla.transforms import narrowed
from tests.sla.spark_rows import table_of

TOPICS = frozenset({"orders", "payments"})
SCOPES = {
    "named": Scope(word="named", names=frozenset({"us -> eu"})),
    "intra": Scope(word="intra"),
    "inter": Scope(word="inter"),
    "all": Scope(),
}
ROWS = (
    ("us", "eu", "orders", "", 10),
    ("us", "ap", "payments", "", 10),
    ("us", "us", "orders", "billing", 10),
    ("us", "us", "payments", "billing", 0),
)


@pytest.fixture(scope="module")
def found(spark: Any) -> set[tuple[str, str, str]]:
    targets = [LatencyTarget(name=f"{word}-topics", scope=scope, topics=TOPICS) for word, scope in SCOPES.items()]
    targets += [
        LatencyTarget(name=f"{word}-groups", scope=scope, groups=frozenset({"billing"}))
        for word, scope in SCOPES.items()
    ]
    rows = table_of(
        spark,
        [(True, *row, "total") for row in ROWS],
        "is_now BOOLEAN, origin STRING, dest STRING, topic STRING, `group` STRING, n BIGINT, stage STRING",
    )
    named = narrowed.names(narrowed.of_targets(rows, targets), targets)
    return {(row["target"], row["topic"], row["group"]) for row in named.collect()}


@pytest.mark.parametrize(("word", "topics"), [
    ("named", {"orders"}), ("intra", {"orders"}), ("inter", TOPICS), ("all", TOPICS),
])  # fmt: skip
def test_a_topic_that_has_records_only_outside_the_scope_is_not_among_the_counted(
    found: set[tuple[str, str, str]], word: str, topics: set[str]
) -> None:
    assert {topic for target, topic, _ in found if target == f"{word}-topics"} == topics


@pytest.mark.parametrize(("word", "groups"), [
    ("named", set()), ("intra", {"billing"}), ("inter", set()), ("all", {"billing"}),
])  # fmt: skip
def test_a_group_that_has_records_only_outside_the_scope_is_not_among_the_counted(
    found: set[tuple[str, str, str]], word: str, groups: set[str]
) -> None:
    assert {group for target, _, group in found if target == f"{word}-groups"} == groups
