"""Timing of a pool: every period of gossip, with three profiles of memberlist and one of ours.

A member that dies is probed within (members * probe_interval) / members on average one interval, is suspected after
one more, and is declared dead after the suspicion: suspicion_mult * max(1, log10(n)) * probe_interval with enough
independent accusers, suspicion_max_mult times that with none. Shorter periods find it sooner and cost packets; a
probe_timeout below 2.5 times the worst round trip finds members dead that are not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Periods in seconds, and factors.

    Args:
        stream_timeout_s: one TCP exchange, whole. Safe: > 2 round trips + transfer.
        indirect_checks: peers asked to ping a member that did not answer us.
        retransmit_mult: a rumour is sent `retransmit_mult * ceil(log10(n + 1))` times by each member.
        suspicion_mult: see the module's text. Safe: 3..8.
        suspicion_max_mult: longest suspicion as a multiple of the shortest.
        push_pull_interval_s: exchange of the whole state with one member; longer from 33 members on.
        probe_interval_s: one member is probed in each.
        probe_timeout_s: wait for the direct answer. Safe: >= 2.5 * worst round trip, < probe_interval_s.
        gossip_interval_s, gossip_members: rumours go to so many members in each interval.
        gossip_to_dead_s: for so long the dead are told that they are: it heals a split at once.
        awareness_max: health scores 0..awareness_max - 1 stretch the probes.
        dead_reclaim_s: a dead member's name may come back at another address after so long; 0 never.
    """

    stream_timeout_s: float
    indirect_checks: int
    retransmit_mult: int
    suspicion_mult: int
    suspicion_max_mult: int
    push_pull_interval_s: float
    probe_interval_s: float
    probe_timeout_s: float
    gossip_interval_s: float
    gossip_members: int
    gossip_to_dead_s: float
    awareness_max: int
    dead_reclaim_s: float = 30.0

    def push_pull_after_s(self, members: int) -> float:
        """Return the interval of state exchanges for a pool of this size: its traffic grows with the square."""
        if members <= 32:
            return self.push_pull_interval_s
        return self.push_pull_interval_s * (math.ceil(math.log2(members) - 5) + 1)


LAN: Final = Timing(
    stream_timeout_s=10.0,
    indirect_checks=3,
    retransmit_mult=4,
    suspicion_mult=4,
    suspicion_max_mult=6,
    push_pull_interval_s=30.0,
    probe_interval_s=1.0,
    probe_timeout_s=0.5,
    gossip_interval_s=0.2,
    gossip_members=3,
    gossip_to_dead_s=30.0,
    awareness_max=8,
)
WAN: Final = replace(
    LAN,
    stream_timeout_s=30.0,
    suspicion_mult=6,
    push_pull_interval_s=60.0,
    probe_interval_s=5.0,
    probe_timeout_s=3.0,
    gossip_interval_s=0.5,
    gossip_members=4,
    gossip_to_dead_s=60.0,
)
LOCAL: Final = replace(
    LAN,
    stream_timeout_s=1.0,
    indirect_checks=1,
    retransmit_mult=2,
    suspicion_mult=3,
    push_pull_interval_s=15.0,
    probe_timeout_s=0.2,
    gossip_interval_s=0.1,
    gossip_to_dead_s=15.0,
)
# Ours: finds a dead broker in 10..15 s where WAN takes 45..57 s. 0.8 s are 2.5 times the longest round trip on earth.
TUNED_WAN: Final = replace(
    WAN,
    suspicion_mult=5,
    push_pull_interval_s=30.0,
    probe_interval_s=1.5,
    probe_timeout_s=0.8,
    gossip_interval_s=0.3,
    gossip_to_dead_s=120.0,
)
PROFILES: Final = {"lan": LAN, "wan": WAN, "local": LOCAL, "tuned-wan": TUNED_WAN}


def named(profile: str) -> Timing:
    """Return the profile of that name.

    Raises:
        ValueError: there is none; the text lists them.
    """
    found = PROFILES.get(profile)
    if found is None:
        raise ValueError(f"no timing profile {profile!r}: {', '.join(PROFILES)}")
    return found
