"""What a mirror's session needs of the links to its home."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Protocol

from mesh.replication.link_counters import LinkCounters
from mesh.replication.link_parts import Part

if TYPE_CHECKING:
    from mesh.replication.mirror_session import MirrorSession


class HomeLink(Protocol):
    """The link to one broker of the home."""

    @property
    def broker_id(self) -> int:
        """Which broker it leads to."""

    @property
    def is_open(self) -> bool:
        """Whether parts may be posted."""

    def post(self, part: Part) -> None:
        """Send one part."""

    def open_session(self, session: MirrorSession) -> int:
        """Return a session number that was never used on this link; parts of it go to `session`."""

    def close_session(self, number: int) -> None:
        """Forget a session: late parts of it are dropped."""

    def acknowledge(self, session: MirrorSession) -> None:
        """Send `session.ack()` on the next turn of the loop."""

    def fail(self, reason: str) -> None:
        """Close the link: its bytes were damaged or its peer broke the protocol."""


class HomeLinks(Protocol):
    """Finds links to a stream's home."""

    @property
    def counters(self) -> LinkCounters:
        """Where sessions are counted."""

    def link_to_home(self, session: MirrorSession, hint: int) -> HomeLink | None:
        """Return an open link to broker `hint` of the home, or to the next in turn when -1; None: not open yet."""

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine until the links stop."""
