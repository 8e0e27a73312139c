"""What a run prints beside its verdict: latencies above floors, heals, CPU per record, the machine."""

from __future__ import annotations

from typing import Any

import pytest

from loadtest.history.operation import Kind, Operation, Outcome
from loadtest.load.campaign import Campaign, Generator, Stage, Topic, Users
from loadtest.load.figures_core import Heal, heal_lines, heals_of, latency_lines, machine_lines
from loadtest.load.samples_core import Samples
from loadtest.load.verdict_core import faults_of_machine, judge_heals

MS = 1_000_000
HEALED = {"what": "healed", "of": "us-eu", "ns": 1_000 * MS}


def sent(number: int, at_ms: int) -> Operation:
    return Operation(
        process="w-0-us", number=number, kind=Kind.PRODUCE, key="orders/0", value=f"w-0-us:{number}",
        invoked_ns=at_ms * MS, completed_ns=(at_ms + 1) * MS, outcome=Outcome.OK, offset=number,
    )  # fmt: skip


def read(
    number: int, at_ms: int, *, region: str = "eu", reader: str = "w-deliver0.0", final: bool = False
) -> Operation:
    return Operation(
        process=f"{reader}-{region}", number=number, kind=Kind.FETCH, key="orders/0", site=region, final=final,
        invoked_ns=at_ms * MS, completed_ns=at_ms * MS, outcome=Outcome.OK,
        records=((number, f"w-0-us:{number}"),),
    )  # fmt: skip


def test_a_reader_has_caught_up_when_a_record_is_soon_enough_above_its_floor() -> None:
    rows = [sent(0, 100), sent(1, 900), sent(2, 1_300), read(0, 1_100), read(1, 1_250), read(2, 1_600)]
    (heal,) = heals_of(rows, [HEALED], {"us->eu": 100.0})
    assert (heal.of, heal.region) == ("us-eu", "eu")
    assert heal.flowing_s == pytest.approx(0.1)
    assert heal.caught_up_s == pytest.approx(0.25)  # 350 ms after it was sent: 250 above the floor
    (farther,) = heals_of(rows, [HEALED], {"us->eu": 60.0})
    assert farther.caught_up_s == pytest.approx(0.6)


def test_the_slowest_reader_of_a_region_counts_and_complete_and_late_reads_do_not() -> None:
    rows = [sent(0, 900), read(0, 1_010), read(0, 1_040, reader="w-deliver0.1")]
    rows += [read(0, 1_001, final=True), read(0, 1_002, reader="w-late1.0")]
    (heal,) = heals_of(rows, [HEALED], {})
    assert heal.flowing_s == pytest.approx(0.04)


def test_a_reader_that_never_hears_again_is_said_and_breaks_the_bound() -> None:
    (heal,) = heals_of([sent(0, 100), read(0, 200)], [HEALED, {"what": "kill", "of": "x"}], {})
    assert (heal.flowing_s, heal.caught_up_s) == (None, None)
    assert heal_lines([heal])[1].split() == ["us-eu", "eu", "never", "never"]
    line = judge_heals([heal], 2.0)
    assert (line.found, line.is_kept) == ("never s (eu, us-eu)", False)


@pytest.mark.parametrize(("late_s", "kept"), [(1.9, True), (2.1, False)])
def test_the_latest_reader_is_held_to_the_bound(late_s: float, *, kept: bool) -> None:
    heals = [
        Heal(of="us-eu", region=region, flowing_s=0.1, caught_up_s=s) for region, s in (("ap", 0.1), ("eu", late_s))
    ]
    assert judge_heals(heals, 2.0).is_kept == kept


def test_without_a_heal_nothing_has_caught_up() -> None:
    assert not judge_heals([], 2.0).is_kept


def test_latencies_are_shown_above_the_floor_of_their_pair() -> None:
    samples = Samples()
    samples.add(40.0)
    _, line = latency_lines({("deliver", "us->eu"): samples}, {"us->eu": 35.0})
    assert line.split() == ["deliver", "us->eu", "1", "40.0", "40.0", "40.0", "35", "5.0", "5.0"]


def test_cpu_is_counted_by_region_while_there_is_load() -> None:
    cpu: list[dict[str, Any]] = [
        {"second": second, "cpu": {"us-1": 0.2, "us-2": 0.1, "gateway": 0.05}, "idle": 0.5} for second in range(10)
    ]
    bed = {"lag_us": [900, 1_500], "realtime": False, "congestion_control": "cubic"}
    assert machine_lines(cpu, bed, records=1_000, from_s=2, to_s=6) == [
        "CPU us per record: gateway 250, us 1500",
        "idle CPU 50%, router lag at most 1.50 ms (no real-time priority), congestion control cubic",
    ]
    assert machine_lines([], {}, records=0, from_s=0, to_s=9) == []


def test_without_a_record_the_cpu_and_the_memory_of_each_process_are_told() -> None:
    cpu: list[dict[str, Any]] = [
        {"second": second, "cpu": {"us-1": 0.02 + second / 100, "gateway": 0.005}, "idle": 0.5} for second in range(3)
    ]
    cpu[-1]["memory_mib"] = {"us-1": 117.6, "gateway": 71.0}
    assert machine_lines(cpu, {}, records=0, from_s=0, to_s=9) == [
        "CPU of a core: gateway 0.5%, us-1 3.0%",
        "memory MiB: gateway 71, us-1 118",
        "idle CPU 50%",
    ]


@pytest.mark.parametrize(
    ("idle", "lag_us", "said"),
    [
        (0.25, [2_000], []),
        (0.24, [0], ["only 24% of the CPU was idle, wanted 25%"]),
        (None, [], ["nobody watched how much of the CPU was idle, wanted 25%"]),
        (1.0, [2_100], ["the router was 2.1 ms late in its busier seconds, more than 2 ms"]),
        (1.0, [1_500] * 19 + [17_000], []),  # once: one second in twenty
        (1.0, [1_500] * 18 + [17_000] * 2, ["the router was 17.0 ms late in its busier seconds, more than 2 ms"]),
    ],
)
def test_a_machine_without_time_left_says_nothing(idle: float | None, lag_us: list[float], said: list[str]) -> None:
    campaign = Campaign(
        name="unit",
        about="",
        topics=(Topic(name="orders"),),
        stages=(Stage(seconds=10, users=1, rate=10),),
        users=(Users(kind="kafka", topics=("orders",)),),
        generator=Generator(idle_share_min=0.25, router_lag_ms_max=2.0),
    )
    assert faults_of_machine(campaign, idle=idle, lag_us=lag_us) == said
