"""Every pair of (state, input) is decided."""

from __future__ import annotations

import itertools

import pytest

from mesh.replication.link_state import (
    TRANSITIONS,
    InvariantViolated,
    LinkInput,
    LinkState,
    PeerProtocolError,
    mermaid,
    step,
)
from tests.tiers import in_one_test


@in_one_test(("state", "given"), list(itertools.product(LinkState, LinkInput)))
def test_every_pair_either_moves_or_is_refused_by_the_right_error(state: LinkState, given: LinkInput) -> None:
    if (state, given) in TRANSITIONS:
        assert step(state, given) in LinkState
    else:
        kind = PeerProtocolError if given.name.startswith("MIRROR_") else InvariantViolated
        with pytest.raises(kind, match=state.value):
            step(state, given)


def test_thirty_eight_of_sixty_three_pairs_are_legal() -> None:
    assert (len(TRANSITIONS), len(LinkState) * len(LinkInput)) == (38, 63)


def test_diverged_is_final() -> None:
    assert {after for (before, _), after in TRANSITIONS.items() if before is LinkState.DIVERGED} == {LinkState.DIVERGED}


def test_a_closed_session_connects_again_from_every_other_state() -> None:
    others = set(LinkState) - {LinkState.DIVERGED}
    assert {step(state, LinkInput.SESSION_CLOSED) for state in others} == {LinkState.CONNECTING}


def test_a_stalled_mirror_that_moves_lags_until_it_has_caught_up() -> None:
    assert step(LinkState.STALLED, LinkInput.MIRROR_PROGRESSED) is LinkState.LAGGING
    assert step(LinkState.LAGGING, LinkInput.MIRROR_CAUGHT_UP) is LinkState.IDLE


def test_the_diagram_is_generated_from_the_table() -> None:
    assert mermaid().count("-->") == len(TRANSITIONS)
