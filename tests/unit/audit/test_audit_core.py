"""The comparison of logs: what differs is named exactly, and with few questions."""

from __future__ import annotations

import math
from typing import Any

import pytest

from georelay.ids import Epoch, Offset, RegionNumber
from region.audit.values import FindingState, OrphanRange, StreamVerdict, VerdictState

Model = Any  # the mesh of this folder's conftest
SIZES = (3, 1, 7, 2, 2, 5, 1, 1, 9, 4)


def states(verdict: StreamVerdict) -> dict[int, str]:
    return {row.region: row.state.value for row in verdict.findings}


def test_equal_logs_agree_after_one_question_to_each_region(mesh: Model) -> None:
    verdict = mesh.audit({row: mesh.log(*SIZES) for row in (1, 2, 3)})
    assert verdict.state is VerdictState.AGREES
    assert states(verdict) == {1: "reference", 2: "agrees", 3: "agrees"}
    assert (verdict.compared, mesh.requests, verdict.divergence) == (35, 3, None)


def test_empty_logs_agree(mesh: Model) -> None:
    verdict = mesh.audit({1: mesh.log(), 2: mesh.log()})
    assert (verdict.state, verdict.compared) == (VerdictState.AGREES, 0)


def test_a_log_that_is_merely_behind_says_how_many_records(mesh: Model) -> None:
    verdict = mesh.audit({1: mesh.log(*SIZES), 2: mesh.log(*SIZES[:6]), 3: mesh.log()})
    assert verdict.state is VerdictState.AGREES
    assert [row.behind for row in verdict.findings] == [0, 15, 35]
    assert verdict.rounds == 2


@pytest.mark.parametrize("changed", range(len(SIZES)))
def test_a_divergence_is_named_wherever_it_is(mesh: Model, changed: int) -> None:
    good, bad = mesh.log(*SIZES), mesh.log(*SIZES, changed=changed)
    verdict = mesh.audit({1: good, 2: mesh.log(*SIZES), 3: bad})
    assert states(verdict) == {1: "reference", 2: "agrees", 3: "diverged"}
    found = verdict.divergence
    assert found is not None and found.is_exact
    assert (found.epoch, found.first, found.last) == (1, sum(SIZES[:changed]), sum(SIZES[: changed + 1]) - 1)
    assert found.batches == {1: good.batches[changed], 2: good.batches[changed], 3: bad.batches[changed]}


def test_a_log_with_other_borders_diverges_where_the_first_other_batch_begins(mesh: Model) -> None:
    verdict = mesh.audit({1: mesh.log(3, 3, 3), 2: mesh.log(3, 1, 5)})
    assert verdict.divergence is not None
    assert (verdict.divergence.first, verdict.divergence.last) == (3, 5)
    assert states(verdict)[2] == "diverged"


def test_a_million_records_take_few_requests_wherever_the_difference_is(mesh: Model) -> None:
    sizes = [100] * 10_000
    good = mesh.log(*sizes)
    for changed in (0, 1, 4_999, 9_998, 9_999):
        mesh.requests = 0
        verdict = mesh.audit({1: good, 2: mesh.log(*sizes, changed=changed)})
        assert verdict.divergence is not None and verdict.divergence.first == 100 * changed
        assert mesh.requests <= 2 * (3 + math.ceil(math.log(1_000_000, 8))) < 2 * math.log2(1_000_000)
    assert good.reads < 500


def test_the_first_divergence_of_all_regions_is_the_one_that_is_named(mesh: Model) -> None:
    logs = {1: mesh.log(*SIZES), 2: mesh.log(*SIZES, changed=7), 3: mesh.log(*SIZES, changed=4)}
    verdict = mesh.audit(logs)
    assert verdict.divergence is not None and verdict.divergence.first == sum(SIZES[:4])
    reasons = {row.region: row.reason for row in verdict.findings}
    assert reasons[2] == f"other records from {sum(SIZES[:7])}"
    assert reasons[3] == f"other records from {sum(SIZES[:4])}"


def test_a_region_that_does_not_answer_makes_the_verdict_incomplete(mesh: Model) -> None:
    mesh.unreachable(3)
    verdict = mesh.audit({1: mesh.log(*SIZES), 2: mesh.log(*SIZES)})
    assert verdict.state is VerdictState.INCOMPLETE
    assert states(verdict) == {1: "reference", 2: "agrees", 3: "no_answer"}
    assert "HOME_UNREACHABLE" in verdict.findings[2].reason


def test_a_divergence_counts_more_than_a_region_that_is_silent(mesh: Model) -> None:
    mesh.unreachable(3)
    verdict = mesh.audit({1: mesh.log(*SIZES), 2: mesh.log(*SIZES, changed=0)})
    assert verdict.state is VerdictState.DIVERGED


def test_a_region_that_falls_silent_meanwhile_is_left_out(mesh: Model) -> None:
    mesh.between = lambda row: mesh.unreachable(2) if row == 2 else None
    verdict = mesh.audit({1: mesh.log(*SIZES), 2: mesh.log(*SIZES, changed=3), 3: mesh.log(*SIZES)})
    assert states(verdict) == {1: "reference", 2: "no_answer", 3: "agrees"}


def test_nobody_answers(mesh: Model) -> None:
    for row in (1, 2):
        mesh.unreachable(row)
    verdict = mesh.audit({})
    assert (verdict.state, verdict.compared, mesh.requests) == (VerdictState.INCOMPLETE, 0, 2)


# --- log starts ---------------------------------------------------------------------------------------


