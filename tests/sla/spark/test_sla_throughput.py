"""What a region delivered and was offered, when several read the same, read again, or are handed nothing at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("pyspark")

from georelay.trace.kinds import TraceKind
from sla.schemas import DDL
from sla.tables import DDL as ROLLUP_DDL
from sla.tables import HOUR_S, RollupTable
from sla.transforms.throughput import throughput_by_minute
from tests.sla.spark.conftest import LEDGER_DEFAULTS
from tests.sla.spark_rows import table_of

Rows = Callable[..., Any]
S = 10**9
H0 = 1_000 * HOUR_S


def row(kind: str, second: int, first: int, end: int, **changes: Any) -> dict[str, Any]:
    return {
        "kind": kind, "region": "us" if kind == "commit" else "eu", "first_ns": (H0 + second) * S,
        "from_offset": first, "to_offset": end,
    } | changes  # fmt: skip


def minutes_of(table: Any, carry: Any = None, hours: tuple[int, ...] = (0,)) -> dict[tuple[str, int], Any]:
    rows = throughput_by_minute(table, carry, [H0 + hour * HOUR_S for hour in hours]).collect()
    return {(row["dest"], row["ts_s"] - H0): row for row in rows}


def who_read_the_same() -> list[dict[str, Any]]:
    # 1,100/s are committed; each of two groups is handed half of it, and a storm of redeliveries comes on top.
    rows = [row("commit", second, 1_100 * second, 1_100 * (second + 1)) for second in range(20)]
    for group, session in (("a", 1), ("b", 2)):
        rows += [
            row("delivered", second, 550 * second, 550 * (second + 1), group=group, session_epoch=session)
            for second in range(20)
        ]
    return rows + [
        row("delivered", second, 0, 550, group="a", session_epoch=1, attempt=2, deliver_seq=1) for second in range(20)
    ]


def who_is_handed_nothing() -> list[dict[str, Any]]:
    return [
        row("commit", 0, 0, 10),
        row("delivered", 0, 0, 10),
        row("commit", HOUR_S, 10, 5_010),
        row("commit", 2 * HOUR_S, 5_010, 5_011),
        row("commit", 25 * HOUR_S, 6_000, 6_001),  # a day after it was last handed anything
    ]


def what_several_rows_name() -> list[dict[str, Any]]:
    def late(second: int, first: int, end: int, broker: str = "1002") -> dict[str, Any]:
        return row("commit", second, first, end, broker=broker)

    return [
        row("commit", 10, 0, 1_000),
        late(9, 990, 1_000),  # the next leader says it again, by the second of the append
        late(9, 990, 1_005, broker="1003"),
        row("commit", 11, 1_005, 1_010),
        row("commit", 12, 1_005, 1_010, epoch=2),  # other records: those of epoch 1 became an orphan branch
        row("commit", 11, 0, 1_000, partition=1),
        row("commit", HOUR_S - 1, 2_000, 2_010),
        late(HOUR_S, 2_000, 2_012),  # of an hour of its own: each hour counts by itself
        row("delivered", 10, 0, 1_000),
        row("delivered", 11, 0, 1_000, partition=1),
    ]


def what_two_hours_name() -> list[dict[str, Any]]:
    return [
        row("commit", 100, 0, 5_000),
        row("commit", HOUR_S - 30, 4_000, 6_000, broker="1002"),
        row("commit", HOUR_S + 1, 5_500, 7_000),
        row("delivered", HOUR_S + 1, 5_500, 5_501),
    ]


def who_was_handed_records_before() -> list[dict[str, Any]]:
    return [row("delivered", 1, 0, 600, session_epoch=2), row("delivered", HOUR_S + 1, 100, 700, session_epoch=3)]


def who_was_handed_records_the_day_before() -> list[dict[str, Any]]:
    return [row("delivered", 1, 0, 600, session_epoch=2)]


WORLDS = (
    who_read_the_same, who_is_handed_nothing, what_several_rows_name, what_two_hours_name,
    who_was_handed_records_before, who_was_handed_records_the_day_before,
)  # fmt: skip


def handed_before(world: Callable[[], Any], reach: int, last_s: int) -> dict[str, Any]:
    """Return what is carried of a reader from the hour before H0."""
    return {
        "ts_s": H0 - HOUR_S, "scope": "unit", "origin": "", "dest": world.__name__, "topic": world.__name__,
        "partition": 0, "group": "", "broker": "2001", "session_epoch": 1, "reach": reach, "ranges": [(0, reach)],
        "last_ns": (H0 + last_s) * S,
    }  # fmt: skip


@pytest.fixture(scope="module")
def found(spark: Any) -> dict[tuple[str, int], Any]:
    """The minutes of every world above in one query: each has a region and a topic of its own."""
    rows: list[dict[str, Any]] = []
    for world in WORLDS:
        for one in world():
            region = one["region"] if one["kind"] == "commit" else world.__name__
            rows.append(LEDGER_DEFAULTS | one | {"topic": world.__name__, "region": region})
    carried = [
        handed_before(who_was_handed_records_before, 500, -10),
        handed_before(who_was_handed_records_the_day_before, 900, -86_401),
    ]
    carry = table_of(spark, carried, ROLLUP_DDL[RollupTable.SESSIONS_HOUR])
    return minutes_of(table_of(spark, rows, DDL[TraceKind.LEDGER]), carry, tuple(range(26)))


def of(found: dict[tuple[str, int], Any], world: Callable[[], Any]) -> dict[int, Any]:
    """Return the minutes of a world by their start, seconds after H0."""
    return {at_s: item for (dest, at_s), item in found.items() if dest == world.__name__}


def test_groups_that_read_the_same_and_repeats_do_not_add_up_to_a_rate_that_nobody_got(
    found: dict[tuple[str, int], Any],
) -> None:
    (minute,) = of(found, who_read_the_same).values()
    assert (minute["delivered"], minute["offered"]) == (11_000, 22_000)
    assert (minute["max_1s"], minute["max_10s_mean"], minute["loaded_seconds_met"]) == (550, 550.0, 0)


def test_what_an_earlier_hour_was_handed_is_not_delivered_again_by_a_reader_that_begins_at_the_oldest(
    found: dict[tuple[str, int], Any],
) -> None:
    delivered = {at_s: item["delivered"] for at_s, item in of(found, who_was_handed_records_before).items()}
    assert delivered == {0: 100, HOUR_S: 100}
    delivered = {at_s: item["delivered"] for at_s, item in of(found, who_was_handed_records_the_day_before).items()}
    assert delivered == {0: 600}, "forgotten after a day"


def test_a_region_that_is_handed_nothing_for_hours_was_offered_what_it_missed(
    found: dict[tuple[str, int], Any],
) -> None:
    minutes = of(found, who_is_handed_nothing)
    assert {at_s: (item["delivered"], item["offered"]) for at_s, item in minutes.items()} == {
        0: (10, 10),
        HOUR_S: (0, 5_000),
        2 * HOUR_S: (0, 1),
    }
    assert minutes[HOUR_S]["loaded_seconds"] == 1


def test_a_record_that_several_rows_name_was_offered_once(found: dict[tuple[str, int], Any]) -> None:
    minutes = of(found, what_several_rows_name)
    offered = {at_s: item["offered"] for at_s, item in minutes.items()}
    assert offered == {0: 1_000 + 5 + 5 + 5 + 1_000, HOUR_S - 60: 10, HOUR_S: 2}
    assert minutes[0]["loaded_seconds"] == 2


@pytest.mark.slow
def test_what_was_offered_does_not_depend_on_which_hours_are_made_together(
    ledger: Rows, found: dict[tuple[str, int], Any]
) -> None:
    alone = minutes_of(ledger(extra=what_two_hours_name()), None, (1,))
    assert alone["eu", HOUR_S]["offered"] == of(found, what_two_hours_name)[HOUR_S]["offered"] == 1_000
