"""What every Kafka handler is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from region.controller.topic import Homes
from region.coordination.coordinators import Coordinators
from region.coordination.in_memory import InMemoryCoordinators
from region.kafka.counters import KafkaCounters
from region.kafka.ports import Cluster, CredentialCheck, TopicView, TraceRecorder
from region.security.access import Access
from region.security.administration import SecurityAdmin
from region.security.quotas import Quotas
from region.security.sign_in import SignInService


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaServices:
    """The broker around the listener.

    `wall_ns` counts from 1970, `monotonic_ns` from anywhere; `region_name` turns a region's number into its name.
    Without an argument `coordinators` are in memory: for tests.
    """

    cluster: Cluster
    credentials: CredentialCheck
    recorder: TraceRecorder
    wall_ns: Callable[[], int]
    monotonic_ns: Callable[[], int]
    counters: KafkaCounters = field(default_factory=KafkaCounters)
    region_name: Callable[[int], str] = str
    access: Access = field(default_factory=Access.open)
    sign_in: SignInService | None = None  # without it: the users of `credentials` only
    quotas: Quotas = field(default_factory=Quotas)
    security: SecurityAdmin | None = None  # without it users, lists and quotas cannot be asked for or changed
    coordinators: Coordinators = field(default_factory=InMemoryCoordinators)


def plain_name(topic: TopicView) -> str:
    """Return the name of the topic's definition: a qualified name loses its region."""
    return topic.definition.name if topic.homes is Homes.EVERY else topic.name