def test_equal_chains_at_the_end_are_enough_whatever_was_deleted(mesh: Model) -> None:
    short = mesh.log(*SIZES)
    short.start_at(8)
    verdict = mesh.audit({1: short, 2: mesh.log(*SIZES)})
    assert verdict.state is VerdictState.AGREES


def test_a_difference_that_was_deleted_in_one_region_is_named_as_such(mesh: Model) -> None:
    short = mesh.log(*SIZES)
    short.start_at(8)
    verdict = mesh.audit({1: short, 2: mesh.log(*SIZES, changed=2)})
    found = verdict.divergence
    assert found is not None and not found.is_exact
    assert (found.first, found.last) == (22, 21)
    assert verdict.findings[1].reason == "other records below offset 22, which is deleted"


def test_a_difference_above_the_log_start_is_exact(mesh: Model) -> None:
    short = mesh.log(*SIZES)
    short.start_at(5)
    verdict = mesh.audit({1: short, 2: mesh.log(*SIZES, changed=8)})
    assert verdict.divergence is not None and verdict.divergence.is_exact
    assert verdict.divergence.first == sum(SIZES[:8])


def test_a_mirror_that_ends_below_the_homes_start_cannot_be_compared(mesh: Model) -> None:
    short = mesh.log(*SIZES)
    short.start_at(8)
    verdict = mesh.audit({1: short, 2: mesh.log(*SIZES[:4])})
    assert states(verdict)[2] == FindingState.BELOW_START
    assert verdict.state is VerdictState.INCOMPLETE


def test_a_mirror_that_ends_exactly_at_the_homes_start_is_compared(mesh: Model) -> None:
    short = mesh.log(*SIZES)
    short.start_at(8)
    assert mesh.audit({1: short, 2: mesh.log(*SIZES[:8])}).state is VerdictState.AGREES
    assert mesh.audit({1: short, 2: mesh.log(*SIZES[:8], changed=1)}).state is VerdictState.DIVERGED


def test_records_deleted_while_the_search_runs_begin_it_anew(mesh: Model) -> None:
    good, bad = mesh.log(*SIZES), mesh.log(*SIZES, changed=8)
    mesh.between = lambda row: good.start_at(3) if row == 2 else None
    verdict = mesh.audit({1: good, 2: bad})
    assert verdict.divergence is not None and verdict.divergence.first == sum(SIZES[:8])


# --- epochs -------------------------------------------------------------------------------------------


def moved(log: Any, *rows: tuple[int, int]) -> Any:
    log.epochs = tuple((Epoch(epoch), Offset(start)) for epoch, start in rows)
    return log


def test_logs_over_several_epochs_agree(mesh: Model) -> None:
    rows = ((1, 0), (4, 11), (6, 13))
    logs = {row: moved(mesh.log(3, 1, 7, 2, 2, epochs=(1, 1, 1, 4, 6)), *rows) for row in (1, 2, 3)}
    verdict = mesh.audit(logs)
    assert (verdict.state, verdict.epoch) == (VerdictState.AGREES, 6)


def test_what_an_old_home_has_beyond_the_cut_is_listed_and_is_no_divergence(mesh: Model) -> None:
    new = moved(mesh.log(3, 1, 7, 2, epochs=(1, 1, 2, 2)), (1, 0), (2, 4))
    old = mesh.log(3, 1, 9)
    verdict = mesh.audit({1: old, 2: new})
    assert verdict.state is VerdictState.AGREES
    finding = verdict.findings[0]
    assert (finding.state, finding.beyond, finding.behind) == (FindingState.AGREES, 9, 9)


def test_orphan_branches_are_listed(mesh: Model) -> None:
    kept = mesh.log(*SIZES)
    kept.orphans = (OrphanRange(epoch=Epoch(2), first=Offset(4), following=Offset(9)),)
    verdict = mesh.audit({1: kept, 2: mesh.log(*SIZES)})
    assert verdict.findings[0].orphans == kept.orphans
    assert verdict.state is VerdictState.AGREES


def test_one_epoch_with_two_starts_is_a_divergence(mesh: Model) -> None:
    one = moved(mesh.log(3, 1, 7, epochs=(1, 2, 2)), (1, 0), (2, 3))
    other = moved(mesh.log(3, 1, 7, epochs=(1, 1, 2)), (1, 0), (2, 4))
    verdict = mesh.audit({1: one, 2: other})
    assert verdict.state is VerdictState.DIVERGED
    assert any("epoch 2 starts at" in row.reason for row in verdict.findings)


def test_an_epoch_that_begins_meanwhile_begins_the_comparison_anew(mesh: Model) -> None:
    home, mirror = mesh.log(*SIZES), mesh.log(*SIZES, changed=9)

    def cut(row: int) -> None:
        if row == 2:
            for log in (home, mirror):
                log.batches = log.batches[:9]
                moved(log, (1, 0), (2, 31))

    mesh.between = cut
    verdict = mesh.audit({1: home, 2: mirror})
    assert (verdict.state, verdict.epoch) == (VerdictState.AGREES, 2)


def test_epochs_that_never_settle_are_given_up(mesh: Model) -> None:
    home, mirror = mesh.log(*SIZES), mesh.log(*SIZES, changed=0)
    mesh.between = lambda row: moved(mirror, (1, 0), (row + 2, 31))
    verdict = mesh.audit({1: home, 2: mirror})
    assert states(verdict) == {1: "reference", 2: "unsettled"}
    assert verdict.rounds < 20


def test_the_home_is_the_reference_among_equals(mesh: Model) -> None:
    verdict = mesh.audit({3: mesh.log(1), 2: mesh.log(1), 1: mesh.log(1)})
    assert verdict.findings[0].region == RegionNumber(1)
    assert verdict.findings[0].state is FindingState.REFERENCE
