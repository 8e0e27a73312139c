"""The bug zoo: mistakes that others shipped. A simulator that does not find them is not good enough.

Every bug is a context manager that patches the shipping code; while it is open the bug is in. Sources are named in
docs/adr/0017-simulator-of-our-own.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tests.sim import zoo_members as members
from tests.sim import zoo_replicas as replicas
from tests.sim.mesh_world import MeshSettings
from tests.sim.region_world import RegionSettings
from tests.sim.zoo_replicas import Patch


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    """One inhabitant. `seeds_max`: it must be found within so many seeds of worlds with these settings."""

    patch: Patch
    seeds_max: int
    settings: RegionSettings | MeshSettings | None = None

    @property
    def world(self) -> str:
        """Return the kind of world that finds it."""
        return "mesh" if isinstance(self.settings, MeshSettings) else "region"


_DOUBLED: Final = RegionSettings(
    brokers=5, memberships=0.0, favoured=("partition", "stall_briefly", "reset"), datagrams=0.2, tick_ms=20
)
_RESTARTED: Final = RegionSettings(
    brokers=5,
    memberships=0.0,
    favoured=("kill", "reset", "stop_cleanly"),
    schedule="stale_write",
    tick_ms=20,
    period_ms=40,
)
_STALE_WRITES: Final = RegionSettings(
    brokers=5, memberships=0.0, favoured=("kill", "transfer"), schedule="stale_write", tick_ms=20, period_ms=40
)
_LATE: Final = RegionSettings(
    brokers=5, memberships=0.0, favoured=("jump_clock",), schedule="late_acknowledgement", tick_ms=20, period_ms=40
)
_MEMBERS: Final = RegionSettings(
    memberships=1.0, favoured=("kill", "cut_power", "partition", "transfer", "reset"), period_ms=60
)
_FAILING: Final = RegionSettings(favoured=("fail_sync", "fail_write"))
_PARTED: Final = RegionSettings(favoured=("partition", "block_one_way", "pause", "stall_briefly"), period_ms=60)
_LAGGING: Final = RegionSettings(favoured=("kill", "partition", "pause", "cut_power"), period_ms=60)
_CUT_OFF: Final = RegionSettings(
    memberships=0.0, favoured=("kill", "cut_power", "partition", "transfer"), tick_ms=20, period_ms=40
)
_NEW_DISKS: Final = MeshSettings(regions=1, replaces_disks=1.0, favoured=("kill", "partition", "replace_disk"))

ZOO: Final[dict[str, Bug]] = {
    "acknowledges_before_sync": Bug(patch=replicas.acknowledges_before_sync, seeds_max=20),
    "forgets_its_vote": Bug(patch=replicas.forgets_its_vote, seeds_max=100),
    "commits_old_terms_by_counting": Bug(patch=replicas.commits_old_terms_by_counting, seeds_max=100),
    "truncates_without_conflict": Bug(patch=replicas.truncates_without_conflict, seeds_max=100),
    "counts_a_vote_twice": Bug(patch=replicas.counts_a_vote_twice, seeds_max=100, settings=_DOUBLED),
    "takes_acknowledgements_of_any_term": Bug(
        patch=replicas.takes_acknowledgements_of_any_term, seeds_max=100, settings=_LATE
    ),
    "takes_a_rejection_for_an_acknowledgement": Bug(
        patch=replicas.takes_a_rejection_for_an_acknowledgement, seeds_max=100
    ),
    "trusts_a_write_of_a_replaced_log": Bug(
        patch=replicas.trusts_a_write_of_a_replaced_log, seeds_max=100, settings=_STALE_WRITES
    ),
    "counts_what_was_sent_to_catch_up": Bug(patch=replicas.counts_what_was_sent_to_catch_up, seeds_max=20),
    "counts_itself_before_its_sync": Bug(patch=replicas.counts_itself_before_its_sync, seeds_max=50),
    "votes_again_in_the_same_term": Bug(patch=replicas.votes_again_in_the_same_term, seeds_max=200),
    "leaves_the_old_tail_in_the_file": Bug(
        patch=replicas.leaves_the_old_tail_in_the_file, seeds_max=100, settings=_RESTARTED
    ),
    "drops_a_commit_it_cannot_use_yet": Bug(patch=replicas.drops_a_commit_it_cannot_use_yet, seeds_max=100),
    "never_steps_back_after_a_rejection": Bug(patch=replicas.never_steps_back_after_a_rejection, seeds_max=20),
    "goes_on_after_a_failed_sync": Bug(patch=replicas.goes_on_after_a_failed_sync, seeds_max=100, settings=_FAILING),
    "cuts_a_log_and_leaves_its_rows_in_the_journal": Bug(
        patch=replicas.cuts_a_log_and_leaves_its_rows_in_the_journal, seeds_max=100, settings=_CUT_OFF
    ),
    "writes_the_journal_over_too_early": Bug(
        patch=replicas.writes_the_journal_over_too_early, seeds_max=100, settings=_CUT_OFF
    ),
    "closes_a_log_that_lags_behind_the_journal": Bug(
        patch=replicas.closes_a_log_that_lags_behind_the_journal, seeds_max=100, settings=_CUT_OFF
    ),
    "trusts_the_journal_before_its_sync": Bug(patch=replicas.trusts_the_journal_before_its_sync, seeds_max=20),
    "enters_memberships_when_committed_at_followers": Bug(
        patch=members.enters_memberships_when_committed_at_followers, seeds_max=100, settings=_MEMBERS
    ),
    "changes_peers_before_the_quorum": Bug(
        patch=members.changes_peers_before_the_quorum, seeds_max=50, settings=_MEMBERS
    ),
    "starts_the_log_behind_its_snapshot": Bug(
        patch=members.starts_the_log_behind_its_snapshot, seeds_max=100, settings=_LAGGING
    ),
    "rejoins_with_an_empty_disk": Bug(patch=members.rejoins_with_an_empty_disk, seeds_max=50, settings=_NEW_DISKS),
    "answers_end_queries_from_memory": Bug(
        patch=members.answers_end_queries_from_memory, seeds_max=100, settings=_PARTED
    ),
}
