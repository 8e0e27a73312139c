"""What the text protocol is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from region.api.publishing import RecordPublisher
from region.api.reading import StreamReader
from region.coordination.coordinators import Coordinators
from region.kafka.ports import Cluster, TraceRecorder
from region.security.access import Access, Principal
from region.security.quotas import Quotas


class SignIn(Protocol):
    """Who somebody is (region.security.sign_in.SignInService)."""

    @property
    def required(self) -> bool:
        """Whether clients must sign in."""

    def is_still_valid(self, principal: Principal) -> bool:
        """Return whether what a principal signed in by still stands."""

    async def password(self, user: str, password: str, *, host: str, how: str = ...) -> Principal:
        """Return whom a name and a password sign in (Unauthenticated; Busy: too many wait)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextServices:
    """The broker around the listener.

    `coordinators` None: there are no groups, every subscription begins where its partitions begin. `wall_ns` counts
    from 1970, `monotonic_ns` from anywhere; `region_name` turns a region's number into its name.
    """

    cluster: Cluster
    publisher: RecordPublisher
    reader: StreamReader
    sign_in: SignIn
    recorder: TraceRecorder
    wall_ns: Callable[[], int]
    monotonic_ns: Callable[[], int]
    coordinators: Coordinators | None = None
    access: Access = field(default_factory=Access.open)
    quotas: Quotas = field(default_factory=Quotas)
    region_name: Callable[[int], str] = str
