"""State of one session between a home and a mirror: pure, no I/O, no clock.

Rule 1: every change goes through `step`; both ends of a session use the same table.
Rule 2: a pair that is not in TRANSITIONS is the peer's fault for MIRROR_ inputs at the home
        (`PeerProtocolError`), our own bug otherwise (`InvariantViolated`).
Rule 3: DIVERGED is final: two regions hold different records and only a person may decide which are right.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final


class LinkState(enum.Enum):
    """What is known about one mirror of one stream."""

    CONNECTING = "connecting"  # no session
    IDLE = "idle"  # the mirror holds everything committed at the home
    SHIPPING = "shipping"  # batches in flight, acknowledged in time
    LAGGING = "lagging"  # behind for longer than lagging_after_ms; has a cause
    STALLED = "stalled"  # behind, and no progress for stall_after_ms
    FENCED = "fenced"  # one side has seen a newer epoch; a new session is needed
    DIVERGED = "diverged"  # different records at one offset; final, an alarm


class Cause(enum.Enum):
    """Why a session lags."""

    NONE = ""
    NETWORK = "network"  # sent and not yet acknowledged
    THROTTLED = "throttled"  # held back by this broker's own limits
    APPLY = "apply"  # the mirror cannot append as fast as it receives


class LinkInput(enum.Enum):
    """What can happen, in past tense; MIRROR_ inputs are what the mirror reported."""

    SESSION_OPENED = "session_opened"
    SESSION_CLOSED = "session_closed"
    BATCH_SHIPPED = "batch_shipped"
    LAG_TIMER_FIRED = "lag_timer_fired"
    STALL_TIMER_FIRED = "stall_timer_fired"
    MIRROR_PROGRESSED = "mirror_progressed"
    MIRROR_CAUGHT_UP = "mirror_caught_up"
    MIRROR_FENCED = "mirror_fenced"
    MIRROR_DIVERGED = "mirror_diverged"


class InvariantViolated(Exception):
    """Our own bug: end the session, keep the broker."""


class PeerProtocolError(Exception):
    """The peer broke the protocol: close the link, keep serving."""


_S = LinkState
_I = LinkInput
_OPEN_STATES: Final = (_S.IDLE, _S.SHIPPING, _S.LAGGING, _S.STALLED)

TRANSITIONS: Final[Mapping[tuple[LinkState, LinkInput], LinkState]] = {
    (_S.CONNECTING, _I.SESSION_OPENED): _S.IDLE,
    (_S.CONNECTING, _I.SESSION_CLOSED): _S.CONNECTING,
    (_S.CONNECTING, _I.MIRROR_FENCED): _S.FENCED,
    (_S.CONNECTING, _I.MIRROR_DIVERGED): _S.DIVERGED,
    (_S.IDLE, _I.BATCH_SHIPPED): _S.SHIPPING,
    (_S.IDLE, _I.LAG_TIMER_FIRED): _S.LAGGING,
    (_S.IDLE, _I.MIRROR_PROGRESSED): _S.IDLE,
    (_S.SHIPPING, _I.BATCH_SHIPPED): _S.SHIPPING,
    (_S.SHIPPING, _I.LAG_TIMER_FIRED): _S.LAGGING,
    (_S.SHIPPING, _I.MIRROR_PROGRESSED): _S.SHIPPING,
    (_S.LAGGING, _I.BATCH_SHIPPED): _S.LAGGING,
    (_S.LAGGING, _I.LAG_TIMER_FIRED): _S.LAGGING,
    (_S.LAGGING, _I.MIRROR_PROGRESSED): _S.LAGGING,
    (_S.STALLED, _I.BATCH_SHIPPED): _S.STALLED,
    (_S.STALLED, _I.LAG_TIMER_FIRED): _S.STALLED,
    (_S.STALLED, _I.MIRROR_PROGRESSED): _S.LAGGING,
    **{(state, _I.STALL_TIMER_FIRED): _S.STALLED for state in _OPEN_STATES},
    **{(state, _I.MIRROR_CAUGHT_UP): _S.IDLE for state in _OPEN_STATES},
    **{(state, _I.MIRROR_FENCED): _S.FENCED for state in _OPEN_STATES},
    **{(state, _I.MIRROR_DIVERGED): _S.DIVERGED for state in _OPEN_STATES},
    **{(state, _I.SESSION_CLOSED): _S.CONNECTING for state in _OPEN_STATES},
    (_S.FENCED, _I.SESSION_CLOSED): _S.CONNECTING,
    (_S.DIVERGED, _I.SESSION_CLOSED): _S.DIVERGED,
}


def step(state: LinkState, given: LinkInput) -> LinkState:
    """Return the next state.

    Raises:
        PeerProtocolError: `given` is the mirror's and is illegal in `state`.
        InvariantViolated: `given` is ours and is illegal in `state`.
    """
    try:
        return TRANSITIONS[(state, given)]
    except KeyError:
        kind = PeerProtocolError if given.name.startswith("MIRROR_") else InvariantViolated
        raise kind(f"{given.value} while {state.value}") from None


def mermaid() -> str:
    """Return the state diagram for the documentation."""
    rows = [f"  {before.value} --> {after.value}: {given.value}" for (before, given), after in TRANSITIONS.items()]
    return "\n".join(["stateDiagram-v2", *rows])
